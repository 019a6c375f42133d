"""Quantised models: what is written is read back, what does not fit is named, and speculation stays exact."""

import json
import shutil
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from conftest import TINY
from mlx.utils import tree_flatten
from test_rounds import CHAIN, CHOICES, ROOT, Told, all_kinds, uncompiled

from mlx_rvqspec import cli
from mlx_rvqspec.config import ModelError
from mlx_rvqspec.conversion import convert
from mlx_rvqspec.generate import load
from mlx_rvqspec.layers import rotary, swiglu
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.quantisation import level
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode import frames
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree

HEAD = "talker.code_predictor.lm_head.3"


@cache
def full() -> Qwen3TTS:
    return load_model(TINY)


@pytest.fixture
def copy(tmp_path):
    """A function that makes a quantised copy of the tiny model."""

    def copy(bits: int = 4, mixed: bool = False) -> Path:
        convert(TINY, tmp_path / f"copy{bits}", bits=bits, mixed=mixed)
        return tmp_path / f"copy{bits}"

    return copy


def tensors(model: Qwen3TTS) -> dict[str, mx.array]:
    parts = {"code": model.code_decoder, "multi": model.multi_code_decoder, "speech": model.speech_decoder}
    return {f"{part}.{name}": value for part, m in parts.items() for name, value in tree_flatten(m.parameters())}


def edit_table(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization"] = {**config["quantization"], **entries}
    path.write_text(json.dumps(config))


def edit_tensors(folder: Path, **changes: mx.array | None) -> None:
    weights = dict(mx.load(str(folder / "model.safetensors")))
    weights |= changes
    kept = {name: value for name, value in weights.items() if value is not None}
    mx.save_safetensors(str(folder / "model.safetensors"), kept)


@pytest.mark.parametrize("bits, mixed, quantize", [(8, False, 8), (6, False, 6), (4, False, 4), (4, True, "mixed")])
def test_a_copy_is_read_back_as_it_was_made_in_memory(copy, bits, mixed, quantize):
    written, made = tensors(load_model(copy(bits, mixed))), tensors(load_model(TINY, quantize=quantize))
    assert written.keys() == made.keys() and written.keys() > tensors(full()).keys()
    assert all(mx.array_equal(value, made[name]) for name, value in written.items())
    assert {value.dtype for name, value in written.items() if name.startswith("speech.")} <= {mx.float32, mx.int32}


def test_a_second_copy_has_the_same_bytes(copy, tmp_path):
    first = copy().rename(tmp_path / "first")
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    second = copy()
    assert [(second / name).read_bytes() for name in names] == [(first / name).read_bytes() for name in names]
    assert names == sorted(str(path.relative_to(second)) for path in second.rglob("*") if path.is_file())


def test_packed_numbers_are_near_and_coarser_with_fewer_bits():
    states = mx.random.normal((4, 64), key=mx.random.key(0))
    expected, errors = full().code_decoder.codec_head(states), []
    for quantize in (8, 6, 4):
        found = load_model(TINY, quantize=quantize).code_decoder.codec_head(states)
        errors.append((mx.abs(found - expected).max() / mx.abs(expected).max()).item())
    assert 0 < errors[0] < errors[1] < errors[2] < 0.3 and errors[0] < 0.02


def test_mixed_has_finer_heads_and_says_so(copy):
    model = load_model(copy(4, True))
    assert model.quantised == "q4+8" and model.precision == "mlx.core.float32 q4+8"
    assert model.multi_code_decoder.lm_head.bits == 8 and model.code_decoder.codec_head.bits == 8
    layer = model.code_decoder.model.layers[0]
    assert layer.mlp.up_proj.bits == 4 and layer.self_attn.v_proj.bits == 8
    # already at 8, the bulk leaves the others their numbers
    assert isinstance(load_model(copy(8, True)).code_decoder.codec_head, nn.Linear)


def test_queries_keys_and_values_in_one_product_are_those_apart():
    """Where they are packed alike; the parts stay what was loaded, and are not held twice."""
    attention = load_model(TINY, quantize=8).code_decoder.model.layers[0].self_attn
    position = rotary(mx.arange(3)[None], attention.head_dim, 1e6)
    x = mx.random.normal((3, 64), key=mx.random.key(1))
    assert attention._qkv
    for together, apart in zip(attention._together(x, position), attention._apart(x, position)):
        np.testing.assert_allclose(together, apart, atol=1e-6)
    mlp = load_model(TINY, quantize=8).code_decoder.model.layers[0].mlp
    assert mlp._gate_up
    np.testing.assert_allclose(mlp.inner(x), swiglu(mlp.gate_proj(x), mlp.up_proj(x)), atol=1e-6)
    mixed = load_model(TINY, quantize="mixed").code_decoder.model.layers[0].self_attn
    assert not mixed._qkv and mixed.v_proj.bits != mixed.q_proj.bits


def test_group_sizes_follow_the_widths():
    """Rows of 104 numbers (the MLP's) are no whole number of groups, rows of 96 are three of 32."""
    projected = load_model(TINY.parent / "tiny_projected", quantize=4)
    widths = {
        name: leaf for name, leaf in tree_flatten(projected.code_decoder.leaf_modules(), is_leaf=nn.Module.is_module)
    }
    sizes = {leaf.group_size for leaf in widths.values() if hasattr(leaf, "group_size")}
    assert sizes <= {32, 64} and 32 in sizes


def test_a_folder_quantised_by_other_rules_loads(copy):
    """As mlx-audio writes it: tables keep their numbers and are not mentioned, the field has two names, an index."""
    folder, source = copy(8), dict(mx.load(str(TINY / "model.safetensors")))
    changes: dict[str, mx.array | None] = {}
    for name in [name for name, value in source.items() if "embedding" in name and value.ndim == 2]:
        stem = name.removesuffix(".weight")
        changes |= {name: source[name], f"{stem}.scales": None, f"{stem}.biases": None}
    edit_tensors(folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    table = {key: config["quantization"][key] for key in ("group_size", "bits", "mode")}
    config |= {"quantization": table, "quantization_config": table}
    del config["source_fingerprint"]
    (folder / "config.json").write_text(json.dumps(config))
    names = dict.fromkeys(mx.load(str(folder / "model.safetensors")), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    model = load_model(folder)
    assert isinstance(model.code_decoder.model.text_embedding, nn.Embedding) and model.source_fingerprint == ""
    heads = load_model(TINY, quantize=8).multi_code_decoder.lm_head
    assert mx.array_equal(model.multi_code_decoder.lm_head.weight, heads.weight)


DAMAGE = {
    r"lm_head.3.weight is uint32 \[64, 8\]; expected uint32 \[64, 16\] of 8 bits in groups of 64": lambda f: edit_table(
        f, **{HEAD: {"bits": 8, "group_size": 64}}
    ),
    "lm_head.3.scales found, but config.json says it is not quantised": lambda f: edit_table(f, **{HEAD: False}),
    "lm_head.3.scales found, but its weight or biases is missing": lambda f: edit_tensors(
        f, **{f"{HEAD}.biases": None}
    ),
    "quantization of talker.model.norm is .* but talker.model.norm.scales is missing": lambda f: edit_table(
        f, **{"talker.model.norm": {"bits": 4, "group_size": 64}}
    ),
    "bits 5.5 in groups of 64": lambda f: edit_table(f, **{HEAD: {"bits": 5.5, "group_size": 64}}),
    "has mode 'mxfp4'; only 'affine'": lambda f: edit_table(f, mode="mxfp4"),
    "expected an object with group_size and bits": lambda f: edit_table(f, bits=None),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_what_does_not_fit_is_named(copy, message):
    folder = copy()
    DAMAGE[message](folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value) and len(str(caught.value)) < 500


def test_a_table_without_packed_tensors_and_the_reverse(copy, tmp_path):
    folder = copy()
    config = json.loads((folder / "config.json").read_text())
    del config["quantization"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"\.scales found, but config.json has no field quantization"):
        load_model(folder)
    plain = shutil.copytree(TINY, tmp_path / "plain")
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(ModelError, match="no tensor with scales found, but config.json has a field quantization"):
        load_model(plain)


def test_heads_packed_unlike_each_other_are_refused(copy):
    folder, source = copy(4), dict(mx.load(str(TINY / "model.safetensors")))
    parts = mx.quantize(source[f"{HEAD}.weight"], 64, 8)
    edit_tensors(folder, **{f"{HEAD}.{part}": value for part, value in zip(("weight", "scales", "biases"), parts)})
    edit_table(folder, **{HEAD: {"bits": 8, "group_size": 64}})
    with pytest.raises(ModelError, match=r"talker.code_predictor.lm_head.0 to 14: weight of unlike shapes"):
        load_model(folder)


def test_what_cannot_be_quantised_says_so(copy, tmp_path):
    for quantize in (5, "8", 4.5, True):
        with pytest.raises(ValueError, match="expected 8, 6, 4 or 'mixed'"):
            level(quantize)
    folder = copy()
    with pytest.raises(ModelError, match="quantised already"):
        load_model(folder, quantize=8)
    with pytest.raises(ModelError, match="quantised already"):
        convert(folder, tmp_path / "again", bits=8)
    with pytest.raises(ValueError, match="exists; name a new folder"):
        convert(TINY, folder, bits=8)


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(mx, "save_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        convert(TINY, tmp_path / "copy", bits=8)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quantize", [8, "mixed"])
@pytest.mark.parametrize("tree, first_tree", [(CHAIN, CHAIN), (Tree(((0,), (1,), (0, 0), (0, 1), (1, 0))), ROOT)])
def test_rounds_equal_plain_decoding_of_the_quantised_model(quantize, tree, first_tree):
    """With float32 activations, whatever is drafted, at several settings of the sampler."""
    model = load_model(TINY, quantize=quantize)
    keys = mx.random.split(mx.random.key(5), 3)
    hidden, code0 = mx.random.normal((3, 64), key=keys[0]), mx.random.randint(0, 64, (3,), key=keys[1])
    first, noise = model.code_decoder.embed_codes(code0), mx.random.gumbel((3, 15, 64), key=keys[2])
    for choice in CHOICES[::3]:
        rest = model.multi_code_decoder.decode_frame(hidden, first, noise, choice.form, choice.knobs)
        codes = mx.concatenate([code0[:, None], rest], axis=1)
        proposer = Told(all_kinds(codes))
        rounds = Rounds(model.multi_code_decoder, proposer, tree, first_tree, choice.form, wrap=uncompiled)
        state = frames.in_bursts(rounds, hidden, code0.astype(mx.int32), first, noise, choice.knobs)
        np.testing.assert_array_equal(np.array(state.codes), np.array(codes))


def test_a_copy_of_the_built_in_voice_speaks_with_the_drafter_of_its_source(tmp_path, monkeypatch):
    """By speculation as by plain decoding; without the record of its source the drafter is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = load_model()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mlx-tts", "convert", "-q", "6", "--mixed", "-o", "six"])
    code = cli.run()
    assert not code
    model = load_model("six")
    assert model.source_fingerprint == source.fingerprint != model.fingerprint
    assert drafters.find(Path("six"), model.multi_code_decoder, model.fingerprints, None)
    engine = load("six")
    sampling = engine.sampling.__class__(max_frames=6)
    spec, plain = (engine.speak("Yes.", seed=1, decode=decode, sampling=sampling) for decode in ("spec", "plain"))
    np.testing.assert_array_equal(spec.codes, plain.codes)
    assert spec.stats.rounds < plain.stats.rounds
    config = json.loads(Path("six/config.json").read_text())
    del config["source_fingerprint"]
    Path("six/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="not for this model"):
        load("six")


def test_few_bits_are_remarked_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments, remark in ((["-q", "4"], True), (["-q", "4", "--mixed"], False), (["-q", "8"], False)):
        monkeypatch.setattr("sys.argv", ["mlx-tts", "convert", str(TINY), *arguments, "-o", "".join(arguments)])
        code = cli.run()
        out, err = capsys.readouterr()
        assert not code and out.strip() == "".join(arguments) and ("4 bits" in err) == remark
    monkeypatch.setattr("sys.argv", ["mlx-tts", "convert", str(TINY), "-q", "5", "-o", "five"])
    code = cli.run()
    assert code == 2 and "expected 8, 6, 4" in capsys.readouterr().err
