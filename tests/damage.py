"""Damaged inputs: hypothesis strategies over the files a user may hand us, and what came of one through mlx-tts."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from conftest import MLX_TTS, ROOT, TINY
from hypothesis import strategies as st
from test_drafter import OURS, random_drafter

from mlx_rvqspec import cli, device_profile
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.tensor_file import read_header

ODD = [None, True, False, -1, 0, 1, 2, 3, 7, 64, 1023, 3.5, -0.0, 1e30, math.nan, math.inf, 10**6, 2**31, 2**63, 10**40]
ODD += ["", "x", "7", "../x", "a\0b", "\ud800", [], {}, [0], [[]], [10**9] * 4, {"a": 1}, {"": None}]
ROWS = "rows.json"  # not of the model folder: what is remembered of this device
PROFILE = device_profile.Profile(8, {"8": 1.0}, 40.0, 8.0, 15.0, {"1": 40.0, "8": 200.0}, 8)
BASE = TINY.with_name("tiny_base")
HELLO, NUM_SAMPLES = ["speak", "Hello.", "--model", TINY, "--speaker", "ryan", "--seed", 3], 7 * 1920
TOO_LONG_S, TOO_MUCH_BYTES = 60, 512 << 20  # of the CPU, for one input; the tiny model needs a second and a few MB


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in ((*path, key), *_places(item, (*path, key)))]


@st.composite
def damaged_value(draw: Callable, value: Any) -> Any:
    """A JSON value with one to three of its parts replaced, removed, doubled or exchanged."""
    value = deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(value)
        if not places:
            return deepcopy(draw(st.sampled_from(ODD)))
        *path, key = draw(st.sampled_from(places))
        parent = value
        for step in path:
            parent = parent[step]
        how = draw(st.sampled_from(["odd", "odd", "near", "remove", "exchange"]))
        if how == "odd":
            parent[key] = deepcopy(draw(st.sampled_from(ODD)))
        elif how == "near" and isinstance(parent[key], int | float):
            parent[key] = parent[key] * draw(st.sampled_from([-1, 2, 0.5, 10**6])) + draw(st.integers(-2, 2))
        elif how == "remove":
            del parent[key]
        else:
            *other, last = draw(st.sampled_from(places))
            with contextlib.suppress(KeyError, IndexError, TypeError):  # the first change may have removed it
                source = value
                for step in other:
                    source = source[step]
                parent[key] = deepcopy(source[last])
    return value


@st.composite
def damaged_bytes(draw: Callable, data: bytes, first: int | None = None) -> bytes:
    """Bytes cut, overwritten, repeated or with others put in between, mostly among the ``first`` ones."""
    end = draw(st.sampled_from([min(len(data), first or len(data)), len(data)]))
    at, size = draw(st.integers(0, end)), draw(st.sampled_from([1, 2, 8, 100, 5000]))
    how = draw(st.sampled_from(["cut", "overwrite", "insert", "repeat", "remove", "empty", "zeros", "lfs"]))
    if how in ("empty", "lfs"):
        return b"" if how == "empty" else b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    if how == "cut":
        return data[:at]
    if how == "remove":
        return data[:at] + data[at + size :]
    other = data[at : at + size] if how == "repeat" else b"\0" * size
    if how in ("overwrite", "insert"):
        other = draw(st.binary(min_size=1, max_size=min(size, 64)))
    return data[:at] + other + data[at + (len(other) if how in ("overwrite", "zeros") else 0) :]


@st.composite
def damaged_json(draw: Callable, data: bytes) -> bytes:
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged_bytes(data))
    return json.dumps(draw(damaged_value(json.loads(data)))).encode()


@st.composite
def damaged_tensors(draw: Callable, data: bytes) -> bytes:
    """A safetensors file whose header, texts (JSON too), or bytes anywhere are wrong."""
    length = int.from_bytes(data[:8], "little")
    header, how = json.loads(data[8 : 8 + length]), draw(st.sampled_from(["bytes", "length", "header", "texts"]))
    if how == "bytes":
        return draw(damaged_bytes(data, 8 + length))
    if how == "length":
        number = draw(st.sampled_from([0, 1, length - 1, length + 1, len(data), 2**32, 2**62, 2**64 - 1]))
        return number.to_bytes(8, "little") + data[8:]
    texts = header.get("__metadata__") or {"format": "mlx"}
    if how == "texts" and "drafter" in texts:
        texts = texts | {"drafter": json.dumps(draw(damaged_value(json.loads(texts["drafter"]))))}
    elif how == "texts":
        texts = draw(damaged_value(texts))
    else:
        header = draw(damaged_value(header))
    header = header | {"__metadata__": texts} if isinstance(header, dict) and how == "texts" else header
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + data[8 + length :]


@dataclass(frozen=True)
class Damage:
    """A file of the model folder and what replaces it."""

    name: str
    data: bytes


DAMAGED = {
    **{name: damaged_json for name in ("config.json", "speech_tokenizer/config.json", "generation_config.json")},
    **{name: damaged_json for name in ("vocab.json", "tokenizer_config.json", "model.safetensors.index.json", ROWS)},
    **{name: damaged_tensors for name in ("model.safetensors", "speech_tokenizer/model.safetensors", drafters.FILE)},
    "merges.txt": damaged_bytes,
}


@st.composite
def damages(draw: Callable, source: Path) -> Damage:
    """One file of ``source``, see ``sound_folder``, damaged."""
    name = draw(st.sampled_from(sorted(DAMAGED)))
    return Damage(name, draw(DAMAGED[name]((source / name).read_bytes())))


def sound_folder(folder: Path) -> Path:
    """A model folder with all that ``DAMAGED`` names, nothing wrong with any of it."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.npz"))
    drafters.save(random_drafter(OURS), folder / drafters.FILE)
    index = {"weight_map": dict.fromkeys(read_header(folder / "model.safetensors")[0], "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    device = drafters.device_name(mx.float32, False)
    (folder / ROWS).write_text(json.dumps({device: asdict(PROFILE)}))
    return folder


@dataclass(frozen=True)
class Outcome:
    """How mlx-tts ended, what it said, and what it took; seconds: of the CPU, whoever else is at work."""

    exit_code: int
    said: str
    seconds: float
    peak_bytes: int


def mlx_tts(*arguments: Any) -> Outcome:
    """Run mlx-tts in this process. An exception that would be a traceback for the user comes out as it is."""
    said, argv = io.StringIO(), sys.argv
    sys.argv = ["mlx-tts", *map(str, arguments)]
    mx.reset_peak_memory()
    before, begin = mx.get_active_memory(), time.process_time()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = cli.run()
    finally:
        sys.argv = argv
    return Outcome(code, said.getvalue(), time.process_time() - begin, mx.get_peak_memory() - before)


def attempt(source: Path, damage: Damage) -> Outcome:
    """Speak two frames with a copy of ``source`` that has this damage, and check what every outcome must be."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, output = Path(name) / "model", Path(name) / "a.wav"
        for path in source.rglob("*.*"):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
        (folder / damage.name).unlink()
        (folder / damage.name).write_bytes(damage.data)
        for module in (drafters, device_profile):
            patch.setattr(module, "rows_file", lambda _: folder / ROWS)
        patch.setattr(drafters, "cache_folder", lambda: folder / "cache")
        voice = ("--model", folder, "--speaker", "ryan", "--seed", 1)
        outcome = mlx_tts("speak", "Hi", *voice, "--max-frames", 2, "--chunk-frames", 2, "-o", output)
        assert outcome.exit_code in (0, 2, 3, 4), outcome
        assert outcome.exit_code in (0, 4) or re.fullmatch("mlx-tts: .{10,600}\n", outcome.said), outcome
        assert output.exists() == (outcome.exit_code == 4 and "was kept" in outcome.said), outcome
        assert [path.name for path in Path(name).iterdir() if path != output] == ["model"], outcome
        assert outcome.seconds < TOO_LONG_S and outcome.peak_bytes < TOO_MUCH_BYTES, outcome
    return outcome


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


HANDED = {  # what else people hand over, and the command that reads it
    "ref.wav": ("voices", "make", "ref.wav", "--model", BASE, "--text", "Hello.", "-o", "new.voice"),
    "me.voice": ("speak", "Hi", "--voice", "me.voice", "--model", BASE, "--max-frames", 2, "-o", "a.wav"),
    "rows.jsonl": ("batch", "rows.jsonl", "--model", TINY, "--speaker", "ryan", "--max-frames", 2, "-o", "made"),
    "codes.npz": ("inspect", "codes.npz", "-o", "page.html"),
}


def sound_files(folder: Path) -> Path:
    """A folder with all that ``HANDED`` names, nothing wrong with any of it."""
    folder.mkdir()
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 30_000).astype(np.float32)
    soundfile.write(folder / "ref.wav", noise, 24_000)
    (folder / "rows.jsonl").write_text(
        '{"text": "Hi", "seed": 3}\n{"text": "Ho", "file": "b.wav", "speaker": "eric"}\n'
    )
    with working_in(folder):
        made = mlx_tts(*HANDED["ref.wav"][:-1], "me.voice")
        assert made.exit_code == 0, made
        assert mlx_tts(*HELLO, "-o", "a.wav", "--report", ".").exit_code == 0
    return folder


@st.composite
def handed_damages(draw: Callable, source: Path) -> Damage:
    """One file of ``source``, see ``sound_files``, damaged."""
    name = draw(st.sampled_from(sorted(HANDED)))
    damaged = damaged_tensors if name == "me.voice" else damaged_bytes
    return Damage(name, draw(damaged((source / name).read_bytes())))


def attempt_handed(damage: Damage) -> Outcome:
    """Run the command that reads this file, and check what every outcome must be."""
    with tempfile.TemporaryDirectory() as name, working_in(Path(name)):
        Path(damage.name).write_bytes(damage.data)
        outcome = mlx_tts(*HANDED[damage.name])
        assert outcome.exit_code in (0, 2, 3, 4), outcome
        assert outcome.exit_code == 0 or "mlx-tts: " in outcome.said.splitlines()[-1], outcome
        assert not list(Path(name).rglob("*.part")), outcome
        assert outcome.seconds < TOO_LONG_S and outcome.peak_bytes < TOO_MUCH_BYTES, outcome
    return outcome


def signalled(folder: Path, number: int, delay_s: float) -> str:
    """What a run left in an empty folder that got a signal after a while: "whole file", "nothing" or "part".

    Checks that a file under its own name is whole, and that only SIGKILL leaves anything else.
    """
    process = subprocess.Popen(
        [*MLX_TTS, *map(str, HELLO), "-o", "a.wav"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    time.sleep(delay_s)
    process.send_signal(number)
    process.communicate(timeout=600)
    names = {path.name for path in folder.iterdir()}
    if "a.wav" in names:
        assert len(soundfile.read(folder / "a.wav")[0]) == NUM_SAMPLES
    if number == signal.SIGKILL:  # nobody can tidy up after that: a .part may be left, and is in no one's way
        assert all(name == "a.wav" or name.endswith(".part") for name in names), names
    else:
        assert names <= {"a.wav"}, names
        # 1 and -number: while Python is still importing, before there is a handler
        assert process.returncode in (0, 130, 1, -number), process.returncode
    for name in names:
        (folder / name).unlink()
    return "whole file" if "a.wav" in names else "part" if names else "nothing"
