"""What is installed: the public names, and a wheel that speaks on its own."""

import re
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

import mlx_rvqspec


def test_the_public_names():
    names = ["Chunk", "ClonedVoice", "Engine", "GenerationError", "Input", "ModelError", "Sampling", "Speech"]
    names += ["__version__", "load", "read_recording"]
    assert mlx_rvqspec.__all__ == names and all(hasattr(mlx_rvqspec, name) for name in names)
    assert callable(mlx_rvqspec.load)  # the function, not the module of the same name


def test_importing_brings_in_nothing_slow():
    slow = {"torch", "transformers", "huggingface_hub", "soundfile", "soxr", "rich.console", "sounddevice"}
    program = f"import sys, mlx_rvqspec.cli; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_wheel_speaks_without_the_checkout(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    assert {path.name.partition("-")[0] for path in (tmp_path / "site").iterdir()} == {"mlx_rvqspec"}
    assert (tmp_path / "site" / "mlx_rvqspec" / "py.typed").exists()
    program = "import mlx_rvqspec as tts; print(tts.__file__, len(tts.load().speak('Hello.', seed=7).audio))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "site", capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    path, length = done.stdout.split()
    assert path.startswith(bytes(tmp_path)) and int(length) > 0


def test_every_test_named_in_the_table_of_cases_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "CASES.md").read_text()))
    defined = set(
        re.findall(r"def (test_\w+)", "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py")))
    )
    assert named <= defined, named - defined
