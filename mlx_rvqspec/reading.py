"""Reading a text aloud: from what to say and how to chunks of codes and samples, on the owner thread."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from .cloned_voice import ClonedVoice
from .config import ModelConfig
from .guard import NUM_ATTEMPTS, Piece, SilenceWatch, Trimmer, attempt_seed
from .heads import Heads
from .model import Qwen3TTS
from .passages import Passage
from .prompt import Prompt, Voice, build_prompt
from .sampling import Sampling
from .spec_decode.drafter import Drafter
from .spec_decode.stats import Attempt, Stats, Tally
from .speech_decoder.decoder import BLOCK_FRAMES
from .speech_decoder.layers import State
from .text import longest_speech_s
from .utterance import Frame, GenerationError, Line, Steps, speak_line

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
    """How to read, checked: see ``Engine.stream``."""

    decode: str
    sampling: Sampling
    text_feed: str
    chunk_frames: int
    passage_s: float
    paragraph_pause_s: float
    on_runaway: str


@dataclass(frozen=True)
class Job:
    """What to say, and how."""

    passages: tuple[Passage, ...]
    voice: Voice
    seed: int
    how: How


Sound = Callable[[list[Frame], int, State, int], tuple[Piece, State]]  # see Reader._sound


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
            decode=self.job.how.decode,
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

    def chunk(self, piece: Piece, number: int, seed: int, audio: np.ndarray, finish_reason: str | None) -> Chunk:
        """The chunk of a piece of passage ``number`` as ``audio``; finish_reason: of all, if it is the last."""
        stats = self.add(piece, number, seed, len(audio))
        depths = self.tally.take_depths()
        return Chunk(audio, piece.codes, finish_reason is not None, finish_reason, stats, depths)

    def end(self, number: int, seed: int, frames: int, reason: str) -> None:
        """Note that a passage has been spoken with this seed."""
        self.attempts += (Attempt(number, seed, frames, reason),)


class Row:
    """One passage being spoken: its line, its frames as sound, and the watch that listens to it."""

    def __init__(self, line: Line, sound: Sound, state: State, chunk_frames: int, frame_rate_hz: float) -> None:
        self.line, self.watch = line, SilenceWatch(frame_rate_hz)
        self._sound, self._state, self._chunk_frames = sound, state, chunk_frames
        self._waiting: list[Frame] = []
        self._done = 0

    def add(self, frame: Frame) -> Piece | None:
        """The frames since the last piece, once there are enough of them or they end."""
        self._waiting.append(frame)
        if len(self._waiting) < self._chunk_frames and not frame.reason:
            return None
        piece, self._state = self._sound(self._waiting, self._chunk_frames, self._state, self._done)
        self._done, self._waiting = self._done + len(self._waiting), []
        return self.watch.judge(piece)


# Seed and pieces of passage ``number`` of a job, at most so many frames; None where the next is not ready.
Passages = Callable[[Job, int, Account, int | None], Iterator[tuple[int, Piece | None]]]


class Reader:
    """Reads aloud with one model. Belongs to the owner thread, where all of it runs."""

    def __init__(
        self,
        model: Qwen3TTS,
        wrap: Callable[[Callable], Callable],
        drafter: Drafter | None,
        num_nodes: int,
        adapt: bool,
        prompt_cache: str,
    ) -> None:
        self._model, self._wrap, self._drafter = model, wrap, drafter
        self._num_nodes, self._adapt = num_nodes, adapt
        self.config = model.config
        self._heads = Heads(model, prompt_cache)
        self._steps: dict[Any, Steps] = {}
        self._speech_step = wrap(model.speech_decoder.step)
        self._states: WeakKeyDictionary[ClonedVoice, State] = WeakKeyDictionary()

    def read(
        self, job: Job, passages: Passages | None = None, start: float | None = None
    ) -> Generator[Chunk | None, None, None]:
        """The speech of a job, chunk by chunk; None where the next is not ready, so that others get their turn.

        passages: where the pieces of each passage come from, if they have been made; start: since when it is at work.
        """
        account = Account(job, self.steps_for(job.how.sampling, job.how.decode).new_tally(), self._model.config, start)
        left, last, worst = job.how.sampling.max_frames, len(job.passages) - 1, "stop"
        for number, passage in enumerate(job.passages):
            begins = True
            for seed, piece in (passages or self._passage)(job, number, account, left):
                if piece is None:
                    yield None
                    continue
                left = None if left is None else left - len(piece.codes)
                is_final = piece.reason is not None and (number == last or left == 0)
                if piece.reason:
                    worst = worst_of(worst, piece.reason, "stop" if number == last or left != 0 else "length")
                pause_s = 0.0 if is_final or not piece.reason else passage.pause_s
                fades = begins and number > 0, bool(piece.reason) and number < last
                audio = seam(piece.audio, self._model.config.sample_rate, *fades, pause_s)
                yield account.chunk(piece, number, seed, audio, worst if is_final else None)
                begins = False
            if left == 0:
                break

    def _passage(
        self, job: Job, number: int, account: Account, max_frames: int | None
    ) -> Iterator[tuple[int, Piece | None]]:
        """The seed and the pieces of one passage that are to be heard, by the job's rule for runaways."""
        num_attempts = NUM_ATTEMPTS if job.how.on_runaway == "retry" else 1
        for attempt in range(num_attempts):
            seed, held = attempt_seed(job.seed, attempt), []
            row = self.row(job, number, seed, max_frames)
            pieces = self._pieces(job, row)
            for piece in map(Trimmer(row.watch).take, pieces) if job.how.on_runaway == "trim" else pieces:
                if job.how.on_runaway == "error" and piece and piece.reason not in (None, "stop"):
                    raise GenerationError(f"{runaway(piece.reason, job.passages[number].text)}; try another seed")
                if attempt + 1 < num_attempts:  # no one can unhear it: it waits until it has ended by itself
                    held.append(piece)
                    yield seed, None
                else:
                    yield seed, piece
            if not held:
                return
            if held[-1].reason == "stop":
                yield from ((seed, piece) for piece in held)
                return
            account.end(number, seed, sum(len(piece.codes) for piece in held), held[-1].reason)

    def row(self, job: Job, number: int, seed: int, max_frames: int | None) -> Row:
        """What it takes to speak passage ``number`` with one seed; max_frames: None for what its text can need."""
        model, text = self._model, job.passages[number].text
        if max_frames is None:
            max_frames = min(math.ceil(longest_speech_s(text) * model.config.frame_rate_hz), model.max_frames)
        prompt = build_prompt(model.config, model.tokenizer, text, job.voice, job.how.text_feed)
        return self._row(job, prompt, seed, max_frames)

    def feed_row(self, job: Job, first_id: int) -> Row:
        """The row of a passage of which nothing but its first token is known: the caller adds to what trails."""
        model = self._model
        prompt = build_prompt(model.config, model.tokenizer, "a", job.voice, "stream")
        prompt = replace(prompt, text_ids=[*prompt.text_ids[:-1], first_id], trailing_ids=[])
        row = self._row(job, prompt, job.seed, model.max_frames)
        row.line.trailing = row.line.trailing[:0]
        return row

    def embed_text(self, ids: list[int]) -> mx.array:
        """Rows [n, D] for ``Line.trailing``."""
        return self._model.code_decoder.embed_text(mx.array([ids]))[0]

    def _row(self, job: Job, prompt: Prompt, seed: int, max_frames: int) -> Row:
        model = self._model
        prefill, trailing, head = self._heads.embed(prompt)
        line = Line(prefill, trailing, seed, max_frames, head)
        return Row(
            line, self._sound, self._state_before(job.voice.clone), job.how.chunk_frames, model.config.frame_rate_hz
        )

    def _pieces(self, job: Job, row: Row) -> Iterator[Piece]:
        """The frames of a row, chunk by chunk, until they end or fall silent."""
        for frame in speak_line(self.steps_for(job.how.sampling, job.how.decode), row.line, job.how.sampling):
            piece = row.add(frame)
            if piece:
                yield piece
                if piece.reason:
                    return

    def steps_for(self, sampling: Sampling, decode: str) -> Steps:
        """The compiled calls for this form of sampling, made once."""
        key = (sampling.first.form, sampling.rest.form, decode)
        if key not in self._steps:
            drafter, num_nodes = (self._drafter, self._num_nodes) if decode == "spec" else (None, 1)
            if drafter and num_nodes == 1:  # it does not pay, and is asked for
                num_nodes = drafter.facts["num_nodes"]
            self._steps[key] = Steps(
                self._model, sampling, self._wrap, drafter=drafter, num_nodes=num_nodes, adapt=self._adapt
            )
        return self._steps[key]

    def _state_before(self, clone: ClonedVoice | None) -> State:
        """The SpeechDecoder's state before the first frame; behind a reference, whose own frames are not heard."""
        if clone is None or clone.codes is None:
            return self._model.speech_decoder.initial_state(1)
        codes = clone.codes
        if clone not in self._states:
            self._states[clone] = self._heads.behind(clone, lambda: self._state_after(codes))
        return self._states[clone]

    def _state_after(self, codes: np.ndarray) -> State:
        decoder = self._model.speech_decoder
        state = decoder.initial_state(1)
        for start in range(0, len(codes), BLOCK_FRAMES):
            _, state = decoder.step(mx.array(codes[None, start : start + BLOCK_FRAMES]), state)
            mx.eval(state)  # a block at a time, or the graphs of all of them would be held at once
        return state

    def _sound(self, frames: list[Frame], chunk_frames: int, state: Any, number: int) -> tuple[Piece, Any]:
        """The next frames, of which ``number`` is the first, as sound.

        A short last chunk is padded to the compiled shape: the decoder is causal.
        """
        begin = time.perf_counter()
        codes, origin = (np.stack(rows) for rows in zip(*((frame.codes, frame.origin) for frame in frames)))
        padded = np.pad(codes, [(0, chunk_frames - len(frames)), (0, 0)])
        audio, state = self._speech_step(mx.array(padded[None]), state)
        num_samples = len(frames) * self._model.config.speech_decoder.samples_per_frame
        samples = np.array(audio[0, :num_samples])  # waits: the caller's sound
        if not np.isfinite(samples).all():
            raise GenerationError(f"audio from frame {number} on is not finite")
        return Piece(codes, origin, samples, frames[-1].reason, time.perf_counter() - begin), state


def worst_of(*reasons: str) -> str:
    """Why a text ended, from why its passages did."""
    return max(reasons, key=("stop", "silence", "length").index)


def runaway(reason: str | None, text: str) -> str:
    """What happened to a passage, for people."""
    return f"{text if len(text) < 40 else text[:37] + '...'!r} did not end by itself but by {reason}"


def seam(audio: np.ndarray, sample_rate: int, fade_in: bool, fade_out: bool, pause_s: float) -> np.ndarray:
    """The samples with faded ends where asked, and a pause behind them."""
    ramp = np.linspace(0, 1, round(SEAM_S * sample_rate), dtype=np.float32)
    if fade_in:
        audio[: len(ramp)] *= ramp
    if fade_out:
        audio[-len(ramp) :] *= ramp[::-1]
    return np.pad(audio, (0, round(pause_s * sample_rate))) if pause_s else audio
