"""Wherever a name is taken, one that does not exist is answered with the nearest that does."""

import json

import pytest
from conftest import TINY
from test_cli import run  # noqa: F401  a fixture
from test_clone import voice

from mlx_rvqspec.generate import load
from mlx_rvqspec.hub import fetch
from mlx_rvqspec.names import nearest, nearest_path

SPEAK = ["speak", "Hi", "--model", TINY, "--speaker", "ryan", "-o", "out.wav"]
BASE = TINY.with_name("tiny_base")


@pytest.fixture
def belongings(tmp_path):
    """What a user may have lying about."""
    (tmp_path / "book.txt").write_text("Hello.")
    (tmp_path / "texts.jsonl").write_text('{"text": "Hi", "speeker": "ryan"}')
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    (tmp_path / "mine.safetensors").touch()
    (tmp_path / "model").mkdir()
    voice().save(tmp_path / "me.voice")


@pytest.mark.parametrize(
    ("arguments", "code", "meant"),
    [
        ([*SPEAK, "--speaker", "rian"], 2, "ryan"),
        ([*SPEAK, "--speaker", "Uncle Fo"], 2, "uncle_fu"),
        ([*SPEAK, "--language", "germn"], 2, "german"),
        ([*SPEAK, "--format", "wave"], 2, "wav"),
        ([*SPEAK[:-1], "out.falc"], 2, "flac"),
        ([*SPEAK, "--drafter", "mine.safetensor"], 3, "mine.safetensors"),
        (["speak", "-f", "bok.txt", *SPEAK[2:]], 3, "book.txt"),
        (["speak", "Hi", "--model", "modle", "-o", "out.wav"], 3, "model"),
        (["speak", "Hi", "--model", "Qwen3-TTS-12Hz-1.7B-Bass"], 3, "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
        (["speak", "Hi", "--model", BASE, "--voice", "me.vioce", "-o", "out.wav"], 3, "me.voice"),
        (["voices", "make", "sund.wav", "--model", BASE], 3, "sound.wav"),
        (["batch", "text.jsonl", "-o", "made"], 3, "texts.jsonl"),
        (["batch", "texts.jsonl", "-o", "made"], 2, "speaker"),
        (["inspect", "sound.vaw"], 3, "sound.wav"),
        (["bench", "--suite", "spech"], 2, "speech"),
        (["fit", "--text", "book.text"], 3, "book.txt"),
        (["verify", "modell"], 3, "model"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(run, belongings, tmp_path, arguments, code, meant):  # noqa: F811
    before = sorted(tmp_path.iterdir())
    found, out, err = run(*arguments)
    assert (found, out) == (code, b"") and err.count("\n") == 1
    assert err.endswith(f"; did you mean {meant}?\n"), err
    assert sorted(tmp_path.iterdir()) == before


def test_a_misspelt_hub_id_is_answered_with_the_published_one(monkeypatch):
    import huggingface_hub

    def not_found(*arguments, **options):
        raise OSError("404")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_found)
    with pytest.raises(ValueError, match="did you mean Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice?"):
        fetch("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVioce")


def test_what_is_like_nothing_gets_no_suggestion(tmp_path):
    assert nearest("xyz", ("ryan", "vivian")) == "" and nearest("", ()) == ""
    assert nearest_path(tmp_path / "nowhere" / "a") == "" and nearest_path(tmp_path / "a\0b") == ""


def test_everything_that_is_offered_is_taken(run):  # noqa: F811
    """The names that info lists are those that speak takes."""
    facts, engine = json.loads(run("info", "--model", TINY, "--json")[1]), load(TINY)
    assert tuple(facts["speakers"]) == engine.speakers and tuple(facts["languages"]) == engine.languages
    for name in facts["speakers"]:
        assert run(*SPEAK, "--speaker", name, "--dry-run")[0] == 0
    for name in facts["languages"]:
        assert run(*SPEAK, "--language", name, "--dry-run")[0] == 0
