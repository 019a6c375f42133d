"""Frame times on devices nobody here has: launches, bytes and waits of the 0.6B shape against a table of devices.

    python bench/cost_model.py

A call takes the longer of reading its weights and multiplying them, plus its launches, plus the host's waits:

    call = max(bytes / (SHARE_OF_PEAK x bandwidth), 2 x weights x rows / (SHARE_OF_PEAK x flops)) + launches x launch_us

Launches are counted in the compiled graphs of a model with the published numbers of layers. The CPU graph spells out
norms and attention, which are one kernel each on Metal: counted as one. Bandwidth and flops are the makers' figures or
common estimates; the time of a launch is the one unknown, set so that the published speed-ups are met best, and the
misfit that is left is told. Nothing here was measured on these devices. The last line is JSON.
"""

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
import numpy as np
from harness import RESULTS, finish

from mlx_rvqspec.bench.frame import Advance, plain_side, spec_side
from mlx_rvqspec.bench.harness import VIEWS, environment, primitives
from mlx_rvqspec.code_decoder import CodeDecoder
from mlx_rvqspec.fit.offsets import initial_weights
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.multi_code_decoder import MultiCodeDecoder
from mlx_rvqspec.spec_decode.drafter import Drafter, Form
from mlx_rvqspec.spec_decode.tree import Tree

TEMPLATE = Path(__file__).parents[1] / "tests" / "golden" / "tiny_customvoice"
LAYERS, MULTI_LAYERS = 28, 5
# weights of the 0.6B shape (ARCHITECTURE, section 1)
LAYER_WEIGHTS = 1024 * (2048 + 1024 + 1024 + 2048) + 3 * 1024 * 3072
CODE_0_WEIGHTS = LAYERS * LAYER_WEIGHTS + 1024 * 3072
MULTI_WEIGHTS, HEAD_WEIGHTS = MULTI_LAYERS * LAYER_WEIGHTS, 1024 * 2048
BYTES = 2  # of a weight in bfloat16
NUM_CODES, NUM_DEPTHS = 15, 3
SHARE_OF_PEAK = 0.75
WAIT_US = 150  # of the host for the device: a command buffer's round trip
NODES = (8, 16, 32, 64)
LAUNCHES_US = np.linspace(0.5, 20, 79)


@dataclass(frozen=True)
class Device:
    """A class of devices: GB/s, and GPU teraflops at 16 bits; both as published or commonly estimated."""

    name: str
    gb_per_s: float
    tflops: float


DEVICES = [
    Device("M1", 68, 2.6),
    Device("M2", 100, 3.6),
    Device("M3", 100, 4.1),
    Device("M4", 120, 4.3),
    Device("M1 Pro", 200, 5.2),
    Device("M3 Pro", 150, 6.4),
    Device("M4 Pro", 273, 9.2),
    Device("M1 Max", 400, 10.4),
    Device("M3 Max", 400, 14.2),
    Device("M4 Max", 546, 18.4),
    Device("iPhone A14", 34, 1.2),
    Device("iPhone A16", 51, 1.8),
    Device("iPhone A17 Pro", 51, 2.1),
    Device("iPhone A18 Pro", 60, 2.3),
]
# Speed-ups of codes 1..15 that the paper reports, with rows per round; which device each was found on is our guess.
PUBLISHED = [("M3 Max", 32, 2.34), ("M3 Pro", 32, 2.13), ("iPhone A17 Pro", 16, 1.82), ("iPhone A14", 64, 1.21)]
PUBLISHED_CODES = 2.47  # per round at N = 32


def of_published_depth() -> Qwen3TTS:
    """A model as deep as the published ones, and narrow: launches do not depend on the width."""
    model = load_model(TEMPLATE)
    code = replace(model.config.code_decoder, num_hidden_layers=LAYERS)
    multi = replace(model.config.multi_code_decoder, num_hidden_layers=MULTI_LAYERS)
    deep = replace(model, code_decoder=CodeDecoder(code), multi_code_decoder=MultiCodeDecoder(multi, code))
    mx.eval(deep.code_decoder.parameters(), deep.multi_code_decoder.parameters())
    return deep


def launches(result: Any) -> int:
    """Of a graph on Metal: a norm (3 primitives here) and an attention (4) are one kernel each."""
    found = Counter(name for name in primitives(result) if name not in VIEWS)
    return found.total() - 2 * found["Square"] - 3 * found["Softmax"]


def count() -> dict[str, int]:
    """Launches of choosing code 0, of a plain frame's other codes, and of a round of the published method."""
    model = of_published_depth()
    code0 = mx.zeros((1,), dtype=mx.int32)
    hidden, noise = mx.zeros((1, 64)), mx.zeros((1, NUM_CODES, 64))
    inputs = hidden, code0, hidden, noise
    form = Form(NUM_DEPTHS, 1, False, 0, 0, 0, "probability")
    weights = initial_weights(form, model.multi_code_decoder, mx.random.key(0))
    tree = Tree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))  # its size changes no launch
    drafter = Drafter(form, weights, {tree.num_nodes: (tree, Tree(()))}, "", "", {})
    rounds, _ = spec_side(model, drafter, tree.num_nodes, mx.compile)
    state = rounds.first(*inputs, model.sampling.rest.knobs)
    mx.eval(state)  # or the next round's graph would hold this one's too
    return {
        "code_0": launches(Advance(model, mx.zeros((1, 16), dtype=mx.int32), mx.compile)()),
        "plain": launches(plain_side(model, mx.compile)(*inputs)),
        "round": launches(rounds.next(state, noise, model.sampling.rest.knobs)),
    }


def call_ms(device: Device, weights: float, rows: int, num_launches: float, launch_us: float) -> float:
    read_s = weights * BYTES / (SHARE_OF_PEAK * device.gb_per_s * 1e9)
    multiply_s = 2 * weights * rows / (SHARE_OF_PEAK * device.tflops * 1e12)
    return 1e3 * max(read_s, multiply_s) + num_launches * launch_us / 1e3


def predict(device: Device, counts: dict[str, int], codes: dict[int, float], launch_us: float) -> dict[str, Any]:
    """Milliseconds of a frame's parts, and speed-ups over plain decoding by rows per round."""
    code_0_ms = call_ms(device, CODE_0_WEIGHTS, 1, counts["code_0"], launch_us)
    plain_launches = counts["plain"] / NUM_CODES
    plain_ms = NUM_CODES * call_ms(device, MULTI_WEIGHTS + HEAD_WEIGHTS, 1, plain_launches, launch_us)
    weights = MULTI_WEIGHTS + (2 * NUM_DEPTHS + 1) * HEAD_WEIGHTS  # heads of the depths, and of the drafts
    spec_ms = {}
    for num_nodes, per_round in codes.items():
        round_ms = call_ms(device, weights, num_nodes, counts["round"], launch_us)
        spec_ms[num_nodes] = NUM_CODES / per_round * (round_ms + WAIT_US / 1e3 / 2)  # two rounds a wait, in bursts
    speedup = {n: plain_ms / ms for n, ms in spec_ms.items()}
    whole = {n: (code_0_ms + plain_ms) / (code_0_ms + ms) for n, ms in spec_ms.items()}
    return {
        "code_0_ms": code_0_ms,
        "plain_ms": plain_ms,
        "spec_ms": spec_ms,
        "speedup_codes": speedup,
        "speedup_frame": whole,
        "best_num_nodes": max(speedup, key=lambda n: speedup[n]),
    }


def published_codes() -> dict[int, float]:
    """Codes per round of the published method: 2.47 at N = 32, other sizes by the shape of our measured curve."""
    path = RESULTS / "acceptance.json"
    measured = json.loads(path.read_text())["drafters"]["paper"]["codes_per_round"]
    scale = (PUBLISHED_CODES - 1) / (measured["32"] - 1)
    return {n: 1 + scale * (measured[str(n)] - 1) for n in NODES}


def misfit(counts: dict[str, int], codes: dict[int, float], launch_us: float) -> list[dict[str, Any]]:
    by_name, rows = {device.name: device for device in DEVICES}, []
    for name, num_nodes, speedup in PUBLISHED:
        found = predict(by_name[name], counts, codes, launch_us)["speedup_codes"][num_nodes]
        rows.append({"assumed_device": name, "num_nodes": num_nodes, "published": speedup, "predicted": found})
    return rows


def error(rows: list[dict[str, Any]]) -> float:
    """Root mean square of the logarithms of predicted over published."""
    return float(np.sqrt(np.mean([np.log(row["predicted"] / row["published"]) ** 2 for row in rows])))


def main() -> None:
    counts, codes = count(), published_codes()
    launch_us = min(LAUNCHES_US.tolist(), key=lambda us: error(misfit(counts, codes, us)))
    rows = misfit(counts, codes, launch_us)
    devices = {device.name: asdict(device) | predict(device, counts, codes, launch_us) for device in DEVICES}
    for name, found in devices.items():
        speed = "  ".join(f"N={n} {value:.2f}x" for n, value in found["speedup_codes"].items())
        print(
            f"{name:15} code 0 {found['code_0_ms']:6.2f} ms  plain {found['plain_ms']:6.2f} ms  {speed}",
            file=sys.stderr,
        )
    for row in rows:
        print(f"{row['assumed_device']:15} N={row['num_nodes']} published {row['published']} predicted "
              f"{row['predicted']:.2f}", file=sys.stderr)  # fmt: skip
    finish(
        "cost_model",
        {
            "environment": environment(),
            "launches": counts,
            "codes_per_round": codes,
            "launch_us": launch_us,
            "share_of_peak": SHARE_OF_PEAK,
            "wait_us": WAIT_US,
            "published": rows,
            "misfit_rms_log": error(rows),
            "devices": devices,
        },
    )


if __name__ == "__main__":
    main()
