"""Reading a text aloud: from what to say and how to chunks of codes and samples, on the owner thread."""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from .cloned_voice import ClonedVoice
from .delivery import AS_IT_PAYS, Account, Chunk, Delivery, Job
from .guard import NUM_ATTEMPTS, Piece, SilenceWatch, Trimmer, attempt_seed
from .heads import Heads
from .model import Qwen3TTS
from .passages import Passage
from .prompt import Prompt, as_read, build_prompt
from .sampling import Sampling
from .spec_decode.drafter import Drafter
from .speech_decoder.decoder import BLOCK_FRAMES
from .speech_decoder.layers import State
from .text import longest_speech_s
from .utterance import Frame, GenerationError, Line, Steps, speak_line


class Context:
    """Passages that have been spoken and stay in the prompt of the next: the last ``carry`` that ended by themselves.

    A runaway empties it: what has gone wrong once is no good example. codes: [T, 16], None where there are none.
    """

    def __init__(self, carry: int) -> None:
        self._kept: deque[tuple[Passage, np.ndarray]] = deque(maxlen=carry)

    @property
    def codes(self) -> np.ndarray | None:
        return np.concatenate([codes for _, codes in self._kept]) if self._kept else None

    def text_with(self, passage: Passage) -> str:
        """The text of the context and of the passage behind it, as if they were one passage."""
        text, end = "", 0
        for part in (*(kept for kept, _ in self._kept), passage):
            text, end = text + (" " if text and part.begin > end else "") + part.text, part.end
        return text

    def add(self, passage: Passage, codes: np.ndarray, reason: str | None) -> None:
        """Take in a passage that has been spoken and why it ended."""
        if reason != "stop":
            self._kept.clear()
        else:
            self._kept.append((passage, codes))


Sound = Callable[[list[Frame], int, State, int], tuple[Piece, State]]  # see Reader._sound


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
Passages = Callable[[Job, int, Account, Context, int | None], Iterator[tuple[int, Piece | None]]]


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
        delivery, last, context = self.delivery(job, start), len(job.passages) - 1, Context(job.how.carry)
        for number, passage in enumerate(job.passages):
            codes: list[np.ndarray] = []
            for seed, piece in (passages or self._passage)(job, number, delivery.account, context, delivery.left):
                if piece is None:
                    yield None
                    continue
                yield delivery.chunk(piece, number, seed, number == last, behind_s=passage.pause_s)
                codes.append(piece.codes)
                if piece.reason:
                    context.add(passage, np.concatenate(codes), piece.reason)
            if delivery.is_over:
                break

    def delivery(self, job: Job, start: float | None = None) -> Delivery:
        """Of the chunks of a job; start: since when it is at work."""
        tally = self.steps_for(job.how.sampling, job.how.decode).new_tally()
        return Delivery(Account(job, tally, self.config, start))

    def _passage(
        self, job: Job, number: int, account: Account, context: Context, max_frames: int | None
    ) -> Iterator[tuple[int, Piece | None]]:
        """The seed and the pieces of one passage that are to be heard, by the job's rule for runaways."""
        num_attempts = NUM_ATTEMPTS if job.how.on_runaway == "retry" else 1
        for attempt in range(num_attempts):
            seed, held = attempt_seed(job.seed, attempt), []
            row = self.row(job, number, seed, max_frames, context)
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

    def row(self, job: Job, number: int, seed: int, max_frames: int | None, context: Context) -> Row:
        """What it takes to speak passage ``number`` with one seed; max_frames: None for what its text can need."""
        model, passage = self._model, job.passages[number]
        if max_frames is None:
            read = as_read(model.config, passage.text)
            max_frames = math.ceil(longest_speech_s(read) * model.config.frame_rate_hz)
            max_frames = min(max_frames, model.max_frames)
        text, codes = context.text_with(passage), context.codes
        prompt = build_prompt(model.config, model.tokenizer, text, job.voice, job.how.text_feed, codes)
        return self._row(job, prompt, seed, max_frames, codes)

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

    def _row(self, job: Job, prompt: Prompt, seed: int, max_frames: int, carried: np.ndarray | None = None) -> Row:
        model = self._model
        prefill, trailing, head = self._heads.embed(prompt)
        line = Line(prefill, trailing, seed, max_frames, head)
        state = self._state_before(job.voice.clone)
        if carried is not None:  # as far back as it looks
            state = self._state_behind(carried[-model.config.speech_decoder.sliding_window :], state)
        return Row(line, self._sound, state, job.how.chunk_frames, model.config.frame_rate_hz)

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
            drafter, num_nodes = (None, 1) if decode == "plain" else (self._drafter, self._num_nodes)
            if drafter and num_nodes == 1:  # it does not pay, and is asked for
                num_nodes = drafter.facts["num_nodes"]
            self._steps[key] = Steps(
                self._model,
                sampling,
                self._wrap,
                drafter=drafter,
                num_nodes=num_nodes,
                adapt=self._adapt,
                may_be_plain=decode == AS_IT_PAYS,
            )
        return self._steps[key]

    def _state_before(self, clone: ClonedVoice | None) -> State:
        """The SpeechDecoder's state before the first frame; behind a reference, whose own frames are not heard."""
        if clone is None or clone.codes is None:
            return self._model.speech_decoder.initial_state(1)
        codes = clone.codes
        if clone not in self._states:
            start = self._model.speech_decoder.initial_state(1)
            self._states[clone] = self._heads.behind(clone, lambda: self._state_behind(codes, start))
        return self._states[clone]

    def _state_behind(self, codes: np.ndarray, state: State) -> State:
        """The SpeechDecoder's state when it has also decoded codes [T, 16]."""
        for start in range(0, len(codes), BLOCK_FRAMES):
            _, state = self._model.speech_decoder.step(mx.array(codes[None, start : start + BLOCK_FRAMES]), state)
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


def runaway(reason: str | None, text: str) -> str:
    """What happened to a passage, for people."""
    return f"{text if len(text) < 40 else text[:37] + '...'!r} did not end by itself but by {reason}"
