"""What was measured is kept, believed where it fits, and shown; without a compiler everything still runs."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import mlx.core as mx
import pytest
from conftest import ROOT, TINY
from test_cli import run  # noqa: F401  a fixture
from test_rounds_speech import random_drafter

from mlx_rvqspec import cli
from mlx_rvqspec.device_profile import Profile, best_rows, describe, read_profiles, smallest_chunk, write_profile
from mlx_rvqspec.fit import device
from mlx_rvqspec.generate import load
from mlx_rvqspec.load import fingerprint, load_model
from mlx_rvqspec.spec_decode.drafter import FILE, Form, cache_folder, device_name, rows_file, save

PROFILE = Profile(4, {"1": 2.0, "4": 3.0}, 40.0, 8.0, 15.0, {"1": 40.0, "8": 200.0}, 8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")


@pytest.mark.parametrize(
    "code_ms, sound_ms, frames",
    [
        (10, {"1": 50, "2": 60}, 1),  # 60 of the 64 ms that a frame may take
        (20, {"1": 50, "2": 60, "4": 80}, 2),
        (60, {"1": 50, "16": 50}, 16),
        (60, {"1": 50, "4": 100}, 0),
        (90, {"1": 1, "4": 1}, 0),
    ],
)
def test_a_chunk_is_made_in_less_time_than_it_plays(code_ms, sound_ms, frames):
    assert smallest_chunk(code_ms, sound_ms, 80.0) == frames


def test_a_profile_is_read_back_beside_what_cannot_be_read():
    rows_file("f").parent.mkdir(parents=True)
    rows_file("f").write_text(json.dumps({"old": {"num_nodes": 8, "round_ms": {}}, "worse": 3}))
    write_profile("f", "new", PROFILE)
    assert read_profiles("f") == {"new": PROFILE} and set(json.loads(rows_file("f").read_text())) > {"old", "new"}
    rows_file("f").write_text("{")
    assert read_profiles("f") == {} and describe(("f",)) == ()
    write_profile("f", "new", PROFILE)
    assert describe(("f",)) == ("new: 4 rows a round, 23.0 ms a frame's codes, chunks of 8 frames, 40.0 GB/s",)


def test_rows_where_nobody_has_measured_depend_on_the_device():
    gpu, cpu = (f"arm64 {mx.Device(kind)} mlx.core.bfloat16 compiled mlx 1" for kind in (mx.gpu, mx.cpu))
    sizes = (1, 2, 4, 8, 12, 16, 32)
    assert (best_rows("f", gpu, sizes, 4), best_rows("f", cpu, sizes, 4)) == (16, 4)
    assert (best_rows("f", gpu, (1, 2, 4), 4), best_rows("f", gpu, (1,), 1)) == (4, 1)
    write_profile("f", gpu, PROFILE)
    assert best_rows("f", gpu, sizes, 8) == PROFILE.num_nodes


def test_a_profile_that_cannot_be_written_leaves_nothing_behind():
    rows_file("f").mkdir(parents=True)
    with pytest.raises(OSError):
        write_profile("f", "new", PROFILE)
    assert list(rows_file("f").parent.iterdir()) == [rows_file("f")]


def test_the_engine_hands_out_the_chunks_that_were_measured(capsys, monkeypatch):
    drafter = replace(random_drafter(Form(3, 1, True, 2, 4, 4, "noise")), fingerprint=fingerprint(TINY))
    save(drafter, cache_folder() / drafter.fingerprint / FILE)
    assert load(TINY).chunk_frames == 4
    write_profile(drafter.fingerprint, device_name("mlx.core.float32", False), PROFILE)
    engine = load(TINY)
    assert (engine.chunk_frames, engine.num_nodes) == (8, 4)
    sampling = replace(engine.sampling, max_frames=9)
    chunks = list(engine.stream("Hello.", speaker="ryan", seed=1, sampling=sampling))
    assert [len(chunk.codes) for chunk in chunks] == [8, 1]
    monkeypatch.setattr("sys.argv", ["mlx-tts", "info", "--model", str(TINY)])
    cli.run()
    assert "uncompiled mlx" in (out := capsys.readouterr().out) and "4 rows a round, 23.0 ms" in out


@pytest.mark.parametrize("change", [{"num_nodes": 7}, {"codes_ms": "15"}, {"gb_per_s": 1e10}, {"num_nodes": True}])
def test_info_and_load_believe_the_same_of_what_is_kept(run, change):  # noqa: F811
    drafter = replace(random_drafter(Form(3, 1, True, 2, 4, 4, "noise")), fingerprint=fingerprint(TINY))
    save(drafter, cache_folder() / drafter.fingerprint / FILE)
    name = device_name("mlx.core.float32", False)
    rows_file(drafter.fingerprint).write_text(json.dumps({name: asdict(PROFILE) | {"num_nodes": 1} | change}))
    engine = load(TINY)
    assert engine.num_nodes == drafter.facts["num_nodes"] != 1
    assert f"speculative, {engine.num_nodes} rows" in json.loads(run("info", "--model", TINY, "--json")[1])["decoding"]


def test_a_profile_holds_what_was_measured(monkeypatch):
    monkeypatch.setattr(device, "peak_gb_per_s", lambda: 5.0)
    monkeypatch.setattr(device, "measure_others", lambda *_: (2.0, {"1": 60.0, "4": 100.0}))
    costs = [device.Cost(1, 1.0, 0.001), device.Cost(4, 3.0, 0.002)]
    profile = device.profile_of(load_model(TINY), costs, *device.measure_others())
    assert profile.num_nodes == 4 and profile.codes_ms == pytest.approx(10) and profile.chunk_frames == 4
    assert profile.round_ms == {"1": 1.0, "4": 2.0} and profile.gb_per_s == 5.0


def test_without_a_compiler_it_speaks_uncompiled_with_one_warning(tmp_path):
    (tmp_path / "bin").mkdir()
    program = f"""
from dataclasses import asdict, replace
import mlx_rvqspec as tts
engines = [tts.load({str(TINY)!r}, compile=compile) for compile in (True, True, False)]
sampling = replace(engines[0].sampling, max_frames=3)
spoken = [engine.speak("Hello.", speaker="ryan", seed=1, sampling=sampling) for engine in engines]
assert all((speech.codes == spoken[2].codes).all() for speech in spoken)
assert abs(spoken[0].audio - spoken[2].audio).max() < 1e-4
"""
    environment = {**os.environ, "PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no g++ on PATH") == 1 and done.stderr.count("Warning") == 1
