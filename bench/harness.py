"""What every bench shares: the environment it ran in, fair clocks, and one JSON object as the last line.

Times are interleaved (A B A B ...) so that a change of the machine's load falls on all sides alike; report the
median with the spread, and ratios of medians from one run only.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_rvqspec  # isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx

RESULTS = Path(__file__).parent / "results"


def live_blas() -> str:
    """The BLAS libraries mapped into this process (Linux); MLX's CPU wheel links the slow reference one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return "Accelerate" if platform.system() == "Darwin" else "unknown"
    found = re.findall(r"/(lib(?:openblas|mkl_rt|blas|blis)[\w.-]*\.so[\w.]*)", maps)
    return ", ".join(sorted(set(found))) or "unknown"


def environment() -> dict[str, Any]:
    """Commit, machine and versions of this run."""
    root = Path(__file__).parents[1]

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True).stdout.strip()

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        cpu = names[0] if names else cpu
    return {
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else ""),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "mlx": mx.__version__,
        "device": str(mx.default_device()),
        "blas": live_blas(),
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "1" if mlx_rvqspec.BLAS else "default"),
    }


def interleave(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each side, warmed up once and then run in turns: median, min, max and the ratio to the first.

    A side returns what has to be evaluated; the clock stops when it is.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for function in sides.values():
        mx.eval(function())
    for _ in range(repeats):
        for name, function in sides.items():
            begin = time.perf_counter()
            mx.eval(function())
            times[name].append(1e3 * (time.perf_counter() - begin))
    first = statistics.median(next(iter(times.values())))
    return {
        name: {
            "median_ms": statistics.median(values),
            "min_ms": min(values),
            "max_ms": max(values),
            "speedup": first / statistics.median(values),
        }
        for name, values in times.items()
    }


def finish(name: str, result: dict[str, Any]) -> None:
    """Write bench/results/<name>.json and print the same object as the last line."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
