"""What several test files use: the tiny checkpoint, the command line as a process, a sound device."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import mlx_rvqspec  # noqa: F401  before any test imports MLX: it brings a good BLAS on Linux

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "golden" / "tiny_customvoice"
MLX_TTS = [sys.executable, "-c", "from mlx_rvqspec.cli import main; main()"]


@pytest.fixture
def start(tmp_path):
    """A function that starts mlx-tts with some arguments in an empty folder; what still runs is ended."""
    processes = []
    # a shell starts background jobs with SIGINT ignored, and what is ignored stays so in the programs they start
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*arguments, **options):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*MLX_TTS, *map(str, arguments)]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **{**pipes, **options}))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


class FakeStream:
    """Stands for a sound device: notes what it is asked to do."""

    def __init__(self, **options):
        self.options, self.calls, self.heard = options, [], []

    def __getattr__(self, name):
        return lambda: self.calls.append(name)

    def write(self, samples):
        self.heard.append(samples)


@pytest.fixture
def device(monkeypatch):
    """A sounddevice with one loudspeaker: the list of the streams opened on it."""
    streams = []
    fake = types.SimpleNamespace(PortAudioError=RuntimeError)
    fake.OutputStream = lambda **options: streams.append(FakeStream(**options)) or streams[-1]
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return streams
