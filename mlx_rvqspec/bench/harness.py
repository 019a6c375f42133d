"""What every measurement shares: the environment it ran in, fair clocks, and what the graph of a call holds.

Times are interleaved (A B A B ...) so that a change of the machine's load falls on all sides alike; report the
median with the spread, and ratios of medians from one run only.
"""

import io
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..version import __version__

# Primitives that only give an array another shape or name: no kernel runs for them.
VIEWS = {
    *("AsStrided", "Broadcast", "BroadcastAxes", "Copy", "Depends", "ExpandDims", "Flatten", "Reshape"),
    *("Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"),
}


def live_blas() -> str:
    """The BLAS libraries mapped into this process (Linux); MLX's CPU wheel links the slow reference one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return "Accelerate" if platform.system() == "Darwin" else "unknown"
    found = re.findall(r"/(lib(?:openblas|mkl_rt|blas|blis)[\w.-]*\.so[\w.]*)", maps)
    return ", ".join(sorted(set(found))) or "unknown"


def cpu_name() -> str:
    if Path("/proc/cpuinfo").exists():
        names = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        return names[0] if names else platform.machine()
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def resident_bytes() -> int:
    """Of this process now; on systems without /proc, the most it has ever been."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def commit() -> str:
    """Of the checkout this package runs from, with + where files differ; empty for an installed one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def environment() -> dict[str, Any]:
    """Commit, machine and versions of this run."""
    chosen = sys.modules["mlx_rvqspec"].BLAS  # before this module could be
    return {
        "version": __version__,
        "commit": commit(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "mlx": mx.__version__,  # pyright: ignore[reportAttributeAccessIssue]
        "device": str(mx.default_device()),
        "blas": live_blas(),
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "1" if chosen else "default"),
    }


def spread(times_ms: list[float]) -> dict[str, float]:
    return {"median_ms": statistics.median(times_ms), "min_ms": min(times_ms), "max_ms": max(times_ms)}


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
    found = {name: spread(values) for name, values in times.items()}
    first = next(iter(found.values()))["median_ms"]
    return {name: value | {"speedup": first / value["median_ms"]} for name, value in found.items()}


def primitives(result: Any) -> list[str]:
    """Names of the primitives in the graph of a result that has not been evaluated."""
    text = io.StringIO()
    mx.export_to_dot(text, *[value for _, value in tree_flatten(result) if isinstance(value, mx.array)])
    return re.findall(r'label ="?([\w ]+)"?, shape=rectangle', text.getvalue())


def num_launches(result: Any) -> int:
    """Primitives that compute: on a GPU each is a launch where nothing is fused. Some names tell a type: View int32."""
    return sum(name.split()[0] not in VIEWS for name in primitives(result))


def peak_gb_per_s() -> float:
    """Reading bandwidth: the sum of 256 MB, the best of five."""
    x, best = mx.ones((64 << 20,)), float("inf")
    mx.eval(x)
    for _ in range(5):
        begin = time.perf_counter()
        mx.eval(x.sum())
        best = min(best, time.perf_counter() - begin)
    return x.nbytes / best / 1e9
