"""Time of one frame's codes 1..15: plain decoding, and speculation by rows per round.

    python bench/frame.py [MODEL] [--drafter FILE] [--repeats 15] [--frames 6] [--seed 0]

Plain uncompiled, plain compiled and speculation at each size decode the same frames in turns, in float32 and one
process; the codes must be equal. Linux: put a good BLAS in front (LD_PRELOAD) or rows cost what they weigh; which
one was live is in the result. The last line is JSON.
"""

import argparse
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
import numpy as np
from harness import environment, finish, interleave
from mlx.utils import tree_flatten
from plot import save_lines

from mlx_rvqspec.fit import collect
from mlx_rvqspec.load import load_model, resolve
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode import frames as drivers
from mlx_rvqspec.spec_decode.rounds import Rounds

Inputs = tuple[mx.array, mx.array, mx.array, mx.array]
TEXTS = Path(__file__).parent / "texts" / "evaluation.txt"


def as_it_is(function: Callable) -> Callable:
    return function


class Reads:
    """Stands for numpy in ``spec_decode.frames`` to count the host's reads, each of which waits for the device."""

    def __init__(self) -> None:
        self.count = 0

    def array(self, x: mx.array) -> np.ndarray:
        self.count += 1
        return np.array(x)


def num_launches(result: Any) -> int:
    """Primitives in the graph of a result that has not been evaluated; on a GPU each is a launch."""
    text = io.StringIO()
    mx.export_to_dot(text, *[value for _, value in tree_flatten(result) if isinstance(value, mx.array)])
    return text.getvalue().count("shape=rectangle")


def peak_gb_per_s() -> float:
    """Reading bandwidth: the sum of 256 MB, the best of five."""
    x, best = mx.ones((64 << 20,)), float("inf")
    mx.eval(x)
    for _ in range(5):
        begin = time.perf_counter()
        mx.eval(x.sum())
        best = min(best, time.perf_counter() - begin)
    return x.nbytes / best / 1e9


def weight_bytes(model: Qwen3TTS) -> int:
    """What one call of the MultiCodeDecoder reads at least: its layers, and one head."""
    decoder = model.multi_code_decoder
    layers = sum(value.nbytes for layer in decoder.model.layers for _, value in tree_flatten(layer.parameters()))
    return layers + decoder.lm_head.weight.nbytes // decoder.num_codes


def spec_side(model: Qwen3TTS, drafter: drafters.Drafter, num_nodes: int, wrap: Callable) -> tuple[Rounds, Callable]:
    pair, form = drafter.trees[num_nodes], model.sampling.rest.form
    proposer = drafter.proposer(model.multi_code_decoder, form, *pair)
    rounds = Rounds(model.multi_code_decoder, proposer, *pair, form, wrap=wrap)
    return rounds, lambda *inputs: drivers.in_bursts(rounds, *inputs, model.sampling.rest.knobs)


def count(model: Qwen3TTS, drafter: drafters.Drafter, num_nodes: int, inputs: list[Inputs]) -> dict[str, float]:
    """Per frame: rounds, launches, host reads, and what the rounds add to the calls of the decoder they contain."""
    rounds, decode = spec_side(model, drafter, num_nodes, as_it_is)
    reads, launches, knobs = Reads(), [], model.sampling.rest.knobs
    drivers.np = reads  # type: ignore[assignment]
    try:
        states = [decode(*frame) for frame in inputs]
    finally:
        drivers.np = np
    depth = [rounds.depth[np.array(state.origin)[0, 1:]] for state in states]
    num_rounds = [int((d == 0).sum() + (d[-1] > 0)) for d in depth]
    hidden, code0, first, noise = inputs[0]
    state = rounds.first(hidden, code0, first, noise, knobs)
    launches.append(num_launches(state))
    mx.eval(state)
    per_round = num_launches(rounds.next(state, noise, knobs))
    mean_rounds = sum(num_rounds) / len(inputs)
    return {
        "rounds": mean_rounds,
        "codes_per_round": 15 / mean_rounds,
        "launches": launches[0] + per_round * (mean_rounds - 1),
        "launches_per_round": per_round,
        "host_reads": reads.count / len(inputs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or hub id; else the built-in voice")
    parser.add_argument("--drafter", help="else the one that speak would use")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = resolve(args.model)
    model = load_model(folder, dtype="float32")
    decoder, choice = model.multi_code_decoder, model.sampling.rest
    drafter = drafters.find(folder, decoder, model.fingerprints, args.drafter)
    if drafter is None:
        parser.error("this model has no drafter; make one with mlx-tts fit")
    spoken = collect.collect(model, collect.read_texts(TEXTS)[::5], 200, seed=3_000_000 + args.seed)
    rows = np.linspace(0, len(spoken) - 1, args.frames).astype(int).tolist()  # from all of the texts
    parts = [spoken.take(slice(row, row + 1)) for row in rows]
    inputs = [(p.hidden, p.codes[:, 0], p.embedded[:, 0], collect.noise_of(model, p.keys)) for p in parts]
    mx.eval(inputs)

    def plain(hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array) -> mx.array:
        return decoder.decode_frame(hidden, first, noise, choice.form, choice.knobs)

    sides: dict[str, Callable] = {"plain compiled": mx.compile(plain), "plain uncompiled": plain}
    for num_nodes in drafter.trees:
        if num_nodes > 1:
            sides[f"spec {num_nodes}"] = spec_side(model, drafter, num_nodes, mx.compile)[1]
            sides[f"spec {num_nodes} uncompiled"] = spec_side(model, drafter, num_nodes, as_it_is)[1]
    for name, decode in sides.items():
        for part, frame in zip(parts, inputs):
            found = decode(*frame)
            codes = found.codes[:, 1:] if name.startswith("spec") else found
            assert mx.array_equal(codes, part.codes[:, 1:]), f"{name}: other codes than plain decoding"
    print("codes are equal on all sides", file=sys.stderr)

    def run_all(decode: Callable) -> list[Any]:
        results = [decode(*frame) for frame in inputs]
        mx.eval(results)
        return results

    times = interleave({name: lambda decode=decode: run_all(decode) for name, decode in sides.items()}, args.repeats)
    for name, time_ms in times.items():
        for key in ("median_ms", "min_ms", "max_ms"):
            time_ms[key] /= len(inputs)
        print(f"{name:20} {time_ms['median_ms']:7.2f} ms  {time_ms['speedup']:.2f}x", file=sys.stderr)
    counts = {num_nodes: count(model, drafter, num_nodes, inputs) for num_nodes in drafter.trees if num_nodes > 1}
    report(args, model, drafter, times, counts, num_launches(plain(*inputs[0])))


def report(
    args: argparse.Namespace,
    model: Qwen3TTS,
    drafter: drafters.Drafter,
    times: dict[str, dict[str, float]],
    counts: dict[int, dict[str, float]],
    plain_launches: int,
) -> None:
    plain_ms = times["plain compiled"]["median_ms"]
    chosen = min((times[f"spec {n}"]["median_ms"], n) for n in counts)
    num_nodes = chosen[1] if chosen[0] < plain_ms else 1
    bytes_per_call = weight_bytes(model)
    for n, measured in counts.items():
        round_ms = times[f"spec {n}"]["median_ms"] / measured["rounds"]
        # what a round takes longer than one plain call, of as much as it takes
        measured["round_overhead_percent"] = 100 * (1 - plain_ms / 15 / round_ms)
        measured["gb_per_s"] = bytes_per_call / round_ms / 1e6
    save_lines("frame", "Speed-up over plain compiled decoding", {
        "compiled": {1: 1.0} | {n: times[f"spec {n}"]["speedup"] for n in counts},
        "uncompiled": {1: times["plain uncompiled"]["speedup"]}
        | {n: times[f"spec {n} uncompiled"]["speedup"] for n in counts},
    })  # fmt: skip
    finish(
        "frame",
        {
            "environment": environment(),
            "model": model.fingerprint,
            "precision": "float32",
            "seed": args.seed,
            "num_frames": args.frames,
            "repeats": args.repeats,
            "frame_ms": times,
            "spec": counts,
            "plain": {"launches": plain_launches, "gb_per_s": bytes_per_call / (plain_ms / 15) / 1e6},
            "peak_gb_per_s": peak_gb_per_s(),
            "chosen_num_nodes": num_nodes,
            "device": device_facts(drafter),
        },
    )


def device_facts(drafter: drafters.Drafter) -> dict[str, Any]:
    """What the engine itself would use here."""
    return {
        how: drafters.rows_for(drafter, drafters.device_name(str(mx.float32), how == "compiled"))
        for how in ("compiled", "uncompiled")
    }


if __name__ == "__main__":
    main()
