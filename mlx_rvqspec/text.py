"""Which text can be spoken, and a cleaner for text that was written for the eye."""

import re
from typing import BinaryIO
from unicodedata import category

MAX_BYTES = 64 << 20  # of a text: the longest novel has 10 MB
URL = re.compile(r"<?(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]}'\"]>?")
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?: \"[^\"]*\")?\)")  # [words](address), ![words](address)
FENCE = re.compile(r"\s*(?:```|~~~)")
LINE_START = re.compile(r"(?:> ?)*(?:#{1,6} |[-*+] (?:\[[ xX]\] )?)?")  # quote, then heading, bullet or task
# A run of marks in front of or behind a word; 2*3, 2 * 3 and snake_case are left alone.
MARKS = re.compile(r"(?<![\w*_`~])(?:[*_`]|~~)+(?=[^\s*_`~])|(?<=[^\s*_`~])(?:[*_`]|~~)+(?![\w*_`~])")
BARS = re.compile(r" ?\|[ |]*")
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff][\ufe0f\u200d\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)


def speakable(text: str) -> bool:
    """Whether there is a letter or digit of any script; punctuation, symbols and emoji are not speech."""
    return any(category(character)[0] in "LN" for character in text)


def longest_speech_s(text: str) -> float:
    """Seconds that no sensible reading of the text exceeds, about three times an ordinary one.

    A model that misses its end of speech would go on to its own limit, minutes later. Letters of an alphabet are
    short; a digit, a symbol or a character of a denser script can be a word.
    """

    return 2.0 + sum(map(longest_s, text))


def longest_s(character: str) -> float:
    """What one character adds to the longest reading."""
    kind = category(character)
    if kind in ("Ll", "Lu", "Lt", "Lm", "Mn", "Mc"):
        return 0.2
    return 0.8 if kind[0] in "LNS" else 0.3


def read_bytes(file: BinaryIO) -> bytes:
    """All that is in the file. Raises ValueError where that has no end, as in /dev/zero, or is no text by its size."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the text has more than {MAX_BYTES >> 20} MB; give it in parts")
    return data


def prepare(text: str) -> str:
    """The text as it is spoken: trimmed lines, one blank line between paragraphs, no byte order marks.

    Nothing else is changed. A line ends where str.splitlines says, so no carriage return is left.
    Raises ValueError: "text is empty" without a visible character, "nothing to say" without a letter or
    digit, and for lone surrogates, which is how Python passes on bytes that are not UTF-8.
    """
    if all(character.isspace() or category(character) in ("Cc", "Cf") for character in text):
        raise ValueError("text is empty")
    if any(category(character) == "Cs" for character in text):
        raise ValueError("text is not valid UTF-8")
    if not speakable(text):
        raise ValueError(f"nothing to say in {text.strip()[:20]!r}: no letter or digit")
    lines = [line.strip() for line in text.replace("\ufeff", "").splitlines()]
    return paragraphs(lines)


def paragraphs(lines: list[str]) -> str:
    """The lines with one blank line wherever there are several, and none at the ends."""
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def clean(text: str) -> str:
    """The text without what only makes sense on a screen.

    Removed: web addresses (of a link the words stay), emoji, the fences of code blocks, the marks of
    headings, bullets and quotes, emphasis, strike-through and backquotes around words, and lines without a
    letter or digit, such as rules. A table's bars become commas. Words, numbers, other symbols and the blank lines
    between paragraphs stay.
    """
    lines = []
    for line in text.splitlines():
        if FENCE.match(line):
            continue
        line = EMOJI.sub(" ", URL.sub(" ", LINK.sub(r"\1", line)))
        line = LINE_START.sub("", " ".join(line.split()), count=1)
        line = BARS.sub(", ", MARKS.sub("", line).strip(" |"))
        line = re.sub(r" ([,.;!?])(?!\w)", r"\1", " ".join(line.split()))
        if speakable(line) or not line:
            lines.append(line)
    return paragraphs(lines)
