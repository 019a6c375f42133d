"""Loading is strict, says which file is wrong and why, and needs no network once the files are there."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_rvqspec.config import ModelError, read_config
from mlx_rvqspec.load import load_model, resolve
from mlx_rvqspec.sampling import Sampling

GOLDEN = Path(__file__).parent / "golden"
SOURCE = GOLDEN / "tiny_customvoice"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a model folder that a test may damage."""
    return Path(shutil.copytree(SOURCE, tmp_path / "model", ignore=shutil.ignore_patterns("*.npz")))


def edit(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in {**data, **changes}.items() if value is not None}))


def shard(folder: Path) -> None:
    """Split model.safetensors in two with an index, as the larger checkpoints come."""
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part})
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def rename_tensor(path: Path, old: str, new: str | None) -> None:
    weights = mx.load(str(path))
    assert isinstance(weights, dict)
    value = weights.pop(old)
    mx.save_safetensors(str(path), weights if new is None else {**weights, new: value})


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1024)


DAMAGE = {
    "config.json is missing": lambda f: (f / "config.json").unlink(),
    "config.json cannot be read as JSON": lambda f: (f / "config.json").write_text("{"),
    "config.json holds list": lambda f: (f / "config.json").write_text("[]"),
    "missing section talker_config": lambda f: edit(f / "config.json", talker_config=None),
    "missing tts_eos_token_id": lambda f: edit(f / "config.json", tts_eos_token_id=None),
    "describes 'qwen2'": lambda f: edit(f / "config.json", model_type="qwen2"),
    "unknown tts_model_type 'new'": lambda f: edit(f / "config.json", tts_model_type="new"),
    "speech_tokenizer/config.json is missing": lambda f: shutil.rmtree(f / "speech_tokenizer"),
    "speech_tokenizer/model.safetensors is missing": lambda f: (f / "speech_tokenizer/model.safetensors").unlink(),
    "generation_config.json is missing": lambda f: (f / "generation_config.json").unlink(),
    "merges.txt is missing": lambda f: (f / "merges.txt").unlink(),
    "model.safetensors is missing": lambda f: (f / "model.safetensors").unlink(),
    "asks for .* download it again": lambda f: truncate(f / "model.safetensors"),
    "git-lfs pointer": lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
    "truncated or no safetensors file": lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 16),
    "malformed safetensors header": lambda f: (f / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]"),
    "talker.code_predictor.lm_head.7.weight is missing": lambda f: rename_tensor(
        f / "model.safetensors", "talker.code_predictor.lm_head.7.weight", None
    ),
    "model.nrm.weight": lambda f: rename_tensor(
        f / "model.safetensors", "talker.model.norm.weight", "talker.model.nrm.weight"
    ),
    "unexpected tensors extra": lambda f: rename_tensor(f / "model.safetensors", "talker.model.norm.weight", "extra"),
    "speech_tokenizer": lambda f: rename_tensor(
        f / "speech_tokenizer/model.safetensors", "decoder.pre_conv.conv.bias", None
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_one_error_with_file_and_reason(folder: Path, message: str) -> None:
    DAMAGE[message](folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert "model" in str(caught.value) and len(str(caught.value)) < 500


def test_wrong_shape_names_the_tensor(folder: Path) -> None:
    edit(folder / "config.json", talker_config={**json.loads((folder / "config.json").read_text())["talker_config"],
                                                "intermediate_size": 105})  # fmt: skip
    with pytest.raises(ModelError, match=r"mlp\.\w+_proj\.weight"):
        load_model(folder)


def test_shards_load_like_one_file(folder: Path) -> None:
    shard(folder)
    one, two = load_model(SOURCE), load_model(folder)
    x = mx.ones((1, 3, 64))
    states = [m.code_decoder(x, m.code_decoder.new_cache(1, 3, mx.float32), mx.array([0]))[0] for m in (one, two)]
    np.testing.assert_array_equal(np.array(states[0]), np.array(states[1]))
    assert one.fingerprint == two.fingerprint


def test_missing_shard_and_escaping_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").rename(folder / "model-00002-of-00002.safetensors.incomplete")
    with pytest.raises(ModelError, match="model-00002-of-00002.safetensors is missing"):
        load_model(folder)
    edit(folder / "model.safetensors.index.json", weight_map={"a": "../../elsewhere.safetensors"})
    with pytest.raises(ModelError, match="outside its folder"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_precisions(dtype: str) -> None:
    model = load_model(SOURCE, dtype=dtype)
    assert model.code_decoder.codec_head.weight.dtype == getattr(mx, dtype)
    floats = [array for _, array in tree_flatten(model.speech_decoder.parameters())]
    assert {array.dtype for array in floats if mx.issubdtype(array.dtype, mx.floating)} == {mx.float32}
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        load_model(SOURCE, dtype="int8")


def test_defaults_come_from_the_checkpoint(folder: Path) -> None:
    assert (
        load_model(folder).sampling == Sampling()
        and load_model(folder).max_frames == 8191
        and load_model(folder).text_feed == "full"
    )
    edit(folder / "generation_config.json", temperature=0.6, max_new_tokens=101, non_streaming_mode=False)
    model = load_model(folder)
    assert model.sampling == Sampling(temperature=0.6) and model.max_frames == 100 and model.text_feed == "stream"


def test_all_reference_configurations_read() -> None:
    kinds = [read_config(path).tts_model_type for path in sorted(GOLDEN.glob("tiny_*"))]
    assert kinds == ["base", "custom_voice", "custom_voice", "voice_design"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_hub_id_in_a_warm_cache_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    revision = "0123456789" * 4
    repo = tmp_path / "models--Qwen--Tiny-CustomVoice"
    shutil.copytree(SOURCE, repo / "snapshots" / revision)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(revision)
    assert resolve("Qwen/Tiny-CustomVoice") == repo / "snapshots" / revision
    assert load_model("Qwen/Tiny-CustomVoice").config.speakers
    (repo / "snapshots" / revision / "speech_tokenizer" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="not complete in the local cache"):
        resolve("Qwen/Tiny-CustomVoice")


def test_cold_cache_without_network_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for local_files_only in (False, True):
        with pytest.raises(ModelError, match="mlx-tts download Qwen/None") as caught:
            resolve("Qwen/None", local_files_only=local_files_only)
        assert "\n" not in str(caught.value)


def test_nothing_is_fetched_that_must_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["mlx_rvqspec.load"]  # the package has a function of the same name
    monkeypatch.setattr(module, "cached", lambda repo: None)
    monkeypatch.setattr(module, "fetch", lambda repo: pytest.fail("the network was asked"))
    with pytest.raises(ModelError, match="not complete in the local cache"):
        resolve("Qwen/None", local_files_only=True)


def test_what_is_no_model_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        resolve("no/such/folder")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is a file"):
        resolve(tmp_path / "file")
