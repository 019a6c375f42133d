"""verify finds what is damaged without loading it, and download --repair fetches that and nothing else."""

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from conftest import ROOT, TINY
from damage import mlx_tts

from mlx_rvqspec.integrity import examine

NAME = "Qwen/Tiny-CustomVoice"
REVISION = "0123456789" * 4


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Stands for the hub: ``snapshot_download`` fills a cache of the real layout and notes what it fetched."""

    def __init__(self, cache: Path) -> None:
        self.repo, self.fetched, self.online = cache / "models--Qwen--Tiny-CustomVoice", [], True

    @property
    def folder(self) -> Path:
        return self.repo / "snapshots" / REVISION

    def snapshot_download(self, repo: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        assert repo == NAME
        if local_files_only:
            if not self.folder.is_dir():
                raise FileNotFoundError("not in the cache")
            return str(self.folder)
        if not self.online:
            raise ConnectionError("no route to host")
        (self.repo / "blobs").mkdir(parents=True, exist_ok=True)
        for path in TINY.rglob("*.*"):
            link, data = self.folder / path.relative_to(TINY), path.read_bytes()
            if path.suffix == ".npz" or link.exists():
                continue
            blob = hashlib.sha256(data).hexdigest() if path.suffix == ".safetensors" else git_hash(data)
            (self.repo / "blobs" / blob).write_bytes(data)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(self.repo / "blobs" / blob, link.parent))
            self.fetched.append(str(path.relative_to(TINY)))
        return str(self.folder)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was used"))
    return hub


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model", ignore=shutil.ignore_patterns("*.npz")))


def faults(folder: Path) -> list[str]:
    return [finding.name for finding in examine(folder) if finding.fault]


@pytest.mark.parametrize("source", [TINY, ROOT / "weights" / "tiny-en"])
def test_a_whole_model_is_found_whole(source):
    assert not faults(source) and len(list(examine(source))) >= 8


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda folder: (folder / "merges.txt").unlink(), "merges.txt"),
        (lambda folder: os.truncate(folder / "model.safetensors", 10**6), "model.safetensors"),
        (lambda folder: (folder / "speech_tokenizer/model.safetensors").write_bytes(b"version "), "speech_tokenizer/"),
        (lambda folder: shutil.rmtree(folder / "speech_tokenizer"), "speech_tokenizer/config.json"),
        (lambda folder: (folder / "vocab.json").write_text("{}"), "all together"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), "all together"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"elsewhere": "model.safetensors"}})
            ),
            "all together",
        ),
    ],
)
def test_damage_is_found_without_loading(folder, damage, name):
    damage(folder)
    assert any(found.startswith(name) for found in faults(folder))
    outcome = mlx_tts("verify", folder, "--quiet")
    assert outcome.exit_code == 3 and outcome.said.count("\n") == 1 and "download --repair" in outcome.said


def test_verify_says_what_it_looked_at(folder):
    outcome = mlx_tts("verify", folder)
    assert outcome.exit_code == 0 and "whole    model.safetensors" in outcome.said
    assert mlx_tts("verify").exit_code == 0


def test_download_brings_a_model_and_repair_only_what_is_damaged(hub):
    assert mlx_tts("download", NAME).exit_code == 0 and len(hub.fetched) == 10
    outcome = mlx_tts("verify", NAME)
    assert outcome.exit_code == 0 and outcome.said.count("hash compared") == 8
    weights = (hub.folder / "model.safetensors").resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # one bit, which no header shows
    weights.write_bytes(data)
    (hub.folder / "vocab.json").resolve().unlink()
    (hub.repo / "blobs" / "abc.incomplete").touch()
    outcome = mlx_tts("verify", NAME, "--quiet")
    assert outcome.exit_code == 3 and "model.safetensors does not have the contents" in outcome.said
    hub.fetched.clear()
    outcome = mlx_tts("download", NAME, "--repair")
    assert outcome.exit_code == 0 and sorted(hub.fetched) == ["model.safetensors", "vocab.json"]
    assert "fetching model.safetensors anew" in outcome.said and not list(hub.repo.rglob("*.incomplete"))
    assert mlx_tts("verify", NAME).exit_code == 0


def test_download_without_a_network_is_one_line(hub):
    hub.online = False
    outcome = mlx_tts("download", NAME)
    assert outcome.exit_code == 3 and "no route to host" in outcome.said and outcome.said.count("\n") == 1
    assert mlx_tts("download", "no-id").exit_code == 2
