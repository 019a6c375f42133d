"""The frames of one text: what one frame leaves for the next, and the compiled calls between them.

A frame costs two calls: ``decode`` (hidden and code 0 -> 16 codes) and ``advance`` (the codes and the next text
embedding -> the next hidden, code 0 and noise).
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .cache import KVCache, grow, round_up
from .model import Qwen3TTS
from .sampling import Sampling, choose, first_code_scores, frame_noise


class GenerationError(RuntimeError):
    """The model produced something that is no speech, such as a value that is not finite."""


class FrameState(NamedTuple):
    """What one frame leaves for the next, all on the device: the frame hidden and code 0 are already chosen."""

    hidden: mx.array  # [B, D]
    code0: mx.array  # [B] int32; -1 where the hidden was not finite
    noise: mx.array  # [B, 15, V]
    seen: mx.array  # [B, V] codes of codebook 0 so far
    cache: KVCache


class Request(NamedTuple):
    """What stays the same through a text."""

    seed: mx.array  # [B] uint32
    knobs: mx.array  # of codebook 0, see sampling.Choice
    penalty: mx.array  # [] float32
    num_pads: mx.array  # [B] int32 padding rows in front of the prompt


class Steps:
    """The calls of one model for one form of sampling; ``wrap`` is ``mx.compile``, or the identity for the oracle."""

    def __init__(self, model: Qwen3TTS, sampling: Sampling, wrap: Callable[[Callable], Callable] = mx.compile) -> None:
        self.model = model
        self.first_form, self.rest_form = sampling.first.form, sampling.rest.form
        ids = model.config.code_decoder
        index = mx.arange(ids.vocab_size)
        self.eos = ids.codec_eos_token_id
        self.allowed = (index < ids.num_codes) | (index == self.eos)
        self.choose_first = wrap(self._choose_first)
        self.decode = wrap(self._decode)
        self.advance = wrap(self._advance)

    def _choose_first(
        self, hidden: mx.array, seen: mx.array, frame: mx.array, request: Request
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Code 0 [B], the noise of codes 1..15 [B, 15, V] and the codes seen so far [B, V]."""
        request = Request(*request)
        config = self.model.config
        num_rest = (self.model.multi_code_decoder.num_codes, config.multi_code_decoder.vocab_size)
        rows = [frame_noise(seed, frame, config.code_decoder.vocab_size, num_rest) for seed in request.seed]
        logits = self.model.code_decoder.codec_head(hidden)
        scores = first_code_scores(logits, seen, frame, self.allowed, self.eos, request.penalty)
        code = choose(scores, mx.stack([row[0] for row in rows]), self.first_form, request.knobs)
        seen = seen | (mx.arange(seen.shape[1]) == code[:, None])
        finite = mx.isfinite(logits.astype(mx.float32)).all(axis=-1)
        return mx.where(finite, code, -1), mx.stack([row[1] for row in rows]), seen

    def _decode(self, hidden: mx.array, code0: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """The codes of a frame [B, 16] by plain decoding."""
        first = self.model.code_decoder.embed_codes(code0[:, None])[:, 0]
        rest = self.model.multi_code_decoder.decode_frame(hidden, first, noise, self.rest_form, knobs)
        return mx.concatenate([code0[:, None], rest], axis=1)

    def _advance(
        self, codes: mx.array, text: mx.array, past: tuple[mx.array, KVCache], frame: mx.array, request: Request
    ) -> tuple[mx.array, mx.array, mx.array, mx.array, KVCache]:
        """FrameState before ``frame`` from the codes of the frame before it and the text row [1, D] between.

        past: the codes seen and the cache; they are replaced by the results and may be reused in place.
        """
        seen, cache = past
        x = self.model.embed_frame(codes) + text
        hidden, cache = self.model.code_decoder(x[:, None], KVCache(*cache), Request(*request).num_pads)
        code0, noise, seen = self._choose_first(hidden[:, -1], seen, frame, request)
        return hidden[:, -1], code0, noise, seen, cache


class Utterance:
    """The frames of one text, one after another."""

    ahead = 1  # plain decoding needs nothing from the host between frames

    def __init__(self, steps: Steps, prefill: mx.array, trailing: mx.array, sampling: Sampling, seed: int):
        self.steps, self.trailing = steps, trailing
        self.max_frames, self.knobs = sampling.max_frames, sampling.rest.knobs
        self.request = Request(
            seed=mx.array([seed], dtype=mx.uint32),
            knobs=sampling.first.knobs,
            penalty=mx.array(sampling.repetition_penalty),
            num_pads=mx.zeros((1,), dtype=mx.int32),
        )
        self.num_slots = prefill.shape[1]
        decoder = steps.model.code_decoder
        cache = decoder.new_cache(1, self.num_slots + 1, prefill.dtype)
        hidden, cache = decoder(prefill, cache, self.request.num_pads)
        seen = mx.zeros((1, steps.allowed.size), dtype=mx.bool_)
        code0, noise, seen = steps.choose_first(hidden[:, -1], seen, mx.array(0, dtype=mx.uint32), self.request)
        self.state = FrameState(hidden[:, -1], code0, noise, seen, cache)

    def _enqueue(self, frame: int) -> tuple[mx.array, mx.array]:
        """Start the work of ``frame`` and of choosing what follows; nothing here waits for the device.

        Returns the frame's codes [1, 16] and code 0 of the next frame [1].
        """
        codes = self.steps.decode(self.state.hidden, self.state.code0, self.state.noise, self.knobs)
        self.num_slots += 1
        if self.num_slots > self.state.cache.capacity:
            self.state = self.state._replace(cache=grow(self.state.cache, round_up(self.num_slots)))
        # no other name holds the old cache when it is evaluated, so its buffers are updated in place
        self.state = FrameState(
            *self.steps.advance(
                codes,
                self.trailing[min(frame, len(self.trailing) - 1)][None],
                (self.state.seen, self.state.cache),
                mx.array(frame + 1, dtype=mx.uint32),
                self.request,
            )
        )
        mx.async_eval(codes, self.state)
        return codes, self.state.code0

    def frames(self) -> Iterator[tuple[np.ndarray, str | None]]:
        """Codes [16] int32 of each frame, and why it is the last one: "stop", "length" or None.

        ``ahead`` frames are enqueued before a frame is read, so the device does not wait for the host; the price
        is that much work thrown away at the end.
        """
        todo = iter(range(self.max_frames))
        flight = deque(self._enqueue(frame) for frame in islice(todo, 1 + self.ahead))
        frame = 0
        while flight:
            codes, next_code0 = flight.popleft()
            row = np.array(codes[0])  # waits: the caller needs this frame
            code = int(np.array(next_code0)[0])  # the same wait: whether speech ends here decides what is done next
            if row.min() < 0 or code < 0:
                bad = frame + int(row.min() >= 0)
                raise GenerationError(f"logits of frame {bad} are not finite; try dtype='float32'")
            frame += 1
            reason = "stop" if code == self.steps.eos else "length" if frame == self.max_frames else None
            if not reason:
                flight.extend(self._enqueue(next_frame) for next_frame in islice(todo, 1))
            yield row, reason
            if reason:
                return
