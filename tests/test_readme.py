"""Every command line and every program that a reader is shown does what is said, with the built-in voice."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from conftest import ROOT, TINY

README = (ROOT / "README.md").read_text()
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]
SETUP = [line for line in SHELL if line.startswith("python3 -m venv .venv && ")]
COMMANDS = [line for line in SHELL if line not in SETUP and not line.startswith(("#", "sudo "))]
EXAMPLES = sorted((ROOT / "examples").iterdir())


@pytest.fixture
def base_model(tmp_path_factory):
    """A hub cache that has a small checkpoint in place of the Base model the README names."""
    cache = tmp_path_factory.mktemp("hub")
    repo = cache / "models--Qwen--Qwen3-TTS-12Hz-0.6B-Base"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    shutil.copytree(TINY.with_name("tiny_base"), repo / "snapshots" / ("0" * 40))
    return cache


@pytest.fixture
def environment(tmp_path, base_model):
    """A folder with a recording, and an environment where mlx-tts and the package are what is tested here."""
    recording = np.load(TINY.with_name("tiny_base") / "golden.npz")["codec.enc_wav"]
    soundfile.write(tmp_path / "ref.wav", recording, 24_000)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, call in [("mlx-tts", '-c "from mlx_rvqspec.cli import main; main()"'), ("python", "")]:
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "HF_HUB_CACHE": str(base_model),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def run(command, environment, folder):
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done


def test_the_first_screen_has_one_line_to_speak_and_one_to_test():
    speak, test = SETUP
    assert speak in README.splitlines()[:20] and " && .venv/bin/mlx-tts speak " in speak
    assert test in README.splitlines()[:20] and test.endswith(" && .venv/bin/python -m pytest")


def test_the_speak_line_writes_hello(environment, tmp_path):
    run(SETUP[0].rpartition(".venv/bin/")[2], environment, tmp_path)  # its set-up is what .ci/run runs
    assert (tmp_path / "hello.wav").stat().st_size > 24_000


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works(command, environment, tmp_path):
    (tmp_path / "book.txt").write_text("One.\n\nTwo.\n")
    run(command, environment, tmp_path)
    for name in re.findall(r"\w+\.wav(?:\.gz)?", command.partition("#")[0]):
        assert (tmp_path / name).stat().st_size > 0


def test_the_python_of_the_readme_works(environment, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", README, re.S)
    (tmp_path / "program.py").write_text(program)
    run("python program.py", environment, tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_works_and_is_short(path, environment, tmp_path):
    assert len(path.read_text().splitlines()) <= 40
    done = run(f"{'python' if path.suffix == '.py' else 'sh'} {path}", environment, tmp_path)
    assert done.stdout or len(list(tmp_path.iterdir())) > 2  # bin and ref.wav


def test_ci_runs_the_test_line_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert "grep 'python -m pytest$' README.md" in script and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert [line for line in README.splitlines() if line.endswith("python -m pytest")] == SETUP[1:]
