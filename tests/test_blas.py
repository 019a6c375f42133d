"""Linux: OpenBLAS comes before MLX's reference BLAS, unless it is unwanted, wrong or too late."""

import ctypes.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mlx_rvqspec import blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have a good BLAS")
PROGRAM = """
import mlx_rvqspec, mlx.core as mx
product = (mx.ones((64, 512)) @ mx.full((512, 64), 0.5)).sum().item()
print(mlx_rvqspec.BLAS, product)
"""
RUNS_HERE = """
import ctypes
from mlx_rvqspec import blas
print(blas._packaged(), blas._runs_here(ctypes.CDLL(blas._packaged()), blas._cpu_flags()))
"""


def run(program: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )
    return done.stdout.split()


def test_openblas_is_found_and_gives_the_same_product() -> None:
    """Where the wheel's kernels are ones that this CPU can run; else MLX is left alone."""
    (library, product), (none, reference) = run(PROGRAM, MLX_RVQSPEC_BLAS=""), run(PROGRAM, MLX_RVQSPEC_BLAS="off")
    packaged, runs = run(RUNS_HERE)
    assert "libopenblas" in packaged and none == "None"
    assert library == (packaged if runs == "True" else "None")
    assert product == reference == str(64 * 64 * 256.0)


@pytest.mark.parametrize("path", ["/no/such/library.so", "libm.so.6"])
def test_a_library_that_is_no_blas_is_left_out_with_a_word(path: str) -> None:
    assert run(PROGRAM, MLX_RVQSPEC_BLAS=path)[0] == "None"
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        run(PROGRAM, MLX_RVQSPEC_BLAS=path, PYTHONWARNINGS="error")
    assert f"MLX_RVQSPEC_BLAS is '{path}'" in refusal.value.stderr


def test_a_blas_that_is_no_openblas_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    name = ctypes.util.find_library("blas")
    # not in this process: it has the wheel's OpenBLAS, whose name the system's may have too
    if not name or run(f"import ctypes; print(hasattr(ctypes.CDLL({name!r}), 'cblas_sgemm'))") != ["True"]:
        pytest.skip("there is no other BLAS here")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert run(PROGRAM, MLX_RVQSPEC_BLAS=name) == [name, str(64 * 64 * 256.0)]


def test_kernels_that_the_cpu_lacks_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's are for AVX-512 alone: on other CPUs a product would end the process."""
    library = SimpleNamespace(openblas_get_corename=lambda: b"SkylakeX")
    older = {"sse4_2", "avx", "avx2", "fma"}
    assert not blas._runs_here(library, older)  # type: ignore[arg-type]
    assert blas._runs_here(library, older | blas.AVX512)  # type: ignore[arg-type]
    assert blas._runs_here(library, set()) and blas._runs_here(SimpleNamespace(), older)  # type: ignore[arg-type]
    library.openblas_get_corename = lambda: b"Zen"
    assert blas._runs_here(library, older)  # type: ignore[arg-type]


def test_too_late_is_left_alone() -> None:
    assert run("import mlx.core, mlx_rvqspec; print(mlx_rvqspec.BLAS)", MLX_RVQSPEC_BLAS="") == ["None"]
