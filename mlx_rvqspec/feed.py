"""Text that is still being written: read aloud from its first words on, a token beside each frame.

The passages of such a text end at the first sentence that reaches half of their longest length, or else at a clause, a
word or a character; so what is spoken does not depend on the pieces in which the text arrives.
"""

import math
import re
from collections.abc import Generator, Iterator
from unicodedata import category, normalize

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from .delivery import Account, Chunk, Job
from .english import in_words, open_from
from .guard import Piece, Trimmer
from .passages import LEVELS, SENTENCE_PAUSE_S, ordinary_s
from .reading import Reader, runaway
from .text import longest_speech_s, prepare, speakable
from .utterance import GenerationError, Utterance

WANTED = "wanted"  # what ``read_feed`` yields to get more text
SHARES = (0.5, 1.0, 1.5, 2.0)  # of the longest length: how far a passage goes for an end of each of LEVELS
NO_CODES = np.zeros((0, 16), np.int32)
NOTHING = Piece(NO_CODES, NO_CODES, np.zeros(0, np.float32), None, 0.0)
NUM_OPEN = 2  # parts of the tokenizer's split at the end of the text, which what follows may still change


class Feed:
    """Pieces of text in, the tokens of one passage after another out.

    text, ids: the current passage as far as it is certain, as it is read; ended: it is whole; ends_paragraph: behind it
    there is a blank line or nothing; closed: no more text comes.
    """

    def __init__(self, tokenizer: Tokenizer, passage_s: float, *, in_words: bool = False) -> None:
        self._tokenizer, self._passage_s, self._in_words = tokenizer, passage_s, in_words
        self._num_in_sight = round(40 * passage_s) + 200  # characters: more than the longest passage has
        self._raw, self._end = "", 0
        self.closed = self.ended = self.ends_paragraph = False
        self.text, self.ids = "", []

    @property
    def ready(self) -> bool:
        """Whether the current passage can be begun."""
        return speakable(self.text)

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to say."""
        return self.closed and not speakable(self._raw)

    @property
    def last(self) -> bool:
        """Whether nothing can follow the current passage."""
        return self.closed and not speakable(self._raw[self._end :])

    def add(self, piece: str) -> None:
        """Raises ValueError for what is no text."""
        if not isinstance(piece, str):
            raise ValueError(f"a piece of the text is {type(piece).__name__}; expected str")
        if any(category(character) == "Cs" for character in piece):
            raise ValueError("text is not valid UTF-8")
        self._raw += piece.replace("\ufeff", "")
        self._look()

    def close(self) -> None:
        self.closed = True
        self._look()

    def go_on(self) -> None:
        """Leave a passage that has ended for the next one."""
        assert self.ended
        self._raw = self._raw[self._end :]
        self._look()

    def _look(self) -> None:
        """Find the current passage, and what is certain of it."""
        while True:
            self._raw = self._raw.lstrip()
            window = self._raw[: self._num_in_sight]
            closed = self.closed and len(window) == len(self._raw)
            place = self._find_end(window)
            self.ended = place is not None or closed
            self._end = len(window) if place is None else place
            if not self.ended or speakable(window[: self._end]) or self._end == len(self._raw):
                break
            self._raw = self._raw[self._end :]
        behind = window[self._end :]
        self.ends_paragraph = "\n\n" in "".join(behind[: len(behind) - len(behind.lstrip())].split(" "))
        lines = (line.strip() for line in window[: self._end].splitlines())
        text = normalize("NFC", "\n".join(line for line in lines if line))
        if self._in_words:
            text = text if self.ended else text[: open_from(text)]
            text = in_words(text) if speakable(text) else ""  # some symbols would become words
        parts = self._tokenizer.pre_tokenizer.pre_tokenize_str(text)
        sure = parts if self.ended else parts[:-NUM_OPEN]
        self.text = text[: sure[-1][1][1]] if sure else ""
        self.ids = [token.id for part, _ in sure for token in self._tokenizer.model.tokenize(part)]

    def _find_end(self, text: str) -> int | None:
        """Where the passage at the beginning of the text ends, if that is in it."""
        paragraph = re.search(r"\n[^\S\n]*\n", text)
        limit = paragraph.start() if paragraph else len(text)
        for level, share in zip(LEVELS, SHARES):
            for place in level(text, 0, limit):
                if place < limit and ordinary_s(text[:place]) >= share * self._passage_s:
                    limit = place
                    break
        return limit if limit < len(text) else None


def read_feed(reader: Reader, job: Job, feed: Feed) -> Generator[Chunk | str | None, None, None]:
    """The speech of a text that is fed, chunk by chunk; WANTED where the text has to grow first. job: has no passages.

    None where the next chunk is not ready. The last chunk is empty where its passage was not known to be the last.
    Raises ValueError for a text with nothing to say.
    """
    delivery, pause_s = reader.delivery(job), 0.0
    account = delivery.account
    while not delivery.is_over:
        while not (feed.ready or feed.empty):
            yield WANTED
        number = len(account.lengths)
        if feed.empty:
            if not number:
                prepare(feed.text)  # says why
            yield delivery.end(NOTHING)
            break
        account.lengths.append(0.0)
        for piece in _passage(reader, job, feed, account, delivery.left):
            if isinstance(piece, Piece):
                piece = delivery.chunk(piece, number, job.seed, feed.ended and feed.last, before_s=pause_s)
            yield piece
        while not (delivery.is_over or feed.ended):  # the model found an end before the text had come to it
            yield WANTED
        pause_s = job.how.paragraph_pause_s if feed.ends_paragraph else SENTENCE_PAUSE_S
        if not delivery.is_over:
            feed.go_on()


def _passage(
    reader: Reader, job: Job, feed: Feed, account: Account, max_frames: int | None
) -> Iterator[Piece | str | None]:
    """The pieces of the passage that the feed is at; WANTED where its text has to grow first."""
    how, config, row = job.how, reader.config, reader.feed_row(job, feed.ids[0])
    trimmer = Trimmer(row.watch) if how.on_runaway == "trim" else None
    utterance = Utterance(reader.steps_for(how.sampling, how.decode), [row.line], how.sampling)
    utterance.ahead = 0  # a frame is begun when the token beside it is known
    row.line.max_frames = max_frames or row.line.max_frames
    num_fed, num_frames, complete, frames = 1, 0, False, utterance.frames()
    while True:
        while not complete and len(row.line.trailing) <= num_frames:
            if num_fed == len(feed.ids) and not feed.ended:
                yield WANTED
                continue
            complete = feed.ended
            end = [config.tts_eos_token_id, config.tts_pad_token_id] if complete else []
            row.line.trailing = mx.concatenate([row.line.trailing, reader.embed_text([*feed.ids[num_fed:], *end])])
            num_fed, account.lengths[-1] = len(feed.ids), ordinary_s(feed.text)
            if complete and max_frames is None:
                needed = math.ceil(longest_speech_s(feed.text) * config.frame_rate_hz)
                row.line.max_frames = min(needed, row.line.max_frames)
        (frame,) = next(frames)
        num_frames += 1
        if frame.error:
            raise frame.error
        piece = row.add(frame)
        if piece is None:
            continue
        if how.on_runaway == "error" and piece.reason not in (None, "stop"):
            raise GenerationError(f"{runaway(piece.reason, feed.text)}; try another seed")
        yield trimmer.take(piece) if trimmer else piece
        if piece.reason:
            return
