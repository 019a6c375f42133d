"""What a frame costs on this machine, and so: rows a round, by time against expected codes, and frames a chunk."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import mlx.core as mx
import numpy as np

from ..bench.frame import Advance, as_it_is
from ..bench.harness import interleave, peak_gb_per_s
from ..device_profile import Profile, smallest_chunk, write_profile
from ..model import Qwen3TTS
from ..spec_decode.drafter import Drafter, device_name
from ..spec_decode.frames import ahead
from ..spec_decode.rounds import Rounds
from .collect import Frames, noise_of

Wrap = Callable[[Callable], Callable]
CHUNKS = (1, 2, 4, 8, 16)  # frames in a SpeechDecoder call


@dataclass(frozen=True)
class Cost:
    """A round of ``num_nodes`` rows on this machine; 1 is plain decoding, a code at a time."""

    num_nodes: int
    codes_per_round: float
    round_s: float

    @property
    def code_s(self) -> float:
        return self.round_s / self.codes_per_round


def measure(
    model: Qwen3TTS, drafter: Drafter, frames: Frames, wrap: Wrap, *, num_frames: int = 4, repeats: int = 5
) -> list[Cost]:
    """The cost of every size the drafter has trees for, plain decoding first.

    The sizes take turns, so that what else the machine does falls on all of them. Their frames need different
    numbers of rounds, so the time of one round is what is measured.
    """
    batches = [frames.take(slice(i, i + 1)) for i in range(num_frames)]
    inputs = [(b.hidden, b.codes[:, 0], b.embedded[:, 0], noise_of(model, b.keys)) for b in batches]
    mx.eval(inputs)  # making them is not what is measured
    sides = {1: _plain(model, wrap)}
    for num_nodes, (tree, first_tree) in drafter.trees.items():
        if num_nodes > 1:
            form = model.sampling.rest.form
            proposer = drafter.proposer(model.multi_code_decoder, form, tree, first_tree)
            sides[num_nodes] = _spec(
                Rounds(model.multi_code_decoder, proposer, tree, first_tree, form, wrap=wrap), model
            )
    times: dict[int, list[float]] = {num_nodes: [] for num_nodes in sides}
    for _ in range(repeats + 1):  # the first one warms up
        for num_nodes, decode in sides.items():
            begin = time.perf_counter()
            num_rounds = sum(decode(*frame) for frame in inputs)
            times[num_nodes].append((time.perf_counter() - begin) / num_rounds)
    return [Cost(num_nodes, expected(drafter, num_nodes), median(times[num_nodes][1:])) for num_nodes in sides]


def expected(drafter: Drafter, num_nodes: int) -> float:
    """Codes per round on the calibration frames."""
    return drafter.trees[num_nodes][0].provenance["codes_per_round"] if num_nodes > 1 else 1.0


def _plain(model: Qwen3TTS, wrap: Wrap) -> Callable[..., int]:
    decoder, choice = model.multi_code_decoder, model.sampling.rest
    decode = wrap(lambda hidden, first, noise: decoder.decode_frame(hidden, first, noise, choice.form, choice.knobs))

    def run(hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array) -> int:
        mx.eval(decode(hidden, first, noise))  # the frame is what is timed
        return decoder.num_codes

    return run


def _spec(rounds: Rounds, model: Qwen3TTS) -> Callable[..., int]:
    def run(hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array) -> int:
        state = ahead(rounds, hidden, code0, first, noise, model.sampling.rest.knobs)
        depth = rounds.depth[np.array(state.origin)[0, 1:]]  # waits: the frame is what is timed
        return int((depth == 0).sum() + (depth[-1] > 0))

    return run


def choose_rows(costs: list[Cost]) -> int:
    """The size with the least time per code; 1 where speculation does not pay."""
    return min(costs, key=lambda cost: cost.code_s).num_nodes


def measure_here(model: Qwen3TTS, drafter: Drafter, frames: Frames) -> tuple[list[Cost], Profile]:
    """Measure as ``generate.load`` would run by default on this machine, and note what was found for it."""
    compiled = mx.default_device() == mx.Device(mx.gpu)
    wrap = mx.compile if compiled else as_it_is
    costs = measure(model, drafter, frames, wrap)
    profile = profile_of(model, costs, *measure_others(model, frames, wrap))
    write_profile(drafter.fingerprint, device_name(model.precision, compiled), profile)
    return costs, profile


def measure_others(model: Qwen3TTS, frames: Frames, wrap: Wrap, *, repeats: int = 3) -> tuple[float, dict[str, float]]:
    """Milliseconds of choosing a code 0, and of a SpeechDecoder call by its frames."""
    step, state = wrap(model.speech_decoder.step), model.speech_decoder.initial_state(1)
    sides: dict[str, Callable] = {"0": Advance(model, frames.codes[:1], wrap)}
    for size in CHUNKS:
        codes = mx.broadcast_to(frames.codes[:1, None], (1, size, frames.codes.shape[1]))
        sides[str(size)] = lambda codes=codes: step(codes, state)
    times = {name: time["median_ms"] for name, time in interleave(sides, repeats).items()}
    return times.pop("0"), times


def profile_of(model: Qwen3TTS, costs: list[Cost], code_0_ms: float, sound_ms: dict[str, float]) -> Profile:
    best = next(cost for cost in costs if cost.num_nodes == choose_rows(costs))
    codes_ms = 1e3 * best.code_s * model.multi_code_decoder.num_codes
    return Profile(
        num_nodes=best.num_nodes,
        round_ms={str(cost.num_nodes): 1e3 * cost.round_s for cost in costs},
        gb_per_s=peak_gb_per_s(),
        code_0_ms=code_0_ms,
        codes_ms=codes_ms,
        sound_ms=sound_ms,
        chunk_frames=smallest_chunk(code_0_ms + codes_ms, sound_ms, 1e3 / model.config.frame_rate_hz),
    )


def told(costs: list[Cost], profile: Profile) -> list[str]:
    """What was measured, as a table and lines for people."""
    lines = ["rows a round  codes a round  ms a round  ms a code  speed-up"]
    for cost in costs:
        figures = f"{cost.codes_per_round:13.2f}  {1e3 * cost.round_s:10.2f}  {1e3 * cost.code_s:9.2f}"
        mark = "  <- used here" if cost.num_nodes == profile.num_nodes else ""
        lines.append(f"{cost.num_nodes:13}  {figures}  {costs[0].code_s / cost.code_s:7.2f}x{mark}")
    if profile.num_nodes == 1:
        lines.append("speculation does not pay on this device: speak decodes plainly")
    chunk = "slower than real time"
    if profile.chunk_frames:
        chunk = f"chunks of {profile.chunk_frames} frames can be played at once"
    return [*lines, f"{profile.code_0_ms + profile.codes_ms:.1f} ms for a frame's codes: {chunk}"]
