"""Fitting on recordings: the frames are those of the model led through them; the command makes a drafter of them."""

from functools import cache, partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from conftest import TINY

from mlx_rvqspec import cli
from mlx_rvqspec.encoders import Encoders
from mlx_rvqspec.fit import collect, device, run
from mlx_rvqspec.fit.recordings import Recording, find_recordings, listen
from mlx_rvqspec.generate import load
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.spec_decode import drafter as drafters

BASE = TINY.with_name("tiny_base")
WORDS = "A small reference."


@cache
def model(folder: Path = BASE) -> Qwen3TTS:
    return load_model(folder)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A folder of three recordings and their words."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    chirp = np.load(BASE / "golden.npz")["codec.enc_wav"]
    for number, name in enumerate(("a.wav", "b.flac", "c.WAV")):
        soundfile.write(folder / name, chirp[1000 * number :], 24_000)
        (folder / name).with_suffix(".txt").write_text(f"{WORDS}\n")
    (folder / "notes.md").touch()
    return folder


def test_frames_are_those_of_a_run_led_through_the_recording(recordings: Path) -> None:
    frames = listen(model(), find_recordings(recordings)[:2], 1000, seed=5)
    encoders = Encoders(model().config, BASE)
    audio, rate = soundfile.read(recordings / "a.wav", dtype="float32")
    codes = encoders.encode(audio, rate)
    assert len(frames) == len(codes) + 16 and np.array(frames.keys[len(codes)]).tolist() == [6, 0]
    np.testing.assert_array_equal(np.array(frames.codes)[: len(codes), 0], codes[:, 0])
    # one frame at a time over the cache, as when the model speaks
    voice = choose_voice(model().config, clone=encoders.make_voice(audio, rate))
    prompt = build_prompt(model().config, model().tokenizer, WORDS, voice, "stream")
    prefill, trailing = embed_prompt(prompt, model())
    decoder, no_pads = model().code_decoder, mx.zeros((1,), dtype=mx.int32)
    hidden, state = decoder(prefill, decoder.new_cache(1, 100, mx.float32), no_pads)
    for frame in range(len(codes)):
        np.testing.assert_allclose(np.array(hidden[0, -1]), np.array(frames.hidden[frame]), atol=1e-4, rtol=0)
        x = model().embed_frame(mx.array(codes[frame : frame + 1])) + trailing[min(frame, len(trailing) - 1)]
        hidden, state = decoder(x[:, None], state, no_pads)


@pytest.mark.parametrize("folder", [BASE, TINY])
def test_frames_can_be_decoded_again_from_what_is_kept(recordings: Path, folder: Path) -> None:
    frames, choice = listen(model(folder), find_recordings(recordings), 20, seed=0), model(folder).sampling.rest
    assert len(frames) == 17 + 16  # the third recording was not needed
    noise = collect.noise_of(model(folder), frames.keys)
    decoder = model(folder).multi_code_decoder
    codes = decoder.decode_frame(frames.hidden, frames.embedded[:, 0], noise, choice.form, choice.knobs)
    assert mx.array_equal(codes, frames.codes[:, 1:])


def test_recordings_have_their_words_beside_them(recordings: Path, tmp_path: Path) -> None:
    found: list[Recording] = find_recordings(recordings)
    assert [(path.name, words) for path, words in found] == [(n, WORDS) for n in ("a.wav", "b.flac", "c.WAV")]
    (recordings / "b.txt").unlink()
    with pytest.raises(ValueError, match="words of .*b.flac are missing; expected them in .*b.txt"):
        find_recordings(recordings)
    with pytest.raises(ValueError, match="has 0 recordings"):
        find_recordings(tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        find_recordings(tmp_path / "none")


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """A function that runs mlx-tts fit, made short, with a cache of its own: exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(device, "measure", partial(device.measure, num_frames=1, repeats=1))
    monkeypatch.setattr(run, "grow_trees", partial(run.grow_trees, sizes=(1, 8)))

    def fit(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["mlx-tts", "fit", *map(str, arguments)])
        code = cli.run()
        return code, *capsys.readouterr()

    return fit


def test_a_base_model_gets_a_drafter_from_recordings_and_speaks_the_same_with_it(fit, recordings: Path) -> None:
    code, out, err = fit(BASE, "--audio", recordings, "--frames", "32", "--steps", "1", "-q")
    assert (code, err) == (0, "") and drafters.cache_folder() / model().fingerprint in Path(out.strip()).parents
    engine = load(BASE, compile=False)
    assert engine._drafter and "recorded speech" in engine._drafter.facts["source"]
    audio, rate = soundfile.read(recordings / "a.wav", dtype="float32")
    how = {"voice": engine.make_voice(audio, rate, text=WORDS), "seed": 3, "sampling": Sampling(max_frames=6)}
    plain, spec = (engine.speak("Hello.", decode=decode, **how) for decode in ("plain", "spec"))
    assert spec.codes.tolist() == plain.codes.tolist() and spec.stats.codes_per_round > 1
    assert fit(BASE, "--audio", recordings, "--keep", "-q")[0] == 0


def test_what_cannot_be_fitted_on_is_one_line(fit, recordings: Path) -> None:
    for arguments, code, message in (
        ((BASE,), 2, "--audio fits on recordings"),
        ((BASE, "--audio", recordings, "--text", recordings / "a.txt"), 2, "both --audio and --text"),
        ((BASE, "--audio", recordings / "none"), 2, "is no folder"),
        (("--audio", recordings), 3, "has no speech encoder"),
    ):
        found = fit(*arguments)
        assert found[0] == code and message in found[2] and found[2].count("\n") == 1, found


def test_words_that_are_no_utf8_name_their_file(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    (tmp_path / "a.txt").write_bytes(b"Gr\xfc\xdfe")
    with pytest.raises(ValueError, match="a.txt is not UTF-8"):
        find_recordings(tmp_path)
