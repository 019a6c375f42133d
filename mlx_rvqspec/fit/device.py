"""How many rows a round should have on this machine: its measured time against the codes it is expected to commit."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import mlx.core as mx
import numpy as np

from ..model import Qwen3TTS
from ..spec_decode.drafter import Drafter, device_name, rows_file
from ..spec_decode.frames import in_bursts
from ..spec_decode.rounds import Rounds
from .collect import Frames, noise_of

Wrap = Callable[[Callable], Callable]


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
        state = in_bursts(rounds, hidden, code0, first, noise, model.sampling.rest.knobs)
        depth = rounds.depth[np.array(state.origin)[0, 1:]]  # waits: the frame is what is timed
        return int((depth == 0).sum() + (depth[-1] > 0))

    return run


def choose_rows(costs: list[Cost]) -> int:
    """The size with the least time per code; 1 where speculation does not pay."""
    return min(costs, key=lambda cost: cost.code_s).num_nodes


def measure_here(model: Qwen3TTS, drafter: Drafter, frames: Frames) -> list[Cost]:
    """Measure as ``generate.load`` would run by default on this machine, and note the choice for it."""
    compiled = mx.default_device() == mx.Device(mx.gpu)
    costs = measure(model, drafter, frames, mx.compile if compiled else lambda function: function)
    remember(drafter, device_name(model.precision, compiled), costs)
    return costs


def remember(drafter: Drafter, device: str, costs: list[Cost]) -> None:
    """Write the choice for this device where ``drafter.rows_for`` finds it."""
    path = rows_file(drafter.fingerprint)
    try:
        known = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or damaged: it is only a cache
        known = {}
    round_ms = {cost.num_nodes: 1e3 * cost.round_s for cost in costs}
    known[device] = {"num_nodes": choose_rows(costs), "round_ms": round_ms}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.{path.name}")
    part.write_text(json.dumps(known, indent=1))
    os.replace(part, path)
