"""Linux: OpenBLAS in place of the reference BLAS that MLX's CPU wheel links, which is 4 to 40 times slower.

A library whose ``cblas_sgemm`` is visible to all before MLX is imported is the one MLX calls. The wheel
cmeel-openblas (a dependency on Linux) is such a library. It is first asked for a product that is known; only when
that is right is it made visible. ``MLX_RVQSPEC_BLAS=off`` leaves MLX alone, a path takes that library instead.
"""

import ctypes
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np

VARIABLE = "MLX_RVQSPEC_BLAS"
_chosen: list[str] = []  # the library that MLX was given
AVX512 = frozenset(("avx512f", "avx512dq", "avx512bw", "avx512vl"))
NEEDS = {  # flags of /proc/cpuinfo by the name of OpenBLAS's kernels
    **{"SKYLAKEX": AVX512, "COOPERLAKE": AVX512 | {"avx512_bf16"}, "SAPPHIRERAPIDS": AVX512 | {"avx512_bf16"}},
    **{"HASWELL": frozenset(("avx2", "fma")), "ZEN": frozenset(("avx2", "fma"))},
}
ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE = 101, 111, 112  # cblas.h


def prefer_openblas() -> str | None:
    """The library that MLX will use, or None where it is left as it is. Must run before MLX is imported.

    It runs on one thread unless OPENBLAS_NUM_THREADS is set: a frame is many small products, for which waking
    threads costs more than they bring.
    """
    wanted = os.environ.get(VARIABLE, "")
    if sys.platform != "linux" or wanted.lower() == "off" or "mlx.core" in sys.modules:
        return None
    path = wanted or _packaged()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
        right = _runs_here(library, _cpu_flags()) and _multiplies(library)
    except (OSError, AttributeError):  # another C library, or no BLAS: MLX's own is slow and right
        right = False
    if not right:
        if wanted:
            warnings.warn(f"{VARIABLE} is {wanted!r}; expected off, or the path of a BLAS", stacklevel=3)
        return None
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    _chosen.append(path)
    if "OPENBLAS_NUM_THREADS" not in os.environ and hasattr(library, "openblas_set_num_threads"):
        library.openblas_set_num_threads(1)
    return path


def library() -> str | None:
    """What ``prefer_openblas`` gave to MLX, if anything."""
    return _chosen[0] if _chosen else None


def _packaged() -> str | None:
    try:
        files = metadata.files("cmeel-openblas") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if Path(file).name == "libopenblas.so.0"), None)


def _runs_here(library: ctypes.CDLL, flags: set[str]) -> bool:
    """Whether the CPU has what an OpenBLAS's kernels use; else the first product would end the process.

    cmeel-openblas 0.3.31 for x86 has those for AVX-512 alone. Builds for many CPUs name the kernels they chose.
    """
    if not flags or not hasattr(library, "openblas_get_corename"):
        return True
    library.openblas_get_corename.restype = ctypes.c_char_p
    return NEEDS.get(library.openblas_get_corename().decode().upper(), frozenset()) <= flags


def _cpu_flags() -> set[str]:
    """What the first CPU can do, as Linux names it; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())


def _multiplies(library: ctypes.CDLL) -> bool:
    """Whether C = A B^T comes out right, on sizes that reach the blocked kernels."""
    m, n, k = 33, 129, 257
    a, b = (np.arange(rows * k, dtype=np.float32).reshape(rows, k) % 7 - 3 for rows in (m, n))
    c = np.zeros((m, n), dtype=np.float32)
    at_a, at_b, at_c = (array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    library.cblas_sgemm.restype = None
    library.cblas_sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, m, n, k, one, at_a, k, at_b, k, zero, at_c, n)
    return bool((c == a @ b.T).all())  # whole numbers below 2**24: exact in any order of summation
