"""Reading a text aloud: from what to say and how to chunks of codes and samples, on the owner thread."""

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from .cloned_voice import ClonedVoice
from .model import Qwen3TTS
from .prompt import Voice, build_prompt, embed_prompt
from .sampling import Sampling
from .spec_decode.drafter import Drafter
from .spec_decode.stats import Stats
from .speech_decoder.decoder import BLOCK_FRAMES
from .speech_decoder.layers import State
from .text import longest_speech_s
from .utterance import GenerationError, Steps, Utterance


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: audio [S] float32 at 24 kHz, codes [T, 16] int32, and on the last one the reason.

    depths: [T, 16] int32, how many codes ahead each code was drafted; 0 where the decoder chose it itself.
    """

    audio: np.ndarray
    codes: np.ndarray
    is_final: bool
    finish_reason: str | None
    stats: Stats
    depths: np.ndarray


@dataclass(frozen=True)
class Job:
    """What to say and how, checked: see ``Engine.stream``."""

    text: str
    voice: Voice
    seed: int
    decode: str
    sampling: Sampling
    text_feed: str
    chunk_frames: int


class Reader:
    """Reads aloud with one model. Belongs to the owner thread, where all of it runs."""

    def __init__(
        self, model: Qwen3TTS, wrap: Callable[[Callable], Callable], drafter: Drafter | None, num_nodes: int
    ) -> None:
        self._model, self._wrap, self._drafter, self._num_nodes = model, wrap, drafter, num_nodes
        self._steps: dict[Any, Steps] = {}
        self._speech_step = wrap(model.speech_decoder.step)
        self._states: WeakKeyDictionary[ClonedVoice, State] = WeakKeyDictionary()

    def read(self, job: Job) -> Generator[Chunk, None, None]:
        """The speech of a job, chunk by chunk; requests that are read by turns do not touch each other."""
        start = time.perf_counter()
        model, sampling, chunk_frames = self._model, job.sampling, job.chunk_frames
        frame_rate_hz = model.config.frame_rate_hz
        if sampling.max_frames is None:
            needed = math.ceil(longest_speech_s(job.text) * frame_rate_hz)
            sampling = replace(sampling, max_frames=min(needed, model.max_frames))
        prompt = build_prompt(model.config, model.tokenizer, job.text, job.voice, job.text_feed)
        prefill, trailing = embed_prompt(prompt, model)
        utterance = Utterance(self.steps_for(sampling, job.decode), prefill, trailing, sampling, job.seed)
        frames, count = utterance.frames(), utterance.tally.counts
        stats = Stats(job.seed, job.decode, 0, frame_rate_hz, 0.0, 0.0, 0.0, **count())
        state, rows, reason = self._state_before(job.voice.clone), [], None
        while not reason:
            row, reason = next(frames)
            rows.append(row)
            if len(rows) < chunk_frames and not reason:
                continue
            begin = time.perf_counter()
            audio, state = self._speak_rows(rows, chunk_frames, state, stats.frames)
            now = time.perf_counter()
            stats = replace(
                stats,
                frames=stats.frames + len(rows),
                total_s=now - start,
                speech_s=stats.speech_s + now - begin,
                time_to_first_audio_s=stats.time_to_first_audio_s or now - start,
                **count(),
            )
            yield Chunk(audio, np.stack(rows), reason is not None, reason, stats, utterance.tally.take_depths())
            rows = []
        mx.clear_cache()  # once per utterance: buffers of lengths that may never come again

    def steps_for(self, sampling: Sampling, decode: str) -> Steps:
        """The compiled calls for this form of sampling, made once."""
        key = (sampling.first.form, sampling.rest.form, decode)
        if key not in self._steps:
            drafter, num_nodes = (self._drafter, self._num_nodes) if decode == "spec" else (None, 1)
            if drafter and num_nodes == 1:  # it does not pay, and is asked for
                num_nodes = drafter.facts["num_nodes"]
            self._steps[key] = Steps(self._model, sampling, self._wrap, drafter=drafter, num_nodes=num_nodes)
        return self._steps[key]

    def _state_before(self, clone: ClonedVoice | None) -> State:
        """The SpeechDecoder's state before the first frame; behind a reference, whose own frames are not heard."""
        decoder = self._model.speech_decoder
        state = decoder.initial_state(1)
        if clone is None or clone.codes is None:
            return state
        if clone not in self._states:
            for start in range(0, len(clone.codes), BLOCK_FRAMES):
                _, state = decoder.step(mx.array(clone.codes[None, start : start + BLOCK_FRAMES]), state)
                mx.eval(state)  # a block at a time, or the graphs of all of them would be held at once
            self._states[clone] = state
        return self._states[clone]

    def _speak_rows(self, rows: list[np.ndarray], chunk_frames: int, state: Any, frame: int) -> tuple[np.ndarray, Any]:
        """Audio of the next frames. A short last chunk is padded to the compiled shape: the decoder is causal."""
        codes = np.stack(rows)
        padded = np.pad(codes, [(0, chunk_frames - len(rows)), (0, 0)])
        audio, state = self._speech_step(mx.array(padded[None]), state)
        samples = np.array(audio[0, : len(rows) * self._model.config.speech_decoder.samples_per_frame])  # the caller's
        if not np.isfinite(samples).all():
            raise GenerationError(f"audio from frame {frame} on is not finite")
        return samples, state
