"""How the cost of a frame changes with the length of the text, the number of texts at once and the chunk."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..fit import collect
from ..model import Qwen3TTS
from .frame import Advance, Wrap, inputs_of, plain_side
from .harness import interleave

SLOTS = (100, 400, 900, 1900)  # cached; the capacity grows by blocks of 256
BATCHES = (1, 2, 4, 8)
CHUNKS = (1, 2, 4, 8, 16)


def scaling_suite(
    model: Qwen3TTS, frames: collect.Frames, wrap: Wrap, *, repeats: int
) -> dict[str, dict[int, dict[str, float]]]:
    """Milliseconds by slots cached (CodeDecoder), texts at once (codes 1..15) and frames in a chunk (SpeechDecoder)."""
    slots: dict[int, Callable[[], Any]] = {}
    for at in SLOTS:
        if at < model.config.code_decoder.max_position_embeddings:
            slots[at] = Advance(model, frames.codes[:1], wrap, at)
    hidden, code0, first, noise = inputs_of(model, frames.take(slice(0, 1)))[0]
    decode, batches = plain_side(model, wrap), {}
    for size in BATCHES:
        rows = [mx.repeat(x, size, axis=0) for x in (hidden, code0, first, noise)]
        mx.eval(rows)  # making them is not what is measured
        batches[size] = lambda rows=rows: decode(*rows)
    step, state, chunks = wrap(model.speech_decoder.step), model.speech_decoder.initial_state(1), {}
    for size in CHUNKS:
        codes = mx.broadcast_to(frames.codes[:1, None], (1, size, frames.codes.shape[1]))
        chunks[size] = lambda codes=codes: step(codes, state)
    return {
        "code_decoder_by_slots": _by_size(slots, repeats),
        "codes_by_batch": _by_size(batches, repeats),
        "speech_decoder_by_chunk": _by_size(chunks, repeats),
    }


def _by_size(sides: dict[int, Callable[[], Any]], repeats: int) -> dict[int, dict[str, float]]:
    times = interleave({str(size): side for size, side in sides.items()}, repeats)
    return {int(size): {key: value for key, value in time.items() if key != "speedup"} for size, time in times.items()}
