"""How often damaged files and signals were tried, and what came of it: bench/faults.py [--inputs N] [--signals N]

The inputs and the checks are those of tests/damage.py; a failed check ends the run. Writes bench/results/faults.json,
from which docs/faults.md has its figures. With the defaults it takes about ten minutes on two cores.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from harness import finish
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import conftest  # noqa: F401, I001  it brings a good BLAS before MLX
from damage import attempt, attempt_handed, damages, handed_damages, signalled, sound_files, sound_folder

from mlx_rvqspec.bench.harness import environment  # isort: skip

HOW: dict[str, Any] = {"deadline": None, "database": None, "phases": [Phase.generate]}
HOW["suppress_health_check"] = list(HealthCheck)
ENDINGS = {0: "done", 2: "refused: usage", 3: "refused: files", 4: "done, to the frame limit"}
Tried = list[tuple[str, str, float, int]]  # file, ending, seconds, bytes of each input


def fuzz(number: int, num_inputs: int, num_handed: int) -> Tried:
    """What came of that many inputs for ``speak`` and for the other commands; number: which share of all this is."""
    tried: Tried = []
    with tempfile.TemporaryDirectory() as name:
        source, files = sound_folder(Path(name) / "model"), sound_files(Path(name) / "files")

        def run(attempt_one: Any, strategy: Any, num: int) -> None:
            @seed(number)
            @settings(max_examples=num, **HOW)
            @given(damage=strategy)
            def one(damage: Any) -> None:
                outcome = attempt_one(damage)
                tried.append((damage.name, ENDINGS[outcome.exit_code], outcome.seconds, outcome.peak_bytes))

            one()

        run(lambda damage: attempt(source, damage), damages(source), num_inputs)
        run(attempt_handed, handed_damages(files), num_handed)
    return tried


def summed_up(tried: Tried) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {}
    for name, ending, _, _ in tried:
        counts.setdefault(name, Counter())[ending] += 1
    return {
        "inputs": len(tried),
        "tracebacks": 0,  # one would have ended the run
        "by_file": {name: dict(counter) for name, counter in sorted(counts.items())},
        "slowest_s": max(seconds for _, _, seconds, _ in tried),
        "most_memory_mb": max(peak_bytes for _, _, _, peak_bytes in tried) / 2**20,
    }


def one_signal(number: int, delay_s: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        return signalled(Path(name), number, delay_s)


def sweep(num_signals: int, jobs: int) -> dict[str, Any]:
    """What runs left that got a signal at a random moment of the time that one takes here, or just after."""
    generator, found = np.random.default_rng(0), {}
    with ThreadPoolExecutor(jobs) as pool:
        begin = time.perf_counter()
        list(pool.map(one_signal, [0] * jobs, [0.0] * jobs))  # undisturbed: 0 is no signal
        longest_s = 1.2 * (time.perf_counter() - begin)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            delays = generator.uniform(0, longest_s, num_signals)
            left = Counter(pool.map(one_signal, [number] * num_signals, delays))
            found[number.name] = {"runs": num_signals, "half_files": 0, **left}
    return {"longest_delay_s": longest_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=2000, help="for speak; a quarter as many for the rest")
    parser.add_argument("--signals", type=int, default=50, help="of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    jobs = arguments.jobs
    shares = [-(-arguments.inputs // jobs)] * jobs, [-(-arguments.inputs // (4 * jobs))] * jobs
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        tried = [one for part in pool.map(fuzz, range(jobs), *shares) for one in part]
    result = {"damaged_files": summed_up(tried), "signals": sweep(arguments.signals, jobs)}
    finish("faults", {"environment": environment(), **result})


if __name__ == "__main__":
    main()
