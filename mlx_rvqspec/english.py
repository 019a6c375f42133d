"""English numerals, units and abbreviations in words, for a voice that has learned to read words only.

A published model reads digits itself, and its text is never changed. A folder whose config.json says
``"text_reader": "english"``, as that of the built-in voice, reads through ``in_words``.
"""

import re
from collections.abc import Callable, Iterable


def table(text: str) -> dict[str, str]:
    """What a text "key=value|key=value" says."""
    return dict(pair.strip("\n").split("=", 1) for pair in text.split("|"))


MONTHS = "January February March April May June July August September October November December".split()
CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent"), "¥": ("yen", "sen")}
LARGE = {**dict.fromkeys(("k", "K", "thousand"), "thousand"), **dict.fromkeys(("m", "M", "mn", "million"), "million")}
LARGE |= {**dict.fromkeys(("b", "B", "bn", "billion"), "billion"), **dict.fromkeys(("tn", "trillion"), "trillion")}
UNITS = table("""
mm=millimetre|cm=centimetre|m=metre|km=kilometre|ft=foot|m²=square metre|mg=milligram|g=gram|kg=kilogram|
kgs=kilogram|lb=pound|lbs=pound|oz=ounce|ml=millilitre|mL=millilitre|l=litre|L=litre|tbsp=tablespoon|
tsp=teaspoon|ms=millisecond| s=second|sec=second|secs=second|min=minute|mins=minute|h=hour|hr=hour|hrs=hour|
km/h=kilometre an hour|mph=mile an hour|m/s=metre a second|Hz=hertz|kHz=kilohertz|MHz=megahertz|GHz=gigahertz|
W=watt|kW=kilowatt|kWh=kilowatt hour|V=volt|KB=kilobyte|MB=megabyte|GB=gigabyte|TB=terabyte|°C=degree Celsius|
ºC=degree Celsius|°F=degree Fahrenheit|ºF=degree Fahrenheit|°=degree|%=percent|€=euro|£=pound|¢=cent""")
IRREGULAR = {"foot": "feet", "percent": "percent", "pence": "pence", "sen": "sen", "yen": "yen"}
ABBREVIATIONS = table("""e.g.=for example|i.e.=that is|etc.=et cetera|vs.=versus|vs=versus|approx.=approximately|&=and|
@=at|+=plus|½=one half|¼=a quarter|¾=three quarters""") | {"=": "equals"}
PARTS = dict(zip("23456789", "half third quarter fifth sixth seventh eighth ninth".split()))
LETTERS = table("""A=ay|B=bee|C=see|D=dee|E=ee|F=eff|G=jee|H=aych|I=eye|J=jay|K=kay|L=el|M=em|N=en|O=oh|P=pee|Q=cue|
R=are|S=ess|T=tee|U=you|V=vee|W=double you|X=ex|Y=why|Z=zee""")
# Read letter by letter like what has no vowel, and what is not although it has none.
SPELLED = """AI AM API ATM CEO CFO CIA CTO DIY DNA ECB EST EU FAQ FBI FYI GOP HBO IBM ID IMF IPO IQ IRS MRI NBA NGO
    NYC OMG OS PDF PM SUV UAE UCLA UFO UK UN URL USA USB USD VIP""".split()
NOT_SPELLED = "BRR DR GRR HMM JR MR MRS PSST SHH SHHH SR ST".split()
ROMAN = dict(zip("II III IV VI VII VIII IX XI XII XIII XIV XV XVI".split(), "2 3 4 6 7 8 9 11 12 13 14 15 16".split()))

MAX_DIGITS = 15  # of what is still a number and no code
Said = str | Callable[[re.Match[str]], str]


def in_words(text: str) -> str:
    """The text with its numerals, units, abbreviations and spelled-out letters as the words they are read as.

    Everything else stays as it is. What cannot be told from the text is guessed as news readers do: 1984 is a year,
    1,984 a number, 555-0100 is read digit by digit.
    """
    if not re.search(r"[0-9&+=@½¼¾]|[B-Z]|[A-Za-z]\.[A-Za-z]\.|etc\.|vs|approx\.", text):
        return text
    for pattern, said in RULES:
        text = pattern.sub(said, text)
    return text


def open_from(text: str) -> int:
    """From where on what is read of a text that is still growing depends on what follows.

    That is its last word while it may still grow, and numerals with the word behind them.
    """
    words = list(re.finditer(r"\S+", text))
    begin = len(text)
    if words and words[-1].end() == len(text):
        begin = words.pop().start()
    for num_behind in (0, 1):
        first = len(words) - num_behind
        while first > 0 and HOLDING.search(words[first - 1][0]):
            first -= 1
        if first < len(words) - num_behind:
            begin = words[first].start()
            break
    return len(text[:begin].rstrip())


def _read(numeral: str, to: str = "cardinal") -> str:
    from num2words import num2words  # not at the top: most texts have no digit

    if len(numeral) > MAX_DIGITS:
        return " ".join(map(_read, numeral))
    return num2words(int(numeral), to=to).replace(",", "").replace(" and ", " ").replace("-", " ")


def _cardinal(numeral: str) -> str:
    """1,200 and 3.14 in words, without hyphens and commas; zeros in front are read."""
    whole, _, fraction = numeral.replace(",", "").partition(".")
    words = _digits(whole) if whole[0] == "0" != whole else _read(whole)
    return f"{words} point {_digits(fraction)}" if fraction else words


def _digits(numeral: str) -> str:
    return " ".join(map(_read, numeral))


def _plural(words: str) -> str:
    first, *rest = words.split(" ")
    if first.endswith(("hertz", "square", "kilowatt")) and rest:
        return " ".join([first, _plural(" ".join(rest))])
    if first not in IRREGULAR and not first.endswith("hertz"):
        first = first.removesuffix("y") + ("ies" if first.endswith("y") else "s")
    return " ".join([IRREGULAR.get(first, first), *rest])


def _spell(letters: str) -> str:
    return " ".join(LETTERS[letter] for letter in letters.upper() if letter.isalpha())


def _date(year: str, month: str, day: str) -> str:
    return f"{MONTHS[int(month) - 1]} {_read(day, 'ordinal')} {_read(year, 'year')}"


def _slashed_date(found: re.Match[str]) -> str:
    """As Americans write it, where that is possible."""
    month, day, year = found.groups()
    if int(month) > 12:
        month, day = day, month
    return _date(year, month, day) if int(month) <= 12 else found[0]


def _month(name: str) -> str:
    return next(month for month in MONTHS if month.startswith(name[:3]))


def _month_day(found: re.Match[str]) -> str:
    return f"{_month(found['month'])} {_read(found['day'], 'ordinal')}"


def _day_month(found: re.Match[str]) -> str:
    return f"{_read(found['day'], 'ordinal')} of {_month(found['month'])}"


def _time(found: re.Match[str]) -> str:
    hour, minute, half = found["hour"], found["minute"] or "00", found["half"]
    said = [_read(hour)]
    if minute != "00":
        said += ["oh"] * (minute[0] == "0") + [_read(minute)]
    elif not half:
        said.append("o'clock" if 1 <= int(hour) <= 12 else "hundred")
    return " ".join([*said, *([_spell(half)] if half else [])])


def _phone(found: re.Match[str]) -> str:
    return ("plus " if found[0][0] == "+" else "") + ", ".join(map(_digits, re.findall("[0-9]+", found[0])))


def _money(found: re.Match[str]) -> str:
    country, sign, amount, large = found.groups()
    unit, small = CURRENCIES[sign]
    whole, _, cents = amount.partition(".")
    words = [_spell(country)] if country else []
    if large:
        return " ".join([_cardinal(amount), LARGE[large], *words, _plural(unit)])
    if len(cents) not in (0, 2) and cents.strip("0"):
        return " ".join([_cardinal(amount), *words, _plural(unit)])
    said = (
        [] if whole == "0" and cents.strip("0") else [_cardinal(whole), *words, unit if whole == "1" else _plural(unit)]
    )
    if cents.strip("0"):
        said += ["and"] * bool(said) + [_read(cents), small if cents == "01" else _plural(small)]
    return " ".join(said)


def _ordinal(found: re.Match[str]) -> str:
    whole, _, fraction = found[1].replace(",", "").partition(".")
    front = [_cardinal(whole), "point", *map(_read, fraction[:-1])] if fraction else []
    return " ".join([*front, _read(fraction[-1:] or whole, "ordinal")])


def _decade(found: re.Match[str]) -> str:
    *front, last = _read(found[1], "year" if len(found[1]) == 4 else "cardinal").split(" ")
    return " ".join([*front, _plural(last)])


def _measure(found: re.Match[str]) -> str:
    amount, unit = found[1], UNITS[found[2] if found[2] in UNITS else found[2].strip()]
    return f"{_cardinal(amount)} {unit if amount == '1' else _plural(unit)}"


def _part(found: re.Match[str]) -> str:
    whole, above, below = found.groups()
    name = PARTS[below] if above == "1" else "halves" if below == "2" else PARTS[below] + "s"
    said = ("a" if whole else "one") if above == "1" else _read(above)
    return f"{f'{_read(whole)} and ' if whole else ''}{said} {name}"


def _number(found: re.Match[str]) -> str:
    """A numeral that touches a letter, as in B2B and MP3, is set apart from it."""
    text, begin, end = found.string, found.start(), found.end()
    before = " " if begin and text[begin - 1].isalpha() else ""
    return f"{before}{_cardinal(found[0])}{' ' if text[end : end + 1].isalpha() else ''}"


def _any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


NUMBER = r"(?<![0-9])[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?"
START, END = r"(?<![\w.,:/-])", r"(?![\w:/-]|[.,][0-9])"
YEAR, DAY = r"(?:1[1-9]|20)[0-9]{2}", r"[12][0-9]|3[01]|0?[1-9]"
MONTH = rf"\b(?P<month>{'|'.join(MONTHS)}|Sept|{'|'.join(month[:3] for month in MONTHS)})\b"
CLOCK = r"(?<![\w.,:/])(?P<hour>[01]?[0-9]|2[0-4])"
MANY = rf"(?:{'|'.join(large for large in LARGE if len(large) > 2)}|hundred)\b"
CAPITALS = rf"(?!(?:{_any_of(NOT_SPELLED)})\b)([B-DF-HJ-NP-TV-XZ]{{1,5}}|{_any_of(SPELLED)})"
HOLDING = re.compile(rf"[0-9$£€¥+=&]|^\W*(?:(?:[Nn]o|Fig|pp?)\.|{MONTH}\.?)$")  # words that those behind them change

RULES: list[tuple[re.Pattern[str], Said]] = [  # in this order: what one has read is words, which the next leave alone
    (re.compile(pattern), said)
    for pattern, said in (
        (r"(?<![\w.,])([1-9][0-9]{0,2})((?: 000)+)(?![0-9])", lambda found: found[0].replace(" ", "")),
        (rf"{START}([12][0-9]{{3}})-(0[1-9]|1[0-2])-({DAY}){END}", lambda found: _date(*found.groups())),
        (rf"{START}({DAY})/({DAY})/({YEAR}){END}", _slashed_date),
        (rf"{MONTH}\.? (?P<day>{DAY})(?:st|nd|rd|th)?{END}(?! {MANY})", _month_day),
        (rf"{START}(?P<day>{DAY}) {MONTH}", _day_month),
        (r"(?<=[0-9mM])[-–](?=[0-9]{1,2}(?::[0-9]{2}| ?[ap]\.?m\b))", " to "),  # 9am-5pm, 8:30-9:30
        (rf"{CLOCK}(?:[:.](?P<minute>[0-5][0-9]))? ?(?P<half>[ap]m\b|[ap]\.m\.|[AP]M\b)", _time),
        (rf"{CLOCK}:(?P<minute>[0-5][0-9])(?P<half>)(?![\w:])", _time),
        (rf"{START}({YEAR})[-–]({YEAR}){END}", r"\1 to \2"),
        (r"(?<![\w.])\+[0-9][0-9 ().-]{5,20}[0-9](?![\w-])|\([0-9]{3}\) ?[0-9]{3}-[0-9]{4}(?![\w-])", _phone),
        (
            rf"{START}(?:[0-9]+(?:-[0-9]+){{2,}}|[0-9]{{2,4}}-[0-9]{{4,}}|[0-9]{{3}}\.[0-9]{{3}}\.[0-9]{{4}}){END}",
            _phone,
        ),
        (rf"{START}0[0-9]+(?: [0-9]{{3,}})*{END}", _phone),
        (r"(?<![\w.])\.(?=[0-9])", "0."),
        (rf"(?<![\w.,%])[-−](?=[$£€¥]?{NUMBER})", "minus "),
        (rf"([$£€¥])({NUMBER})[-–]\1?(?={NUMBER})", r"\2 to \1"),
        (rf"(?:\b([A-Z]{{1,3}}))?([$£€¥]) ?({NUMBER})(?:[- ]?({_any_of(LARGE)})\b)?", _money),
        (rf"(?<![\w.,])({NUMBER})(?i:st|nd|rd|th)\b", _ordinal),
        (r"(?<![\w.,])((?:1[1-9]|20)[0-9]0|[1-9]0)'?s\b", _decade),
        (rf"({NUMBER})%?[-–]({NUMBER})(?![\w-])", r"\1 to \2"),
        (r"(?<=[0-9])\.(?=[0-9]+\.[0-9])|(?<=[0-9]\.[0-9])\.(?=[0-9])", " point "),  # version 3.11.7
        (r"(?<=[0-9])[½¼¾]", lambda found: {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}[found[0]]),
        (r"(?<![\w/.,])(?:([0-9]+) )?([1-9])/([2-9])(?![\w/])", _part),
        (r"(?<=[0-9])[:/'](?=[0-9])", " "),
        (r"(?<=[0-9]) ?[x×] ?(?=[0-9])", " by "),
        (rf"({NUMBER})(?: ?|-)({_any_of(UNITS)})(?!\w)", _measure),
        (rf"{START}({YEAR})(?!\w|[,.][0-9]| {MANY})", lambda found: _read(found[1], "year")),
        (r"\b[Nn]o\. ?(?=[0-9])|#(?=[0-9])", "number "),
        (r"\bFig\. ?(?=[0-9])", "figure "),
        (r"\bp(p?)\. ?(?=[0-9])", lambda found: "pages " if found[1] else "page "),
        (r"(?<=\w) ?\+ ?(?=\w)", " plus "),
        (r"(?<=[\w+])\+", " plus"),
        (r"\+(?=[0-9])", "plus "),
        (r"(?<=\w) ?= ?(?=\w)", " equals "),
        (NUMBER, _number),
        (rf"(?<!\w)(?:{_any_of(ABBREVIATIONS)})(?!\w)", lambda found: ABBREVIATIONS[found[0]]),
        (r"\b([A-Z]{1,3})&([A-Z]{1,3})\b", lambda found: f"{_spell(found[1])} and {_spell(found[2])}"),
        (r"(?<=\w)&(?=\w)", " and "),
        (r"(?<![\w.])(?:[A-Za-z]\.){2,}(?!\w)", lambda found: _spell(found[0])),
        (rf"(?<=[a-z] )({_any_of(ROMAN)})\b", lambda found: _read(ROMAN[found[1]])),
        (rf"(?<![\w'’]){CAPITALS}(s?)(?!\w|['’](?!s\b))", lambda found: _spell(found[1]) + found[2]),
    )
]
