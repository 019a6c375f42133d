"""What several test files use: the tiny checkpoint with random weights, and the command line as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "golden" / "tiny_customvoice"
MLX_TTS = [sys.executable, "-c", "from mlx_rvqspec.cli import main; main()"]


@pytest.fixture
def start(tmp_path):
    """A function that starts mlx-tts with some arguments in an empty folder; what still runs is ended."""
    processes = []

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
