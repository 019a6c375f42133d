"""Measuring: what is counted is right, what is timed is what runs, and the command gives a table and the figures."""

import importlib
import json
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from conftest import ROOT, TINY
from mlx.utils import tree_flatten
from test_rounds_speech import engine as speculating_engine
from test_rounds_speech import random_drafter

from mlx_rvqspec import cli
from mlx_rvqspec.bench import frame, harness, markdown, run, speech
from mlx_rvqspec.fit import collect
from mlx_rvqspec.generate import Engine
from mlx_rvqspec.load import load_model
from mlx_rvqspec.owner import owner
from mlx_rvqspec.spec_decode.drafter import Form


def test_launches_are_what_computes():
    x = mx.ones((4, 4))
    result = (mx.exp(x.T) @ x).reshape(-1).sum()
    assert {"Exp", "Matmul", "Sum", "Transpose"} <= set(harness.primitives(result))
    assert harness.num_launches(result) == 4  # and Full, which made x
    mx.eval(x)
    assert harness.num_launches((mx.exp(x.T) @ x).reshape(-1).sum()) == 3


def test_sides_take_turns_after_a_warm_up():
    order = []
    times = harness.interleave({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ababab"
    assert times["a"]["speedup"] == 1 and times["b"]["min_ms"] <= times["b"]["median_ms"] <= times["b"]["max_ms"]


@pytest.mark.parametrize(
    "arrivals, number, waited",
    [
        ([(1.0, 0.5), (1.4, 0.5), (1.9, 0.5)], 0, 0.0),  # each comes before the last one is over
        ([(1.0, 0.5), (1.7, 0.5), (2.1, 0.5)], 1, 0.2),
        ([(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)], 2, 1.0),
    ],
)
def test_underruns_are_what_a_listener_waits_for(arrivals, number, waited):
    found = speech.underruns(arrivals)
    assert found["underruns"] == number and found["waited_s"] == pytest.approx(waited)


def test_the_frame_suite_measures_every_side_on_equal_codes(monkeypatch):
    monkeypatch.setattr(collect, "MAX_TEXT_FRAMES", 3)
    model = load_model(TINY)
    drafter = replace(random_drafter(Form(3, 1, True, 2, 4, 4, "noise")), fingerprint=model.fingerprint)
    plan = frame.Plan(("uncompiled",), (4,), 1, 1)
    suite = frame.frame_suite(model, drafter, ["Hello there."], plan, seed=1)
    assert list(suite["codes_ms"]) == ["plain uncompiled", "spec 4 uncompiled"]
    assert suite["spec"]["4"]["codes_per_round"] == pytest.approx(15 / suite["spec"]["4"]["rounds"])
    assert suite["launches"]["compiled"]["code_decoder"] < suite["launches"]["uncompiled"]["code_decoder"]
    assert suite["bytes_per_call"]["code_decoder"] < sum(
        value.nbytes for value in mx.load(str(TINY / "model.safetensors")).values()
    )
    rows = markdown.frame(suite).splitlines()
    assert len(rows) == 2 + 2 + 1 + len(frame.CHUNKS) + 2 and all(row.count("|") == 10 for row in rows[:-2])


def test_frames_are_decoded_one_after_another():
    made = []

    def decode(x):
        assert not made or not harness.primitives(made[-1]), "the frame before is not decoded yet"
        made.append(x + 1)
        return made[-1]

    frame.one_by_one(decode, [(mx.zeros(1),)] * 3)  # type: ignore[list-item]
    assert len(made) == 3


def test_rows_that_adapt_are_timed_beside_fixed_ones(monkeypatch):
    monkeypatch.setattr(frame, "LEARNING", 5)
    model = load_model(TINY)
    drafter = random_drafter(Form(3, 1, True, 2, 4, 4, "noise"))
    sizes = tuple(size for size in drafter.trees if size > 1)
    frames = frame.spoken_frames(model, ["Hello there."], 1, 1)
    times = frame.time_codes(model, drafter, frames, frame.Plan(("uncompiled",), sizes, 1, 1))
    assert len(sizes) > 1 and list(times)[-1] == "adaptive uncompiled"
    assert times["adaptive uncompiled"]["num_nodes"] in sizes
    suite = {
        "codes_ms": times,
        "stages_ms": {},
        "spec": {},
        "launches": {"uncompiled": {"multi_code_decoder plain": 7}},
    }
    (row,) = (
        row for row in markdown.frame(suite | {"gb_per_s": {}, "peak_gb_per_s": 1.0}).splitlines() if "adapt" in row
    )
    assert ", now " in row and row.count("|") == 10 and "7" not in row.split("|")[6]


def test_other_codes_than_plain_decoding_are_no_measurement(monkeypatch):
    monkeypatch.setattr(collect, "MAX_TEXT_FRAMES", 3)
    model = load_model(TINY)
    frames = frame.spoken_frames(model, ["Hello there."], 1, 0)
    wrong = replace(frames, codes=(frames.codes + 1) % 64)
    with pytest.raises(AssertionError, match="other codes than plain decoding"):
        frame.time_codes(model, None, wrong, frame.Plan(("uncompiled",), (), 1, 1))


def test_an_advance_that_is_timed_is_the_one_that_runs():
    """The timed call goes on from its own state: slots fill up as in a run, and the cache does not grow."""
    advance = frame.Advance(load_model(TINY), mx.zeros((1, 16), dtype=mx.int32), frame.as_it_is, at=100)
    capacity = advance.state.cache.capacity
    mx.eval(advance())
    mx.eval(advance())
    assert advance.state.cache.num_cached.item() == 102 and advance.state.cache.capacity == capacity


def test_speech_is_measured_as_a_listener_has_it(monkeypatch):
    engine = speculating_engine()
    monkeypatch.setattr(engine, "sampling", replace(engine.sampling, max_frames=6))  # others use the same engine
    suite = speech.speech_suite(engine, 1.0, repeats=1, seed=0, texts={"short": "Hi."})
    assert set(suite["warm"]) == {"spec", "plain"} and suite["cold"]["audio_s"] == pytest.approx(0.48)
    spec, plain = (suite["warm"][way]["short"] for way in ("spec", "plain"))
    assert spec["codes_per_round"] > plain["codes_per_round"] == 1
    assert 0 < spec["first_playable_s"] <= spec["total_s"] and spec["finish_reasons"] == ["length"]
    assert markdown.speech(suite).count("\n") == 4


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(collect, "MAX_TEXT_FRAMES", 2)
    monkeypatch.setattr(speech, "TEXTS", {"short": "Hi."})
    monkeypatch.setattr(harness, "peak_gb_per_s", lambda: 1.0)
    monkeypatch.chdir(tmp_path)
    arguments = [TINY, "--quick", "--suite", "scaling", "-o", "b.json", "-q"]
    monkeypatch.setattr("sys.argv", ["mlx-tts", "bench", *map(str, arguments)])
    code = cli.run()
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "b.json").read_text())
    assert not code and err == "" and list(result["suites"]) == ["scaling"]
    assert result["environment"]["blas"] and result["model"]["precision"] == "float32"
    assert out.startswith("tiny_customvoice, 0b6 custom_voice, float32") and "| slots cached | 100 |" in out
    batches = result["suites"]["scaling"]["codes_by_batch"]
    assert list(batches) == ["1", "2", "4", "8"] and all(np.isfinite(time["median_ms"]) for time in batches.values())
    assert run.SUITES == ("speech", "frame", "scaling")


def test_what_cannot_be_measured_or_written_is_a_usage_fault(tmp_path, monkeypatch, capsys):
    (tmp_path / "old.json").touch()
    base = str(TINY.with_name("tiny_base"))
    for arguments, message in (
        (["--suite", "all"], "expected speech, frame, scaling"),
        (["-o", str(tmp_path / "old.json")], "exists; name a new file"),
        (["-o", str(tmp_path / "none" / "b.json")], "create it first"),
        ([base], "Base model"),
    ):
        monkeypatch.setattr("sys.argv", ["mlx-tts", "bench", *arguments])
        code = cli.run()
        assert code == 2 and message in capsys.readouterr().err


@pytest.fixture
def scripts(monkeypatch):
    """A function that imports a script of bench/."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


def test_the_tables_are_those_of_the_results(scripts):
    table = scripts("table")
    for path in table.PAGES:
        assert table.fill(path.read_text()) == path.read_text(), f"{path.name}: run python bench/table.py"
    assert "Not run yet." in table.fill("<!-- table peers -->\nold\n<!-- end -->") or "| text to codes" in table.fill(
        "<!-- table peers -->\nold\n<!-- end -->"
    )


def test_a_call_reads_or_multiplies_and_launches(scripts):
    model = scripts("cost_model")
    device = model.Device("a device", gb_per_s=100 / model.SHARE_OF_PEAK, tflops=1 / model.SHARE_OF_PEAK)
    # 50 M weights are 0.1 GB: 1 ms to read, 0.1 ms to multiply with a row
    assert model.call_ms(device, 50e6, 1, 0, 5.0) == pytest.approx(1.0)
    assert model.call_ms(device, 50e6, 1, 100, 5.0) == pytest.approx(1.5)
    assert model.call_ms(device, 50e6, 32, 0, 5.0) == pytest.approx(3.2)
    assert model.error([{"predicted": 2.0, "published": 1.0}]) == pytest.approx(np.log(2))


def test_the_peers_script_tells_how_far_greedy_codes_agree(scripts):
    peers = scripts("peers")

    class Fake:
        def __init__(self, *codes):
            self.codes = list(codes)

        def ask(self, task):
            assert task["temperature"] == 0
            return {"codes": self.codes[task.get("num_nodes", 1) > 1]}

    workers = {"peer": Fake([1, 2, 3]), "ours": Fake([1, 2, 3], [1, 9, 3])}
    found = peers.compare_codes(workers, peers.sides_of(False, 8), {"temperature": 0.9}, "Hi.")
    assert found["equal_frames"] == {"ours plain uncompiled": 3, "ours spec 8 uncompiled": 1}


def test_after_warming_up_a_request_meets_no_new_shape():
    """What is compiled by shape is compiled by then."""
    seen: set[str] = set()

    def noting(function):
        def call(*args):
            shapes = [value.shape for _, value in tree_flatten(args) if isinstance(value, mx.array)]
            seen.add(f"{function.__name__} {shapes}")
            return function(*args)

        return call

    drafter = random_drafter(Form(3, 1, True, 2, 4, 4, "noise"))
    engine = owner().run(lambda: Engine(load_model(TINY), noting, drafter=drafter, num_nodes=4))
    engine.warm_up()
    known = set(seen)
    sampling = replace(engine.sampling, max_frames=9)
    assert len(list(engine.stream("Another text.", speaker="aiden", seed=5, sampling=sampling))) == 3
    assert known and seen == known


def test_stored_tensors_are_let_go_while_loading():
    """Or a model that is converted to float32 would need the memory of both."""
    load_module = importlib.import_module("mlx_rvqspec.load")
    module, weights = nn.Linear(2, 3), {"weight": mx.ones((3, 2), dtype=mx.bfloat16), "bias": mx.zeros((3,))}
    load_module._fill(module, weights, mx.float32, TINY)
    assert weights == {} and module.weight.dtype == mx.float32
