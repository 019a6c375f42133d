"""How often damaged files and signals were tried, and what came of it: bench/faults.py [--inputs N] [--signals N]

The inputs and the checks are those of tests/damage.py; a failed check ends the run. Writes bench/results/faults.json,
from which docs/faults.md has its figures. With the defaults it takes about a quarter of an hour.
"""

import argparse
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from harness import finish
from hypothesis import HealthCheck, Phase, given, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import conftest  # noqa: F401, I001  it brings a good BLAS before MLX
from damage import attempt, attempt_handed, damages, handed_damages, signalled, sound_files, sound_folder

from mlx_rvqspec.bench.harness import environment  # isort: skip

HOW: dict[str, Any] = {"deadline": None, "database": None, "phases": [Phase.generate]}
HOW["suppress_health_check"] = list(HealthCheck)
ENDINGS = {0: "done", 2: "refused: usage", 3: "refused: files", 4: "done, to the frame limit"}


def fuzz(num_inputs: int, num_handed: int) -> dict[str, Any]:
    """How many inputs of each file ended how, and the worst of what one took."""
    counts: dict[str, Counter[str]] = {}
    seconds, peak_bytes = [], []
    with tempfile.TemporaryDirectory() as name:
        source = sound_folder(Path(name) / "model")

        files = sound_files(Path(name) / "files")

        def run(attempt_one: Any, strategy: Any, number: int) -> None:
            @settings(max_examples=number, **HOW)
            @given(damage=strategy)
            def one(damage: Any) -> None:
                outcome = attempt_one(damage)
                counts.setdefault(damage.name, Counter())[ENDINGS[outcome.exit_code]] += 1
                seconds.append(outcome.seconds)
                peak_bytes.append(outcome.peak_bytes)

            one()

        run(lambda damage: attempt(source, damage), damages(source), num_inputs)
        run(attempt_handed, handed_damages(files), num_handed)
    return {
        "inputs": len(seconds),
        "tracebacks": 0,  # one would have ended the run
        "by_file": {name: dict(counter) for name, counter in sorted(counts.items())},
        "slowest_s": max(seconds),
        "most_memory_mb": max(peak_bytes) / 2**20,
    }


def sweep(num_signals: int) -> dict[str, Any]:
    """What runs left that got a signal at a random moment."""
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with tempfile.TemporaryDirectory() as name:
            delays = generator.uniform(0, 4, num_signals)
            left = Counter(signalled(Path(name), number, delay_s) for delay_s in delays)
        found[number.name] = {"runs": num_signals, "half_files": 0, **left}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--signals", type=int, default=50)
    arguments = parser.parse_args()
    result = {"damaged_files": fuzz(arguments.inputs, arguments.inputs // 4), "signals": sweep(arguments.signals)}
    finish("faults", {"environment": environment(), **result})


if __name__ == "__main__":
    main()
