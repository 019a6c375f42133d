"""Make the training text and let the teacher voice speak it.

corpus.py texts AUSTEN.txt OUTDIR            OUTDIR/train.tsv, more.tsv, heldout.tsv (id<TAB>text)
corpus.py numerals OUTDIR                    OUTDIR/numerals.tsv: numbers and spelled-out letters, in words as the package reads them
corpus.py speak TEXTS.tsv OUTDIR [PART/OF] [robin|jay]      OUTDIR/<id>.wav and OUTDIR/<id>.lab

AUSTEN.txt: Rscript -e 'library(janeaustenr); writeLines(austen_books()$text, "AUSTEN.txt")'.
A .lab file has one line per phone, `S name end_s`, and one per word,
`W word first start_s end_s`: first = 1 opens a new whitespace-separated text token.
"""

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import teacher_flite

WORDNET = Path("/usr/share/wordnet")
TITLES = {"mr", "mrs", "dr", "st"}
EVAL_EXTRA = Path(__file__).parent / "fixed_eval.txt"


def glosses():
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(WORDNET / f"data.{part}", encoding="latin1"):
            if not line.startswith("  "):
                yield line.split("|", 1)[-1].strip()


def raw_sentences(austen):
    for gloss in glosses():
        yield from re.findall(r'"([^"]+)"', gloss)
    text = Path(austen).read_text(encoding="utf8").replace("\n", " ").replace("_", "")
    text = re.sub(r"\b(Mr|Mrs|Dr|St)\.", r"\1", text)
    yield from re.split(r"(?<=[.!?;])\s+", text)


PLAIN = re.compile(r"^[A-Za-z][A-Za-z' ,]*[.!?]?$")


def clean(s):
    """A plain English sentence of 1 to 25 words ending in . ! or ?, or None."""
    s = re.sub(r"\s+", " ", s.replace("’", "'").replace("--", ", ").replace(";", ",").replace("`", "'"))
    s = s.strip(" '\"")
    if not PLAIN.match(s) or re.search(r"\b[A-Z]{2,}\b|\b[b-hj-zB-HJ-Z]\b(?<!')|''| '|' |,\w", s):
        return None
    s = re.sub(r"\s*([,.!?])\s*", r"\1 ", s).strip()
    if not 1 <= len(s.split()) <= 25 or len(s) > 140:
        return None
    s = s[0].upper() + s[1:]
    return s if s[-1] in ".!?" else s.rstrip(", ") + "."


THINGS = """books|men|women|apples|pears|horses|letters|houses|trees|days|weeks|months|years|hours|minutes|miles|pages|chapters|rooms|people|
children|friends|cars|boats|birds|dogs|cats|tables|chairs|windows|doors|cups|boxes|coins|stamps|pictures|songs|stories|words|lines|questions|
answers|points|votes|seats|tickets|bottles|eggs|potatoes|flowers|stones|islands|villages|soldiers|students|teachers|doctors|workers|sheep""".replace("\n", "").split("|")
FRONT = "Call|Dial|The number is|My number is|The code is|Try|Enter|It says|I heard|Write down|Read|Then|Number|He counted|I count|She said|We have".split("|")
BACK = ["", "", "", " now", " again", " today", " please", " then", " and wait", " at once", " tomorrow", " if you can"]
NUMBERED = "Room|Page|Chapter|Line|Bus|Track|Gate|Number|Floor|House|Volume|Part|Flight|Platform|Lot|Figure|Channel".split("|")


def numeral(rng):
    """One sentence with numerals or letters that are spelled."""
    def pick():
        top = rng.choice([12, 20, 99, 99, 999, 9999, 999999, 9999999])
        n = rng.randint(0 if top == 12 else 2, top)
        return f"{n // 10 ** (len(str(n)) - 2) * 10 ** (len(str(n)) - 2) if n > 99 and rng.random() < 0.4 else n:,}"

    n, m, thing, other, month = pick(), pick(), rng.choice(THINGS), rng.choice(THINGS), rng.choice("January March May June July August".split())
    year, hour, minute = rng.randint(1101, 2059), rng.randint(1, 12), rng.choice([0, 5, 10, 15, 30, 45, rng.randint(1, 59)])
    digits = [str(rng.randint(0, 9)) for _ in range(rng.randint(2, 8))]
    first = rng.randint(0, 12)
    run = list(map(str, range(first, first + rng.randint(3, 7))))
    if rng.random() < 0.2:
        run.reverse()
    gap, mark, capitals = rng.choice([" ", " ", ", "]), rng.choice(".....!?"), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    unit = rng.choice("kg|km|cm|m|%|%|°C|mph|GB|MB|g|ml|km/h|feet|miles|pounds|dollars|hours|minutes|degrees".split("|"))
    kind = rng.random()
    if kind < 0.24:
        k = rng.randint(1, len(digits))
        s = f"{rng.choice(FRONT)} {rng.choice([gap.join(digits), gap.join(run), ' '.join(digits[:k]) + ', ' + ' '.join(digits[k:])]).strip(', ')}{rng.choice(BACK)}"
    elif kind < 0.3:
        s = gap.join(rng.choice([digits, run, run]))
    elif kind < 0.36:
        s = f"{rng.choice(FRONT)} {rng.choice([' '.join(rng.sample(capitals, rng.randint(2, 4))), ''.join(rng.sample('BCDFGHJKLMNPQRSTVWXZ', rng.randint(2, 4)))])}{rng.choice(BACK)}"
    elif kind < 0.46:
        s = f"{rng.choice(NUMBERED)} {n}{rng.choice(['', f' and {m}', f' to {m}', ' is empty', f' of {m}', ' comes next', f', line {m}'])}"
    elif kind < 0.64:
        s = rng.choice([
            f"There were {n} {thing} and {m} {other}", f"They sold {n} {thing}", f"I have {n} {thing} and {m} {other}", f"We counted {n} {thing}",
            f"He brought {n} {thing}, she brought {m}", f"{n} {thing} are enough", f"About {n} {thing} were lost", f"Only {n} of the {m} {thing} came",
            f"Give me {n} {thing}", f"She is {rng.randint(2, 99)} years old", f"{n} and {m} make {pick()}", f"{n}, {m} and {pick()}", f"{n}",
        ])
    elif kind < 0.76:
        s = rng.choice([
            f"It weighs {n} {unit}", f"It is {n} {unit} long", f"The answer is {n}.{digits[0]}{rng.choice(['', digits[1]])}", f"{rng.randint(1, 100)}% of them left",
            f"It costs ${n}", f"It costs ${rng.randint(1, 99)}.{rng.randint(10, 99)}", f"They paid £{n} for {m} {thing}", f"${rng.randint(1, 99)} million", f"{n} {unit}",
        ])
    elif kind < 0.9:
        s = rng.choice([
            f"In {year}", f"He was born in {year}", f"From {year} to {year + rng.randint(1, 90)}", f"In {year} they built {m} {thing}", f"The year {year} was cold",
            f"On {month} {rng.randint(1, 31)}, {year}", f"In the {year // 10 * 10}s", f"It was {year}", f"The {rng.randint(1, 31)}th of {month}".replace("1th", "1st"),
        ])
    else:
        s = rng.choice([
            f"At {hour}:{minute:02d}", f"It is {hour}:{minute:02d}", f"The train leaves at {hour}:{minute:02d}", f"Come at {hour}:{minute:02d} p.m.",
            f"From {hour}:00 to {hour % 12 + 1}:{minute:02d}", f"The {rng.randint(4, 20)}th time", f"Between {hour} and {hour + 1} o'clock",
        ])
    return s + mark


def numerals(out, num=10000, seed=2):
    from mlx_rvqspec.english import in_words

    rng, rows = random.Random(seed), {}
    while len(rows) < num:
        s = in_words(numeral(rng))
        if re.fullmatch(r"[A-Za-z][A-Za-z' ,]*[.!?]", s) and len(s) <= 110:
            rows.setdefault(s if rng.random() < 0.2 else s[0].upper() + s[1:])
    Path(out, "numerals.tsv").write_text("".join(f"n{i:06d}\t{s}\n" for i, s in enumerate(rows)))


def words_of(s):
    return re.findall(r"[a-z']+", s.lower())


def numbers(rng):
    """One sentence with digits; festival reads the same digits."""
    n = rng.choice([rng.randint(0, 12), rng.randint(13, 99), rng.randint(100, 999)])
    m, year = rng.randint(2, 99), rng.randint(1801, 2039)
    return rng.choice([
        f"{n}", f"{n}.", f"Number {n}.", f"I have {n} books.", f"There are {m} people here.", f"It costs {m} dollars.",
        f"It costs ${m}.", f"The room number is {n}.", f"She is {m} years old.", f"He was born in {year}.", f"In {year} it was sold.",
        f"Chapter {m}.", f"Page {n}.", f"We need {m} more days.", f"{m} percent of them agreed.", f"About {m}% of the people came.",
        f"Take bus {m} to the station.", f"Wait {m} minutes.", f"{m} and {rng.randint(2, 99)}.", f"Open the door at {rng.randint(1, 12)} o'clock.",
        f"The answer is {n}.", f"Call me in {m} minutes.", f"The {m} men walked {n} miles.", f"Room {n} is on floor {rng.randint(1, 9)}.",
    ])


SHORT = """OK|Hi|Yes|No|Hello|Thanks|Thank you|Good morning|Good night|Goodbye|Bye|Please|Sorry|Welcome|Of course|Maybe|Sure|Right|Stop|Go|Wait|
Hello world|How are you|I am fine|Not now|Come in|Well done|See you soon|Good luck|Help|Really|Never mind|Excuse me|Let's go|I see|No problem|
Good evening|Good afternoon|Why not|What|Who|When|Where|How|Why|Mr. Smith|Mrs. Brown|Dr. Jones|Nice to meet you|Happy birthday""".replace("\n", "").split("|")
NAMES = "Smith Brown Jones Green White Young Hill King Wood Baker Cook Hall Bell Grant Stone West".split()


def short(rng):
    s = rng.choice(SHORT)
    s = rng.choice([s, s.lower(), s])
    return s + rng.choice(["", ".", ".", "!", "?"])


def titled(rng, sentence):
    who = f"{rng.choice(['Mr.', 'Mrs.', 'Dr.'])} {rng.choice(NAMES)}"
    return rng.choice([f"{who} said, {sentence[0].lower() + sentence[1:]}", f"This is {who}.", f"Ask {who} about it.", f"{who} is here."])


def flat_lists(rng, words, num_lists):
    """Sentences of unrelated words, each word as often as any other: rare spellings need practice too."""
    out, queue = [], []
    for _ in range(num_lists):
        n = rng.choice([3, 4, 5, 6, 7, 8, 9])
        while len(queue) < n:
            queue += rng.sample(words, len(words))
        s = (", " if rng.random() < 0.15 else " ").join(queue.pop() for _ in range(n))
        out.append(s[0].upper() + s[1:] + rng.choice("...?!"))
    return out


def texts(austen, out, seed=0, num_top=6000):
    rng = random.Random(seed)
    count = Counter()
    for g in glosses():
        count.update(words_of(g))
    count.update(words_of(Path(austen).read_text(encoding="utf8")))
    rank = {w: i for i, (w, _) in enumerate(count.most_common())}
    fixed = {" ".join(words_of(t)) for t in EVAL_EXTRA.read_text().splitlines()} if EVAL_EXTRA.exists() else set()
    seen, pool, rest = set(fixed), [], []
    for s in raw_sentences(austen):
        s = clean(s)
        key = s and " ".join(words_of(s))
        if not s or key in seen or set(words_of(s)) & TITLES:
            continue
        seen.add(key)
        worst = max(rank.get(w, 10**9) for w in words_of(s))
        (pool if worst < num_top else rest if worst < 20000 else []).append(s)
    rng.shuffle(pool)
    rng.shuffle(rest)
    heldout, by_len = [], Counter()
    for s in pool[:]:
        n = len(s.split())
        if 2 <= n <= 25 and by_len[n] < 16 and len(heldout) < 300:
            by_len[n] += 1
            heldout.append(s)
    held = set(heldout)
    pool = [s for s in pool if s not in held]
    lexicon = [w for w in rank if rank[w] < 15000 and re.fullmatch(r"[a-z]{2,12}", w) and count[w] >= 4]
    weight = [1 / (200 + rank[w]) for w in lexicon]

    def word_list():
        ws = rng.choices(lexicon, weight, k=rng.choice([1, 2, 3, 4, 5, 6, 7, 8]))
        s = (", " if rng.random() < 0.15 else " ").join(ws)
        return s[0].upper() + s[1:] + "."

    medium = [s for s in pool if len(s.split()) <= 12]
    long = [s for s in pool if len(s.split()) > 12]
    rows = medium[:15000] + long[:5000] + rest[:4000] + [word_list() for _ in range(6000)]
    rows += [numbers(rng) for _ in range(2200)] + [short(rng) for _ in range(700)] + [titled(rng, rng.choice(medium)) for _ in range(600)]
    rows = [s for s in rows if s not in held]
    rng.shuffle(rows)
    Path(out).mkdir(parents=True, exist_ok=True)
    rng.shuffle(heldout)
    more = medium[15000:] + rest[4000:14000] + flat_lists(random.Random(seed + 1), [w for w in lexicon if rank[w] < 8000], 6000)
    rng.shuffle(more)
    Path(out, "more.tsv").write_text("".join(f"u{i:06d}\t{s}\n" for i, s in enumerate(s for s in more if s not in held)))
    Path(out, "train.tsv").write_text("".join(f"t{i:06d}\t{s}\n" for i, s in enumerate(rows)))
    Path(out, "heldout.tsv").write_text("".join(f"h{i:03d}\t{s}\n" for i, s in enumerate(heldout)))
    print(len(rows), "training texts,", len(heldout), "held out; pool", len(medium), len(long), len(rest))


SCHEME = """(voice_cmu_us_slt_arctic_hts)
(define (dump u base)
  (let ((fd (fopen (string-append base ".lab") "w")))
    (mapcar (lambda (s) (format fd "S %s %f\\n" (item.name s) (item.feat s "end"))) (utt.relation.items u 'Segment))
    (mapcar (lambda (w) (format fd "W %s %d %f %f\\n" (item.name w) (if (item.relation.prev w 'Token) 0 1)
                                (item.feat w "word_start") (item.feat w "word_end"))) (utt.relation.items u 'Word))
    (fclose fd)
    (utt.save.wave u (string-append base ".wav"))))
"""


def speak(tsv, out, part="0/1", speaker="robin", chunk=100):
    """Finished ids are skipped, so it can be rerun. robin: one festival process per `chunk` texts."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    i, of = map(int, part.split("/"))
    rows = [line.rstrip("\n").split("\t", 1) for line in open(tsv)]
    flite = teacher_flite.Flite() if speaker == "jay" else None
    blocks = [rows[k : k + chunk] for k in range(0, len(rows), chunk)][i::of]
    for block in blocks:
        todo = [(n, t) for n, t in block if not (out / f"{n}.wav").exists()]
        if not todo:
            continue
        if flite:
            for n, t in todo:
                flite.speak(t, out / n)
            continue
        lines = [f'(dump (utt.synth (Utterance Text "{t}")) "{out / n}")' for n, t in todo]
        script = out / f"job{i}.scm"
        script.write_text(SCHEME + "\n".join(lines))
        subprocess.run(["festival", "-b", str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    {"texts": texts, "numerals": numerals, "speak": speak}[sys.argv[1]](*sys.argv[2:])
