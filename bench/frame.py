"""Time of one frame's codes 1..15: plain decoding, and speculation by rows per round, fixed and adaptive.

    python bench/frame.py [MODEL] [--drafter FILE] [--seed 0]

In float32, compiled and uncompiled; the codes must be equal on all sides. Linux: which BLAS was live is in the
result. The last line is JSON.
"""

import argparse
import sys

from harness import finish
from plot import save_lines

from mlx_rvqspec.bench.markdown import frame as as_table
from mlx_rvqspec.bench.run import bench
from mlx_rvqspec.load import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or hub id; else the built-in voice")
    parser.add_argument("--drafter", help="else the one that speak would use")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = bench(resolve(args.model), suites=["frame"], dtype="float32", drafter=args.drafter, seed=args.seed)
    suite = result["suites"]["frame"]
    print(as_table(suite), file=sys.stderr)
    base, lines = suite["codes_ms"]["plain compiled"]["median_ms"], {}
    for name, time in suite["codes_ms"].items():
        kind, how = name.rsplit(" ", 1)
        if kind == "adaptive":  # no size of its own
            continue
        num_nodes = 1 if kind == "plain" else int(kind.removeprefix("spec "))
        lines.setdefault(how, {})[num_nodes] = base / time["median_ms"]
    save_lines("frame", "Speed-up over plain compiled decoding", lines)
    finish("frame", result)


if __name__ == "__main__":
    main()
