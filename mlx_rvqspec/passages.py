"""A text of any length as passages, each short enough to be spoken in one pass.

Cut between paragraphs always, and within one where it is too long: between sentences, else clauses, else words, else
characters. Every character but white space is in exactly one passage.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from unicodedata import category

from .text import longest_s, speakable

PASSAGE_S = 15.0
PARAGRAPH_PAUSE_S = 0.6
MAX_PAUSE_S = 600.0  # silence takes memory as sound does
SENTENCE_PAUSE_S = 0.2  # after a passage that ends a sentence but no paragraph; the model pauses by itself too
WRAPPED = 50  # characters: a line as long as this that ends in the middle of a sentence was wrapped to fit a page
CLOSERS = r"[\"'”’“»›)\]）］】」』》〉]*"
# Chinese and Japanese put no space behind a mark; elsewhere 3.14 and example.org have marks within. A run of marks is
# looked at from its beginning only, or a long one would take quadratic time.
SENTENCE = re.compile(rf"[。！？｡…]+{CLOSERS}\s*|(?<![.!?])[.!?]+{CLOSERS}(?:\s»)?\s+|\n\s*")
CLAUSE = re.compile(rf"[，；：、]+{CLOSERS}\s*|(?<![,;:])[,;:]+{CLOSERS}\s+|[—–]+\s*|\s-\s+")
WORD = re.compile(r"\s+")
# What a full stop may follow without ending a sentence: an initial, a number as in "3. Mai", titles and the like.
SHORTENED = re.compile(
    r"(?:^|[\s(.„“\"'])(?:[^\W\d]|\d{1,2}|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|St|Sr|Jr|vs|etc|cf|vol|Vol|No|Nr|Abs|Bd|Hr|Fr"
    r"|bzw|ca|usw|vgl|Mme|Mlle|Sra|Srta|Dra|Ud|Uds|Sig|Dott|Ing|pag|art|стр|гл|ул|им|тыс|млн|руб)\.$"
)


@dataclass(frozen=True)
class Passage:
    """text[begin:end] of the text that was split, and the pause behind it.

    text: as it is spoken: what is between begin and end, with the ends of wrapped lines as spaces.
    """

    begin: int
    end: int
    text: str
    pause_s: float

    @property
    def ordinary_s(self) -> float:
        """Seconds that reading it takes, roughly."""
        return ordinary_s(self.text)


def ordinary_s(text: str) -> float:
    """Seconds that reading the text takes, roughly: a third of the longest reading."""
    return sum(map(longest_s, text)) / 3


def check_pauses(passage_s: float, paragraph_pause_s: float) -> None:
    """Raises ValueError for options of ``split`` that cannot be."""
    if not (passage_s >= 1 and 0 <= paragraph_pause_s <= MAX_PAUSE_S):
        given = f"passage_s is {passage_s}, paragraph_pause_s is {paragraph_pause_s}"
        raise ValueError(f"{given}; expected 1 or more, and 0 to {MAX_PAUSE_S:.0f}")


def split(
    text: str, *, passage_s: float = PASSAGE_S, paragraph_pause_s: float = PARAGRAPH_PAUSE_S
) -> tuple[Passage, ...]:
    """The passages of a text as ``text.prepare`` leaves it, in order; blank lines divide its paragraphs.

    passage_s: how long a passage may take to read, by ``ordinary_s``; marks that stay with their word may add to it.
    A passage without a letter or digit, such as a rule between chapters, is not for speaking: see ``spoken``.
    """
    text = unwrap(text)
    splitter, passages = Splitter(text, passage_s), []
    ends = [*(match.start() for match in re.finditer("\n\n", text)), len(text)]
    for paragraph in zip([0, *ends], ends):
        for begin, end in splitter.pieces(*paragraph):
            said = text[begin:end].strip()
            begin += len(text[begin:end]) - len(text[begin:end].lstrip())
            pause_s = SENTENCE_PAUSE_S if SENTENCE.search(said[-10:] + " ") else 0.0
            if said:
                passages.append(Passage(begin, begin + len(said), said, pause_s))
        passages[-1] = replace(passages[-1], pause_s=paragraph_pause_s)
    return tuple(passages)


def spoken(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """The passages that can be spoken; the pause behind one that cannot is added to the one before it."""
    kept: list[Passage] = []
    for passage in passages:
        if speakable(passage.text):
            kept.append(passage)
        elif kept:
            kept[-1] = replace(kept[-1], pause_s=kept[-1].pause_s + passage.pause_s)
    return tuple(kept)


def unwrap(text: str) -> str:
    """The text with a space for each line end that only serves the width of a page; nothing moves."""
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1]):
        wrapped = len(line) >= WRAPPED and lines[number + 1] and not SENTENCE.search(line[-10:] + " ")
        lines[number] += " " if wrapped else "\n"
    return "".join(lines)


class Splitter:
    """Cuts one text into pieces that take at most limit_s to read."""

    def __init__(self, text: str, limit_s: float) -> None:
        self.text, self.limit_s = text, limit_s
        self._before_s = [0.0, *accumulate(longest_s(character) / 3 for character in text)]

    def seconds(self, begin: int, end: int) -> float:
        return self._before_s[end] - self._before_s[begin]

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Bounds of the pieces of text[begin:end]; marks alone go with the piece before them, or else behind."""
        joined: list[tuple[int, int]] = []
        for piece in self._cut(begin, end, LEVELS):
            alone = joined and not all(speakable(self.text[slice(*p)]) for p in (joined[-1], piece))
            if alone and self.seconds(joined[-1][0], piece[1]) <= 2 * self.limit_s:
                piece = joined.pop()[0], piece[1]
            joined.append(piece)
        return joined

    def _cut(
        self, begin: int, end: int, levels: tuple[Callable[[str, int, int], list[int]], ...]
    ) -> list[tuple[int, int]]:
        """Pieces of about equal length, cut at the places of the first level; of the next where they are too long."""
        total_s = self.seconds(begin, end)
        if total_s <= self.limit_s or not levels:
            return [(begin, end)]
        even_s = total_s / ceil(total_s / self.limit_s)
        places = [place for place in levels[0](self.text, begin, end) if begin < place < end]
        pieces: list[tuple[int, int]] = []
        for left, right in zip([begin, *places], [*places, end]):
            first = pieces[-1][0] if pieces else left
            if pieces and self.seconds(first, left) < even_s and self.seconds(first, right) <= self.limit_s:
                pieces[-1] = first, right
            else:
                pieces += self._cut(left, right, levels[1:])
        return pieces


def _sentences(text: str, begin: int, end: int) -> list[int]:
    """Where sentences begin, but for the first."""
    places = []
    for match in SENTENCE.finditer(text, begin, end):
        follows = text[match.end() : match.end() + 1]
        shortened = SHORTENED.search(text[max(begin, match.start() - 8) : match.start() + 1])
        if "\n" in match[0] or not (follows.islower() or shortened):
            places.append(match.end())
    return places


def _clauses(text: str, begin: int, end: int) -> list[int]:
    return [match.end() for match in CLAUSE.finditer(text, begin, end)]


def _words(text: str, begin: int, end: int) -> list[int]:
    return [match.end() for match in WORD.finditer(text, begin, end)]


def _characters(text: str, begin: int, end: int) -> list[int]:
    """Where characters begin that a reader sees as one: not in front of an accent, a joiner or what it joins."""

    def begins(i: int) -> bool:
        whole = category(text[i]) not in ("Mn", "Mc", "Me", "Cf", "Sk") and text[i - 1] != "\u200d"
        return whole or i % 64 == 0  # accents without end are no character

    return [i for i in range(begin + 1, end) if begins(i)]


LEVELS = (_sentences, _clauses, _words, _characters)
