"""English numerals, units and abbreviations in words, for a voice that has learned to read words only.

A published model reads digits itself, and its text is never changed. A folder whose config.json says
``"text_reader": "english"``, as that of the built-in voice, gets a tokenizer that reads through ``in_words``.
"""

import re
from collections.abc import Callable

MONTHS = "January February March April May June July August September October November December".split()
CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent")}
LARGE = "hundred|thousand|million|billion|trillion"
UNITS = {
    **{"mm": "millimetre", "cm": "centimetre", "m": "metre", "km": "kilometre", "ft": "foot", "kg": "kilogram"},
    **{"mg": "milligram", "g": "gram", "lb": "pound", "lbs": "pound", "oz": "ounce", "ml": "millilitre", "l": "litre"},
    **{"ms": "millisecond", "s": "second", "min": "minute", "h": "hour", "km/h": "kilometre an hour", "W": "watt"},
    **{
        "mph": "mile an hour",
        "Hz": "hertz",
        "kHz": "kilohertz",
        "MHz": "megahertz",
        "GHz": "gigahertz",
        "kW": "kilowatt",
    },
    **{"KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "%": "percent"},
    **{"°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree"},
}
ABBREVIATIONS = {
    **{"e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus", "a.m.": "AM", "p.m.": "PM"},
    **{"&": "and", "+": "plus", "=": "equals", "@": "at"},
}
LETTERS = (
    "ay,bee,see,dee,ee,eff,jee,aych,eye,jay,kay,el,em,en,oh,pee,cue,are,ess,tee,you,vee,double you,ex,why,zee".split(
        ","
    )
)
SPELLED = "AI AM API CEO CIA EU FAQ FBI ID IQ OS PDF PM UFO UK UN URL USA USB".split()  # beside those without a vowel

NUMBER = r"(?<![0-9])[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?"
AT_START = r"(?<![\w.,:/-])"


def in_words(text: str) -> str:
    """The text with its numerals, units, abbreviations and spelled-out letters as the words they are read as.

    Everything else stays as it is. What cannot be told from the text is guessed as news readers do: 1984 is a year,
    1,984 a number, 555-0100 is read digit by digit.
    """
    if not re.search(r"[0-9&+=@]|[B-Z]|\.[a-z]\.|etc\.|vs\.", text):
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
        while first > 0 and re.search(r"[0-9]|^No\.$", words[first - 1][0]):
            first -= 1
        if first < len(words) - num_behind:
            begin = words[first].start()
            break
    return len(text[:begin].rstrip())


def _read(numeral: str, to: str = "cardinal") -> str:
    from num2words import num2words  # not at the top: most texts have no digit

    return num2words(int(numeral), to=to).replace(",", "").replace(" and ", " ").replace("-", " ")


def _cardinal(numeral: str) -> str:
    """1,200 and 3.14 in words, without hyphens and commas; zeros in front are read."""
    whole, _, fraction = numeral.replace(",", "").partition(".")
    words = _digits(whole) if len(whole) > 15 or whole[0] == "0" != whole else _read(whole)
    return f"{words} point {_digits(fraction)}" if fraction else words


def _digits(numeral: str) -> str:
    return " ".join(map(_read, numeral))


def _plural(words: str) -> str:
    first, *rest = words.split(" ")
    if first == "foot":
        first = "feet"
    elif first not in ("percent", "pence") and not first.endswith("hertz"):
        first = first.removesuffix("y") + ("ies" if first.endswith("y") else "s")
    return " ".join([first, *rest])


def _date(found: re.Match[str]) -> str:
    year, month, day = found.groups()
    return f"{MONTHS[int(month) - 1]} {_read(day, 'ordinal')} {_read(year, 'year')}"


def _time(found: re.Match[str]) -> str:
    hour, minute = found.groups()
    said = _cardinal(str(int(hour)))
    if minute == "00":
        return f"{said} o'clock" if 1 <= int(hour) <= 12 else f"{said} hundred"
    return f"{said} {'oh ' if minute[0] == '0' else ''}{_cardinal(str(int(minute)))}"


def _money(found: re.Match[str]) -> str:
    sign, amount, large = found.groups()
    unit, small = CURRENCIES[sign]
    whole, _, cents = amount.partition(".")
    if large:
        return f"{_cardinal(amount)} {large} {_plural(unit)}"
    said = f"{_cardinal(whole)} {unit if whole == '1' else _plural(unit)}"
    if len(cents) != 2 or cents == "00":
        return said if not cents.strip("0") else f"{_cardinal(amount)} {_plural(unit)}"
    return f"{said} and {_cardinal(str(int(cents)))} {small if cents == '01' else _plural(small)}"


def _measure(found: re.Match[str]) -> str:
    amount, unit = found.groups()
    return f"{_cardinal(amount)} {UNITS[unit] if amount == '1' else _plural(UNITS[unit])}"


def _number(found: re.Match[str]) -> str:
    """A numeral that touches a letter, as in B2B and MP3, is set apart from it."""
    text, begin, end = found.string, found.start(), found.end()
    before = " " if begin and text[begin - 1].isalpha() else ""
    return f"{before}{_cardinal(found[0])}{' ' if text[end : end + 1].isalpha() else ''}"


def _letters(found: re.Match[str]) -> str:
    return " ".join(LETTERS[ord(letter) - ord("A")] for letter in found[1]) + found[2]


def _any_of(words: dict[str, str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def _phone(found: re.Match[str]) -> str:
    return ("plus " if found[0][0] == "+" else "") + ", ".join(map(_digits, re.findall("[0-9]+", found[0])))


def _decade(found: re.Match[str]) -> str:
    *front, last = _read(found[1], "year" if len(found[1]) == 4 else "cardinal").split(" ")
    return " ".join([*front, _plural(last)])


RULES: list[
    tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
] = [  # in this order: what one has read is words
    (re.compile(AT_START + r"([12][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])(?![\w-])"), _date),
    (re.compile(AT_START + r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?![\w:])"), _time),
    (re.compile(AT_START + r"(?:\+[0-9]+(?:[ -][0-9]+)+|[0-9]{2,}(?:-[0-9]{2,})*-[0-9]{4,})(?![\w-])"), _phone),
    (re.compile(rf"([$£€]) ?({NUMBER})(?: ({LARGE})\b)?"), _money),
    (re.compile(rf"({NUMBER})(?:st|nd|rd|th)\b"), lambda found: _read(found[1].replace(",", ""), "ordinal")),
    (re.compile(AT_START + r"((?:1[1-9]|20)?[1-9]0)s\b"), _decade),
    (re.compile(rf"({NUMBER})[-–]({NUMBER})(?![\w-])"), r"\1 to \2"),
    (re.compile(rf"(?<![\w.,])[-−](?={NUMBER})"), "minus "),
    (re.compile(r"(?<=[0-9])\.(?=[0-9]+\.[0-9])|(?<=[0-9]\.[0-9])\.(?=[0-9])"), " point "),  # version 3.11.7
    (re.compile(r"(?<=[0-9]) ?[x×] ?(?=[0-9])"), " by "),
    (re.compile(r"(?<=[0-9])[:'](?=[0-9])"), " "),
    (re.compile(r"(?<![\w.,])\+(?=[0-9])"), "plus "),
    (re.compile(rf"({NUMBER}) ?({_any_of(UNITS)})(?!\w)"), _measure),
    (
        re.compile(AT_START + rf"((?:1[1-9]|20)[0-9]{{2}})(?!\w|[,.][0-9]| (?:{LARGE})\b)"),
        lambda found: _read(found[1], "year"),
    ),
    (re.compile(r"([0-9])/(?=[0-9])"), r"\1 over "),
    (re.compile(r"\bNo\. (?=[0-9])"), "number "),
    (re.compile(NUMBER), _number),
    (re.compile(rf"(?<!\w)(?:{_any_of(ABBREVIATIONS)})(?!\w)"), lambda found: ABBREVIATIONS[found[0]]),
    (re.compile(rf"\b([B-DF-HJ-NP-TV-XZ]{{1,5}}|{'|'.join(SPELLED)})(s?)\b"), _letters),
]
