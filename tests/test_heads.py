"""What all texts of a voice begin with is read once, and kept: the codes are those of reading it anew."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY

from mlx_rvqspec import load
from mlx_rvqspec.batch import Input
from mlx_rvqspec.cloned_voice import ClonedVoice
from mlx_rvqspec.generate import Engine
from mlx_rvqspec.heads import LEAST_ON_DISK, VARIABLE, Heads, choose_place
from mlx_rvqspec.kept import Kept
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.prompt import Prompt, build_prompt, choose_voice, embed_head, embed_prompt, embed_rest
from mlx_rvqspec.sampling import Sampling

SHORT = Sampling(max_frames=6)
WORDS = "These are the words that the recording is made of, and there are more than sixty-four bytes of them."
PROJECTED = TINY.with_name("tiny_projected")  # follows instructions


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path


def found(files: Path) -> list[Path]:
    return sorted(path for path in files.rglob("*.safetensors") if path.parent.name == "prompts")


def base(place: str) -> Engine:
    return load(TINY.with_name("tiny_base"), compile=False, prompt_cache=place)


@cache
def voice(num_frames: int = 20, words: str | None = WORDS) -> ClonedVoice:
    model, draw = base("off")._model, np.random.default_rng(0)
    vector = draw.standard_normal(model.config.code_decoder.hidden_size).astype(np.float32)
    codes = draw.integers(0, 64, (num_frames, 16)).astype(np.int32) if words else None
    return ClonedVoice(vector, codes, words, model.config.name, model.fingerprint)


def prompts(folder: Path, feed: str, **how) -> tuple[Qwen3TTS, list[Prompt]]:
    model = load_model(folder)
    chosen = choose_voice(model.config, **how)
    texts = ("A first text.", "Then another one, which is longer.")
    return model, [build_prompt(model.config, model.tokenizer, text, chosen, feed) for text in texts]


@pytest.mark.parametrize("feed", ["full", "stream"])
@pytest.mark.parametrize(
    ("folder", "how", "at_least"),
    [
        (TINY, {"speaker": "ryan"}, 8),
        (TINY, {"speaker": "ryan", "language": "en"}, 9),
        (PROJECTED, {"speaker": "ryan", "instruct": "Very slowly, please."}, 20),
        (TINY.with_name("tiny_base"), {"clone": (20, None)}, 8),
        (TINY.with_name("tiny_base"), {"clone": (20, WORDS)}, 28),
        (TINY.with_name("tiny_base"), {"clone": (300, WORDS)}, 60),
    ],
)
def test_the_head_is_what_texts_share_and_its_rows_are_the_prompts(folder: Path, feed: str, how: dict, at_least: int):
    how = how | ({"clone": voice(*how["clone"])} if "clone" in how else {})
    model, (first, second) = prompts(folder, feed, **how)
    n = first.num_head
    assert n == second.num_head >= at_least and n < min(len(first.text_ids), len(second.text_ids))
    assert first.text_ids[:n] == second.text_ids[:n]
    assert len(first.text_ids) - len(first.code_ids) == len(second.text_ids) - len(second.code_ids)
    (whole, trailing), (rest, same) = embed_prompt(second, model), embed_rest(second, model)
    pieces = mx.concatenate([embed_head(first, model), rest], axis=1)
    np.testing.assert_allclose(np.array(pieces), np.array(whole), atol=1e-5)
    np.testing.assert_allclose(np.array(same), np.array(trailing), atol=1e-5)
    head = Heads(model, "off").head(first)
    decoder = model.code_decoder
    _, full = decoder(whole, decoder.new_cache(1, whole.shape[1], whole.dtype), mx.array([0]))
    for layer, (keys, values) in enumerate(zip(full.keys, full.values)):
        np.testing.assert_allclose(np.array(head.keys[layer]), np.array(keys[0, :, :n]), atol=1e-4)
        np.testing.assert_allclose(np.array(head.values[layer]), np.array(values[0, :, :n]), atol=1e-4)


def test_codes_are_the_same_kept_or_not(files: Path):
    def speak(engine: Engine) -> list[list[float]]:
        speech = engine.speak("A text.", voice=voice(90), seed=3, sampling=SHORT)
        return [*speech.codes.tolist(), speech.audio.tolist()]

    expected = speak(base("off"))
    assert not found(files)
    engine = base("memory")
    assert speak(engine) == speak(engine) == expected and not found(files)
    assert speak(base("disk")) == expected
    assert len(found(files)) == 2, "the head, and the sound behind the reference"
    engine, worked_out = base("disk"), []
    reader = engine._reader
    reader._heads._read = reader._state_behind = worked_out.append  # type: ignore[method-assign]
    assert speak(engine) == expected and not worked_out


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[-7:]
    elif how == "one bit":
        data[-100] ^= 1
    path.write_bytes(b"" if how == "empty" else data)


@pytest.mark.parametrize("how", ["cut", "one bit", "empty"])
def test_a_damaged_file_is_as_good_as_none(files: Path, how: str):
    expected = base("disk").speak("A text.", voice=voice(90), seed=3, sampling=SHORT).codes
    sound = [path.read_bytes() for path in found(files)]
    for path in found(files):
        damage(path, how)
    again = base("disk").speak("A text.", voice=voice(90), seed=3, sampling=SHORT).codes
    np.testing.assert_array_equal(again, expected)
    assert [path.read_bytes() for path in found(files)] == sound, "written again"


def test_a_file_under_another_key_is_not_believed(tmp_path: Path):
    kept = Kept(tmp_path)
    kept.put("a", {"x": mx.arange(5)}, on_disk=True)
    (tmp_path / "a.safetensors").rename(tmp_path / "b.safetensors")
    assert Kept(tmp_path).get("b") is None


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path):
    (tmp_path / "file").write_text("")
    kept = Kept(tmp_path / "file" / "prompts")
    kept.put("a", {"x": mx.arange(5)}, on_disk=True)
    assert kept.get("a") and Kept(tmp_path / "file" / "prompts").get("a") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path):
    kept = Kept(tmp_path, memory_bytes=20, disk_bytes=1000)
    for key in "ab":
        kept.put(key, {"x": mx.arange(3)}, on_disk=False)
    assert kept.get("a") is None and kept.get("b") is not None
    for key in "cdef":
        kept.put(key, {"x": mx.zeros(80)}, on_disk=True)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["e", "f"]
    kept.put("large", {"x": mx.zeros(300)}, on_disk=True)
    assert not (tmp_path / "large.safetensors").exists() and kept.get("large") is None


def test_short_heads_make_no_files_and_rows_may_have_heads_of_their_own(files: Path):
    engine = load(TINY, compile=False, prompt_cache="disk")
    rows = [
        Input("Hello.", "ryan", language="en"),
        Input("A text with more words in it.", "serena"),
        Input("A.", "eric"),
    ]
    together = engine.speak_batch(rows, seed=5, sampling=SHORT)
    off = load(TINY, compile=False, prompt_cache="off")
    for row, speech in zip(rows, together):
        for each in (engine, off):
            alone = each.speak(row.text, speaker=row.speaker, language=row.language, seed=5, sampling=SHORT)
            np.testing.assert_array_equal(alone.codes, speech.codes)  # type: ignore[union-attr]
    assert not found(files)


def test_heads_of_unlike_lengths_share_a_batch(files: Path):
    rows = [Input("A longer text than the other one.", voice=voice(20, None)), Input("A.", voice=voice())]
    engine = base("memory")
    for row, speech in zip(rows, engine.speak_batch(rows, seed=5, sampling=SHORT)):
        alone = engine.speak(row.text, voice=row.voice, seed=5, sampling=SHORT)
        np.testing.assert_array_equal(alone.codes, speech.codes)  # type: ignore[union-attr]


def test_models_precisions_and_voices_have_keys_of_their_own():
    model, (prompt, other) = prompts(TINY.with_name("tiny_base"), "stream", clone=voice(90))
    backwards = replace(voice(90), codes=voice(90).codes[::-1].copy())
    _, (unlike, _) = prompts(TINY.with_name("tiny_base"), "stream", clone=backwards)
    heads, again = Heads(model), Heads(load_model(TINY.with_name("tiny_base")))
    bits = Heads(load_model(TINY.with_name("tiny_base"), quantize=8))
    wide = Heads(load_model(TINY.with_name("tiny_base"), dtype="float16"))
    keys = [heads._key(prompt), heads._key(unlike), bits._key(prompt), wide._key(prompt)]
    assert len(set(keys)) == 4 and keys[0] == heads._key(other) == again._key(prompt)
    assert prompt.num_head >= LEAST_ON_DISK


def test_a_place_is_asked_for_or_set_for_all(monkeypatch: pytest.MonkeyPatch):
    assert choose_place(None) == "disk" and choose_place("off") == "off"
    monkeypatch.setenv(VARIABLE, "memory")
    assert choose_place(None) == "memory" and choose_place("disk") == "disk"
    with pytest.raises(ValueError, match="prompt_cache is 'cloud'; expected one of disk, memory, off"):
        load(prompt_cache="cloud")
