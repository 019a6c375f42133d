"""The time of one frame by stage: codes 1..15 plainly and by speculation, code 0, and the samples.

All sides decode the same frames in turns, in one process; the codes must be equal.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..fit import collect
from ..model import Qwen3TTS
from ..spec_decode import frames as drivers
from ..spec_decode.drafter import Drafter
from ..spec_decode.pace import Pace
from ..spec_decode.rounds import Decoded, Rounds
from ..utterance import FrameState, Request, Steps
from .harness import interleave, num_launches, peak_gb_per_s

Inputs = tuple[mx.array, mx.array, mx.array, mx.array]
Wrap = Callable[[Callable], Callable]
LEARNING = 400  # frames decoded with rows that adapt before they are timed
ROOM = 64  # slots for the calls that are timed
CHUNKS = (1, 4)  # frames handed to the SpeechDecoder at a time


def as_it_is(function: Callable) -> Callable:
    return function


WRAPS: dict[str, Wrap] = {"compiled": mx.compile, "uncompiled": as_it_is}


@dataclass(frozen=True)
class Plan:
    """What is timed: graphs by how they run, the one whose bandwidth is told first; rows per round; how often."""

    hows: tuple[str, ...]
    sizes: tuple[int, ...]
    num_frames: int
    repeats: int


class Reads:
    """Stands for numpy in ``spec_decode.frames`` to count the host's reads, each of which waits for the device."""

    def __init__(self) -> None:
        self.count = 0

    def array(self, x: mx.array) -> np.ndarray:
        self.count += 1
        return np.array(x)


def spoken_frames(model: Qwen3TTS, texts: list[str], num_frames: int, seed: int) -> collect.Frames:
    """``num_frames`` frames from all of what the model says of these texts."""
    spoken = collect.collect(model, texts, 24 * num_frames, seed=seed)
    rows = np.linspace(0, len(spoken) - 1, num_frames).astype(int).tolist()
    return spoken.take(mx.array(rows))


def inputs_of(model: Qwen3TTS, frames: collect.Frames) -> list[Inputs]:
    """What decoding each frame starts from: hidden, code 0, its embedding, the noise."""
    noise = collect.noise_of(model, frames.keys)
    rows = [slice(i, i + 1) for i in range(len(frames))]
    inputs = [(frames.hidden[r], frames.codes[r, 0], frames.embedded[r, 0], noise[r]) for r in rows]
    mx.eval(inputs)  # making them is not what is measured
    return inputs


def plain_side(model: Qwen3TTS, wrap: Wrap) -> Callable[..., mx.array]:
    """Codes 1..15 of a frame, a code at a time."""
    decoder, choice = model.multi_code_decoder, model.sampling.rest

    def plain(hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array) -> mx.array:
        return decoder.decode_frame(hidden, first, noise, choice.form, choice.knobs)

    return wrap(plain)


def spec_side(model: Qwen3TTS, drafter: Drafter, num_nodes: int, wrap: Wrap) -> tuple[Rounds, Callable[..., Decoded]]:
    """The rounds of a frame, and the call that runs all of them."""
    pair, form = drafter.trees[num_nodes], model.sampling.rest.form
    proposer = drafter.proposer(model.multi_code_decoder, form, *pair)
    rounds = Rounds(model.multi_code_decoder, proposer, *pair, form, wrap=wrap)

    def decode(hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array) -> Decoded:
        return drivers.ahead(rounds, hidden, code0, first, noise, model.sampling.rest.knobs)

    return rounds, decode


class Adaptive:
    """Decodes each frame with as many rows as ``Pace`` picks, which learns from how long it took, as ``speak`` does."""

    def __init__(self, decodes: dict[int, Callable[..., Decoded]], begin_with: int) -> None:
        self.decodes, self.pace = decodes, Pace(decodes, begin_with if begin_with in decodes else min(decodes))

    def __call__(self, *frame: mx.array) -> Decoded:
        size, begin = self.pace.pick(), time.perf_counter()
        decoded = self.decodes[size](*frame)
        mx.eval(decoded)  # how long the frame took is known when it is done
        self.pace.learn(size, time.perf_counter() - begin)
        return decoded


def time_codes(
    model: Qwen3TTS, drafter: Drafter | None, frames: collect.Frames, plan: Plan
) -> dict[str, dict[str, float]]:
    """Milliseconds a frame takes from code 0 to code 15 on every side, plain decoding first.

    Where there are several sizes, also with rows that adapt, and ``num_nodes``, what they came to.
    """
    inputs = inputs_of(model, frames)
    sides: dict[str, Callable] = {f"plain {how}": plain_side(model, WRAPS[how]) for how in plan.hows}
    for num_nodes in plan.sizes:
        assert drafter, "sizes are those of a drafter"
        sides |= {f"spec {num_nodes} {how}": spec_side(model, drafter, num_nodes, WRAPS[how])[1] for how in plan.hows}
    if drafter and len(plan.sizes) > 1:
        for how in plan.hows:
            fixed = {size: sides[f"spec {size} {how}"] for size in plan.sizes}
            sides[f"adaptive {how}"] = Adaptive(fixed, drafter.facts["num_nodes"])
    for name, decode in sides.items():
        for row, frame in enumerate(inputs):
            found = decode(*frame)
            codes = found if name.startswith("plain") else found.codes[:, 1:]
            equal = mx.array_equal(codes, frames.codes[row : row + 1, 1:])
            assert equal or model.dtype != mx.float32, f"{name}: other codes than plain decoding"

    adaptive = {name: decode for name, decode in sides.items() if isinstance(decode, Adaptive)}
    for decode in adaptive.values():
        for number in range(LEARNING):
            decode(*inputs[number % len(inputs)])
    runs = {name: lambda decode=decode: one_by_one(decode, inputs) for name, decode in sides.items()}
    times = interleave(runs, plan.repeats)
    found = {name: _per(measured, len(inputs)) for name, measured in times.items()}
    for name, decode in adaptive.items():
        found[name]["num_nodes"] = decode.pace.best
    return found


def one_by_one(decode: Callable, inputs: Sequence[Inputs]) -> list[Any]:
    """Decode frames as speech does, where the next one begins with the codes of the one before.

    Evaluated together they would share reads of the weights, and plain decoding would look faster than it is.
    """
    for frame in inputs:
        mx.eval(decode(*frame))  # the frame is what is timed
    return []


def _per(time_ms: dict[str, float], number: int) -> dict[str, float]:
    """A time divided, its ratio left alone."""
    return {key: value / number if key.endswith("_ms") else value for key, value in time_ms.items()}


def time_stages(model: Qwen3TTS, frames: collect.Frames, plan: Plan) -> dict[str, dict[str, float]]:
    """Milliseconds a frame takes in the two other decoders: code 0 of the next frame, and the samples by chunk."""
    sides: dict[str, Callable] = {}
    for how in plan.hows:
        sides[f"code_decoder {how}"] = Advance(model, frames.codes[:1], WRAPS[how])
    for num_frames in CHUNKS:
        codes = mx.broadcast_to(frames.codes[:1, None], (1, num_frames, frames.codes.shape[1]))
        for how in plan.hows:
            step, state = WRAPS[how](model.speech_decoder.step), model.speech_decoder.initial_state(1)
            name = f"speech_decoder chunk {num_frames} {how}"
            sides[name] = lambda step=step, codes=codes, state=state: step(codes, state)
    times = interleave(sides, plan.repeats)
    return {name: _per(measured, int(name.split()[2]) if "chunk" in name else 1) for name, measured in times.items()}


class Advance:
    """A call that chooses code 0 of the frame behind ``codes`` [1, 16], and the next one, and so on.

    at: how many slots are cached to begin with. Like a run it keeps nothing of the state before, so the cache is
    updated in place.
    """

    def __init__(self, model: Qwen3TTS, codes: mx.array, wrap: Wrap, at: int = 100) -> None:
        self.steps, self.codes = Steps(model, model.sampling, wrap), codes
        self.request = Request(
            seed=mx.array([0], dtype=mx.uint32),
            knobs=model.sampling.first.knobs,
            penalty=mx.array(model.sampling.repetition_penalty),
            num_pads=mx.array([0], dtype=mx.int32),
        )
        self.text = mx.zeros((1, model.multi_code_decoder.input_size), dtype=model.dtype)
        self.frame = mx.array(1, dtype=mx.uint32)
        cache = model.code_decoder.new_cache(1, at + ROOM, model.dtype)._replace(num_cached=mx.array(at))
        seen = mx.zeros((1, self.steps.allowed.size), dtype=mx.bool_)
        self.state = FrameState(self.text, codes[:, 0], self.text, seen, cache)
        mx.eval(self.state)  # making it is not what is measured

    def __call__(self) -> FrameState:
        past = self.state.seen, self.state.cache
        self.state = FrameState(*self.steps.advance(self.codes, self.text, past, self.frame, self.request))
        return self.state


def count_launches(model: Qwen3TTS, frames: collect.Frames) -> dict[str, dict[str, int]]:
    """Primitives that compute in the graphs of a frame, compiled and not: launches on a GPU, if nothing is fused."""
    found: dict[str, dict[str, int]] = {}
    inputs = inputs_of(model, frames.take(slice(0, 1)))[0]
    for how, wrap in WRAPS.items():
        step, state = wrap(model.speech_decoder.step), model.speech_decoder.initial_state(1)
        found[how] = {
            "code_decoder": num_launches(Advance(model, frames.codes[:1], wrap)()),
            "multi_code_decoder plain": num_launches(plain_side(model, wrap)(*inputs)),
            "speech_decoder": num_launches(step(frames.codes[:1, None], state)),
        }
    return found


def count_rounds(model: Qwen3TTS, drafter: Drafter, num_nodes: int, frames: collect.Frames) -> dict[str, float]:
    """Per frame: rounds, launches of the uncompiled and of the compiled graphs, and the host's reads."""
    inputs, knobs = inputs_of(model, frames), model.sampling.rest.knobs
    rounds, decode = spec_side(model, drafter, num_nodes, as_it_is)
    reads, np_module = Reads(), drivers.np
    drivers.np = reads  # type: ignore[assignment]
    try:
        states = [decode(*frame) for frame in inputs]
    finally:
        drivers.np = np_module
    depth = [rounds.depth[np.array(state.origin)[0, 1:]] for state in states]
    mean_rounds = sum(int((d == 0).sum() + (d[-1] > 0)) for d in depth) / len(inputs)
    result = {"rounds": mean_rounds, "codes_per_round": depth[0].size / mean_rounds}
    for how, wrap in WRAPS.items():
        rounds, _ = spec_side(model, drafter, num_nodes, wrap)
        hidden, code0, first, noise = inputs[0]
        state = rounds.first(hidden, code0, first, noise, knobs)
        num_first = num_launches(state)
        mx.eval(state)
        per_round = num_launches(rounds.next(state, noise, knobs))
        result |= {f"launches_{how}": num_first + per_round * (mean_rounds - 1), f"launches_per_round_{how}": per_round}
    return result | {"host_reads": reads.count / len(inputs)}


def bytes_read(model: Qwen3TTS) -> dict[str, int]:
    """Weights that a call has to read at least: of the MultiCodeDecoder its layers and one head, of the others all."""

    def of(module: Any) -> int:
        return sum(value.nbytes for _, value in cast(Any, tree_flatten(module.parameters())))

    code, multi = model.code_decoder, model.multi_code_decoder
    return {
        "code_decoder": sum(map(of, code.model.layers)) + of(code.codec_head),
        "multi_code_decoder": sum(map(of, multi.model.layers)) + of(multi.lm_head) // multi.num_codes,
        "speech_decoder": of(model.speech_decoder) - of(model.speech_decoder.quantizer),
    }


def frame_suite(model: Qwen3TTS, drafter: Drafter | None, texts: list[str], plan: Plan, *, seed: int) -> dict[str, Any]:
    """What a frame costs here: times by stage, launches, host reads, bytes, and the bandwidth they amount to."""
    frames = spoken_frames(model, texts, plan.num_frames, seed)
    result: dict[str, Any] = {"plan": asdict(plan)}
    result["codes_ms"] = time_codes(model, drafter, frames, plan)
    result["stages_ms"] = time_stages(model, frames, plan)
    result["launches"] = count_launches(model, frames)
    result["spec"] = {str(n): count_rounds(model, drafter, n, frames) for n in plan.sizes if drafter}
    result["bytes_per_call"] = bytes_read(model)
    result["peak_gb_per_s"] = peak_gb_per_s()
    result["gb_per_s"] = achieved(result, plan.hows[0], model.multi_code_decoder.num_codes)
    return result


def achieved(result: dict[str, Any], how: str, num_codes: int) -> dict[str, float]:
    """Bytes over time of the calls that were timed, in GB/s: how near the machine's peak they come."""
    size, codes, stages = result["bytes_per_call"], result["codes_ms"], result["stages_ms"]
    calls = {f"code_decoder {how}": (size["code_decoder"], stages[f"code_decoder {how}"]["median_ms"], 1)}
    calls[f"plain {how}"] = (size["multi_code_decoder"], codes[f"plain {how}"]["median_ms"], num_codes)
    for n, measured in result["spec"].items():
        name = f"spec {n} {how}"
        calls[name] = (size["multi_code_decoder"], codes[name]["median_ms"], measured["rounds"])
    name = f"speech_decoder chunk 1 {how}"
    calls[name] = (size["speech_decoder"], stages[name]["median_ms"], 1)
    return {name: number * num_bytes / ms / 1e6 for name, (num_bytes, ms, number) in calls.items()}
