"""What is handed out of a text: chunks of codes and samples with their Stats, faded where passages meet."""

import time
from dataclasses import dataclass

import numpy as np

from .config import ModelConfig
from .guard import POLICIES, Piece
from .passages import Passage, check_pauses
from .prompt import TEXT_FEEDS, Voice
from .sampling import Sampling
from .spec_decode.stats import Attempt, Stats, Tally

MAX_CHUNK_FRAMES = 750  # a minute
MOST_CARRIED = 8  # passages: two minutes, about what a model was trained to say in one pass
AS_IT_PAYS = "as it pays"
SEAM_S = 0.01  # faded at both sides of a pause: what is cut off in a wave clicks


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: audio [S] float32 at 24 kHz, codes [T, 16] int32, and on the last one the reason.

    S = 1920 T, and more where a passage ends: the pause behind it has no codes.
    depths: [T, 16] int32, how many codes ahead each code was drafted; 0 where the decoder chose it itself.
    """

    audio: np.ndarray
    codes: np.ndarray
    is_final: bool
    finish_reason: str | None
    stats: Stats
    depths: np.ndarray


@dataclass(frozen=True)
class How:
    """How to read: see ``Engine.stream``. Raises ValueError for a setting that cannot be.

    decode: "spec", "plain", or ``AS_IT_PAYS``: "spec" where frames of plain decoding are not found to be faster.
    """

    decode: str
    sampling: Sampling
    text_feed: str
    chunk_frames: int
    passage_s: float
    paragraph_pause_s: float
    on_runaway: str
    carry: int

    def __post_init__(self) -> None:
        if self.on_runaway not in POLICIES:
            raise ValueError(f"on_runaway is {self.on_runaway!r}; expected one of {', '.join(POLICIES)}")
        check_pauses(self.passage_s, self.paragraph_pause_s)
        if self.text_feed not in TEXT_FEEDS:
            raise ValueError(f"text_feed is {self.text_feed!r}; expected one of {', '.join(TEXT_FEEDS)}")
        if not 1 <= self.chunk_frames <= MAX_CHUNK_FRAMES:  # the last chunk is computed in full, however short
            raise ValueError(f"chunk_frames is {self.chunk_frames}; expected 1 to {MAX_CHUNK_FRAMES}")
        if not 0 <= self.carry <= MOST_CARRIED:
            raise ValueError(f"carry is {self.carry}; expected 0 to {MOST_CARRIED}")


@dataclass(frozen=True)
class Job:
    """What to say, and how."""

    passages: tuple[Passage, ...]
    voice: Voice
    seed: int
    how: How


class Account:
    """Adds up the Stats of one job."""

    def __init__(self, job: Job, tally: Tally, config: ModelConfig, start: float | None = None) -> None:
        self.job, self.tally, self.config = job, tally, config
        self.start, self.first_audio_s = start or time.perf_counter(), 0.0
        self.frames, self.passage_frames, self.num_samples, self.speech_s = 0, 0, 0, 0.0
        self.attempts: tuple[Attempt, ...] = ()
        self.lengths = [passage.ordinary_s for passage in job.passages]  # of a text still coming, what is known
        self.done_s = 0.0

    def add(self, piece: Piece, number: int, seed: int, num_samples: int) -> Stats:
        """The Stats with a piece of passage ``number``, which is num_samples long with the pause behind it."""
        passage_s, rate = self.lengths[number], self.config.frame_rate_hz
        for origin in piece.origin:
            self.tally.add(origin)
        self.frames += len(piece.codes)
        self.passage_frames += len(piece.codes)
        self.num_samples += num_samples
        self.speech_s += piece.speech_s
        now_s = time.perf_counter() - self.start
        self.first_audio_s = self.first_audio_s or now_s
        done_s = self.done_s + min(passage_s, self.passage_frames / rate)
        if piece.reason:
            self.end(number, seed, self.passage_frames, piece.reason)
            self.passage_frames, self.done_s = 0, self.done_s + passage_s
            done_s = self.done_s
        return Stats(
            seed=self.job.seed,
            decode="plain" if self.job.how.decode == "plain" else "spec",
            frames=self.frames,
            frame_rate_hz=rate,
            total_s=now_s,
            speech_s=self.speech_s,
            time_to_first_audio_s=self.first_audio_s,
            audio_s=self.num_samples / self.config.sample_rate,
            share=done_s / sum(self.lengths),
            num_passages=len(self.lengths),
            attempts=self.attempts,
            **self.tally.counts(),
        )

    def end(self, number: int, seed: int, frames: int, reason: str) -> None:
        """Note that a passage has been spoken with this seed."""
        self.attempts += (Attempt(number, seed, frames, reason),)


class Delivery:
    """Makes chunks of the pieces of one job's passages: keeps its limit, fades its seams, says why it ended.

    left: frames that its limit leaves, None without one; is_over: the last chunk has been made.
    """

    def __init__(self, account: Account) -> None:
        self.account, self.left = account, account.job.how.sampling.max_frames
        self.is_over = False
        self._worst, self._begins = "stop", True

    def chunk(
        self, piece: Piece, number: int, seed: int, is_last: bool, *, before_s: float = 0.0, behind_s: float = 0.0
    ) -> Chunk:
        """The chunk of a piece of passage ``number``; is_last: nothing is known to follow that passage.

        before_s, behind_s: pauses in front of the passage, and behind it if it is not the last.
        """
        rate, ends = self.account.config.sample_rate, piece.reason is not None
        if self.left is not None:
            self.left -= len(piece.codes)
        if piece.reason:
            self.is_over = is_last or self.left == 0
            self._worst = worst_of(self._worst, piece.reason, "length" if self.is_over and not is_last else "stop")
        audio = seam(piece.audio, rate, self._begins and number > 0, ends and not self.is_over)
        pauses_s = before_s if self._begins else 0.0, behind_s if ends and not self.is_over else 0.0
        audio = np.pad(audio, [round(pause_s * rate) for pause_s in pauses_s])
        self._begins = ends
        return self._chunk(piece._replace(audio=audio), number, seed)

    def end(self, nothing: Piece) -> Chunk:
        """An empty last chunk, where the passage before it was not known to be the last."""
        self.is_over = True
        return self._chunk(nothing, len(self.account.lengths) - 1, self.account.job.seed)

    def _chunk(self, piece: Piece, number: int, seed: int) -> Chunk:
        stats = self.account.add(piece, number, seed, len(piece.audio))
        reason = self._worst if self.is_over else None
        return Chunk(piece.audio, piece.codes, self.is_over, reason, stats, self.account.tally.take_depths())


def worst_of(*reasons: str) -> str:
    """Why a text ended, from why its passages did."""
    return max(reasons, key=("stop", "silence", "length").index)


def seam(audio: np.ndarray, sample_rate: int, fade_in: bool, fade_out: bool) -> np.ndarray:
    """The samples with faded ends where asked."""
    ramp = np.linspace(0, 1, round(SEAM_S * sample_rate), dtype=np.float32)
    if fade_in:
        audio[: len(ramp)] *= ramp
    if fade_out:
        audio[-len(ramp) :] *= ramp[::-1]
    return audio
