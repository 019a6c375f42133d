"""Cloned voices: equal to the official run in every mode, kept in one file, refused where they do not fit."""

import json
import re
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from conftest import TINY

from mlx_rvqspec import cli
from mlx_rvqspec.audio import wav_header
from mlx_rvqspec.batch import Input
from mlx_rvqspec.cloned_voice import ClonedVoice
from mlx_rvqspec.config import ModelError
from mlx_rvqspec.conversion import convert
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.recording import check_recording, check_reference, read_recording, resample
from mlx_rvqspec.sampling import Sampling

BASE = TINY.with_name("tiny_base")
TEXT, REFERENCE_TEXT = "Hello there, this is a small test of the speech model.", "A small reference."
GREEDY = Sampling(do_sample=False, subtalker_do_sample=False, max_frames=39)


@cache
def recorded() -> dict[str, np.ndarray]:
    return {**np.load(BASE / "golden.npz"), **np.load(BASE / "xvec_full.npz")}


@cache
def engine() -> Engine:
    return load(BASE, compile=False)


@cache
def voice(text: str | None = REFERENCE_TEXT) -> ClonedVoice:
    return engine().make_voice(recorded()["codec.enc_wav"], 24_000, text=text)


# run -> text, words of the reference, language, text feed, repetition penalty
RUNS = {
    "xvec": (TEXT, None, "English", "stream", 1.05),
    "xvecfull": (TEXT, None, "English", "full", 1.05),
    "short": ("Hi.", REFERENCE_TEXT, "Auto", "stream", 1.05),
    "stream": (TEXT, REFERENCE_TEXT, "English", "stream", 1.05),
    "nonstream": (TEXT, REFERENCE_TEXT, "English", "full", 1.05),
    "nopenalty": (TEXT, REFERENCE_TEXT, "English", "stream", 1.0),
}


@pytest.mark.parametrize("run", RUNS)
def test_prompt_and_greedy_codes_are_upstreams(run: str) -> None:
    text, words, language, feed, penalty = RUNS[run]
    golden, model = recorded(), engine()._model
    chosen = choose_voice(model.config, language=language, clone=voice(words))
    prefill, trailing = embed_prompt(build_prompt(model.config, model.tokenizer, text, chosen, feed), model)
    np.testing.assert_allclose(np.array(prefill), golden[f"{run}.inputs_embeds"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(np.array(trailing[None, :-1]), golden[f"{run}.trailing_text_hidden"], atol=1e-4, rtol=0)
    sampling = replace(GREEDY, repetition_penalty=penalty)
    speech = engine().speak(text, voice=voice(words), language=language, text_feed=feed, sampling=sampling)
    np.testing.assert_array_equal(speech.codes, golden[f"{run}.codes.0"])
    assert len(speech.audio) == 1920 * len(speech.codes)


def test_the_reference_itself_is_not_heard() -> None:
    """Upstream cuts a share of the samples; here the decoder goes on where the reference ended, at any chunk size."""
    golden, how = recorded(), {"voice": voice(), "language": "en", "sampling": GREEDY}
    speech = engine().speak(TEXT, **how)
    assert len(speech.audio) == golden["stream.wav_length.0"]
    error = speech.audio[: 16 * 1920] - golden["stream.wav.0"]
    assert np.sqrt(np.mean(error**2)) < 5e-5 and np.abs(error).max() < 1e-3  # see test_speech_decoder
    chunks = list(engine().stream(TEXT, chunk_frames=5, **how))
    assert np.abs(np.concatenate([chunk.audio for chunk in chunks]) - speech.audio).max() < 1e-3


def test_a_transcript_that_is_wrong_moves_no_cut() -> None:
    """What is heard begins at the first frame behind the reference, whatever the model makes of the words."""
    wrong = voice("Nothing of this is said in it, and it is far too long as well.")
    speech = engine().speak(TEXT, voice=wrong, sampling=replace(GREEDY, max_frames=6), language="en")
    assert wrong.codes is not None and len(speech.audio) == 1920 * len(speech.codes)
    whole = engine().decode(np.concatenate([wrong.codes, speech.codes]))
    np.testing.assert_allclose(speech.audio, whole[1920 * len(wrong.codes) :], rtol=0, atol=1e-3)


def test_a_designed_voice_is_cloned_and_then_the_same_in_every_passage() -> None:
    """A description gives another voice each time; a recording of one of them is a voice that stays."""
    designer = load(TINY.with_name("tiny_voicedesign"))
    designed = designer.speak("Hello there.", instruct="an old man", seed=1, sampling=replace(GREEDY, max_frames=16))
    kept = engine().make_voice(np.tile(designed.audio, 2), designed.sample_rate, text="Hello there. Hello there.")
    how = {"voice": kept, "sampling": replace(GREEDY, max_frames=None), "seed": 1, "paragraph_pause_s": 0.0}
    short = {**how, "sampling": replace(GREEDY, max_frames=8)}
    alone = engine().speak("Hello.", **short)
    both = engine().speak("Hello.\n\nHello.", **{**how, "sampling": replace(GREEDY, max_frames=16)})
    np.testing.assert_array_equal(both.codes[: len(alone.codes)], alone.codes)


def test_a_batch_may_have_a_voice_for_each_row() -> None:
    short = replace(GREEDY, max_frames=4)
    rows = [Input("Hello there.", voice=voice()), Input("Hi."), Input("Hi.", voice=voice(None))]
    first, error, last = engine().speak_batch(rows, sampling=short, seed=1)
    assert isinstance(error, ValueError) and "Base model" in str(error)
    for row, speech in ((rows[0], first), (rows[2], last)):
        alone = engine().speak(row.text, voice=row.voice, sampling=short, seed=1)
        assert speech.codes.tolist() == alone.codes.tolist()
        np.testing.assert_allclose(speech.audio, alone.audio, rtol=0, atol=1e-3)


def test_base_models_are_fed_a_token_a_frame_unless_told() -> None:
    assert engine().text_feed == "stream"


def test_encode_is_upstreams() -> None:
    golden = recorded()
    np.testing.assert_array_equal(engine().encode(golden["codec.enc_wav"], 24_000), golden["codec.enc_codes"])
    np.testing.assert_array_equal(voice().codes, golden["clone.ref_codes"])
    np.testing.assert_allclose(voice().speaker_vector, golden["clone.speaker_embedding"], atol=1e-4, rtol=0)


def test_a_pause_is_put_behind_the_recording() -> None:
    longer = engine().make_voice(recorded()["codec.enc_wav"], 24_000, text=REFERENCE_TEXT, pause_s=0.5)
    assert len(longer.codes) == -(-(31_200 + 12_000) // 1920)
    np.testing.assert_array_equal(longer.codes[:16], voice().codes[:16])
    np.testing.assert_array_equal(longer.speaker_vector, voice().speaker_vector)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_resampling_keeps_the_sound_and_its_length(rate: int) -> None:
    seconds = np.arange(rate) / rate
    resampled = resample(np.sin(2 * np.pi * 440 * seconds).astype(np.float32), rate, 24_000)
    assert resampled.shape == (24_000,) and resampled.dtype == np.float32
    expected = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert np.abs(resampled - expected)[500:-500].max() < 1e-3
    assert len(resample(np.zeros(rate + 1, np.float32), rate, 24_000)) == -(-(rate + 1) * 24_000 // rate)


@pytest.mark.parametrize("rate, subtype", [(8_000, "PCM_16"), (44_100, "PCM_24"), (48_000, "FLOAT")])
def test_a_recording_of_another_rate_gives_the_same_voice(tmp_path: Path, rate: int, subtype: str) -> None:
    """As many frames, a voice close by, and speech: what the recording's own rate could hold."""
    sound = recorded()["codec.enc_wav"]
    soundfile.write(tmp_path / "ref.wav", resample(sound, 24_000, rate), rate, subtype)
    made = engine().make_voice(*read_recording(tmp_path / "ref.wav"), text=REFERENCE_TEXT)
    assert made.codes.shape == voice().codes.shape and np.isfinite(made.speaker_vector).all()
    if rate > 24_000:  # no sound is lost, but for the filter's edge
        ours, theirs = voice().speaker_vector, made.speaker_vector
        assert ours @ theirs > 0.99 * np.linalg.norm(ours) * np.linalg.norm(theirs)
    assert len(engine().speak("Hi.", voice=made, sampling=replace(GREEDY, max_frames=2)).codes) == 2


# The file


@pytest.mark.parametrize("words", [REFERENCE_TEXT, None])
def test_a_voice_file_speaks_like_the_voice(tmp_path: Path, words: str | None) -> None:
    path = tmp_path / "me.voice"
    voice(words).save(path)
    arrays, about = mx.load(str(path), format="safetensors", return_metadata=True)
    assert set(arrays) == ({"speaker_vector", "codes"} if words else {"speaker_vector"})
    assert json.loads(about["voice"])["model_name"] == "0b6 base"
    loaded = ClonedVoice.load(path)
    assert (loaded.text, loaded.fingerprint) == (words, engine()._model.fingerprint)
    short = replace(GREEDY, max_frames=3)
    codes = [engine().speak("Hi.", voice=each, sampling=short).codes.tolist() for each in (path, voice(words))]
    assert codes[0] == codes[1]


def test_a_voice_is_refused_by_another_model() -> None:
    other = replace(voice(), fingerprint="f" * 64, model_name="1b7 base")
    with pytest.raises(ModelError, match="made with 1b7 base .ffffffffffff., not with this model"):
        engine().stream("Hi.", voice=other)


def test_a_quantised_copy_and_its_source_share_their_voices(tmp_path: Path) -> None:
    convert(BASE, tmp_path / "copy", bits=8)
    copy, short = load(tmp_path / "copy", compile=False), replace(GREEDY, max_frames=2)
    theirs = copy.make_voice(recorded()["codec.enc_wav"], 24_000, text=REFERENCE_TEXT)
    assert theirs.fingerprint == voice().fingerprint != copy._model.fingerprint
    np.testing.assert_array_equal(theirs.codes, voice().codes)
    assert len(copy.speak("Hi.", voice=voice(), sampling=short).codes) == 2
    assert len(engine().speak("Hi.", voice=theirs, sampling=short).codes) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"speaker_vector": np.zeros(3, np.float32)},
        {"speaker_vector": np.full(64, np.nan, np.float32)},
        {"codes": np.zeros((0, 16), np.int32)},
        {"codes": np.zeros((4, 15), np.int32)},
        {"codes": np.full((4, 16), 64, np.int32)},
        {"codes": np.full((4, 16), -1, np.int32)},
        {"codes": None},
        {"text": None},
    ],
)
def test_a_voice_with_impossible_values_is_refused(change: dict) -> None:
    with pytest.raises(ModelError, match="cannot have made"):
        engine().stream("Hi.", voice=replace(voice(), **change))


def damaged(data: bytes) -> dict[str, bytes]:
    """Voice files that cannot be used, by what is wrong with them."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])

    def with_header(change: dict) -> bytes:
        text = json.dumps(header | change).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    newer = json.loads(header["__metadata__"]["voice"]) | {"version": 2}
    return {
        "empty": b"",
        "truncated": data[:-4],
        "absurd header": b"\xff" * 16,
        "no metadata": with_header({"__metadata__": {}}),
        "no JSON": with_header({"__metadata__": {"voice": "{"}}),
        "newer": with_header({"__metadata__": {"voice": json.dumps(newer)}}),
        "no numbers": with_header({"codes": header["codes"] | {"dtype": "F64"}}),
        "wrong shape": with_header({"codes": header["codes"] | {"shape": [3, 16]}}),
        "no safetensors": b"RIFF" + data,
    }


def test_a_damaged_voice_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "me.voice"
    voice().save(path)
    for how, data in damaged(path.read_bytes()).items():
        path.write_bytes(data)
        with pytest.raises(ModelError, match="me.voice .* mlx-tts voices make") as caught:
            ClonedVoice.load(path)
        assert len(str(caught.value)) < 400, how


def test_any_flipped_byte_is_a_voice_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "me.voice"
    voice().save(path)
    data, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        place = random.integers(0, 400)  # the header; a flipped value is only another value
        path.write_bytes(data[:place] + bytes([random.integers(0, 256)]) + data[place + 1 :])
        try:
            ClonedVoice.load(path).check(engine().config, engine()._model.fingerprints)
        except ModelError as error:
            assert "\n" not in str(error)


def test_a_missing_voice_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no voice file .*voices make"):
        engine().stream("Hi.", voice=tmp_path / "none.voice")


# Recordings

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 24_000 * 2).astype(np.float32)


@pytest.mark.parametrize(
    "audio, rate, message",
    [
        (NOISE[:0], 24_000, "0.00 s long"),
        (NOISE[:12_000], 24_000, "0.50 s long; expected 3 to 30 s"),
        (NOISE[:0] - 1, 0, "sample rate is 0"),
        (NOISE, 100, "sample rate is 100"),
        (NOISE, 10**9, "sample rate is 1000000000"),
        (np.tile(NOISE, 61), 24_000, "122.00 s long; .* at most 120"),
        (np.zeros_like(NOISE), 24_000, "is silent"),
        (NOISE * 1e-4, 24_000, "is silent"),
        (np.stack([NOISE, NOISE]), 24_000, r"shape \(2, 48000\); expected one channel"),
        (NOISE[:, None], 24_000, "expected one channel"),
        (np.where(np.arange(48_000) == 7, np.nan, NOISE), 24_000, "1 samples that are not finite"),
        (np.where(np.arange(48_000) > 7, NOISE, np.inf), 24_000, "8 samples that are not finite"),
        ((NOISE * 32_768).astype(np.int16), 24_000, "audio is int16; expected floats"),
        (NOISE * 32_768, 24_000, "audio reaches 1638.*; expected samples from -1 to 1"),
    ],
)
def test_a_bad_reference_is_one_clear_error(audio: np.ndarray, rate: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_reference(audio, rate)
    assert not isinstance(caught.value, ModelError) and "\n" not in str(caught.value)


def test_silence_and_short_sounds_can_be_encoded() -> None:
    assert engine().encode(np.zeros(100, np.float32), 24_000).shape == (1, 16)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
def test_recordings_of_common_formats_are_read(tmp_path: Path, name: str) -> None:
    soundfile.write(tmp_path / name, NOISE, 24_000)
    audio, rate = read_recording(tmp_path / name)
    assert rate == 24_000 and audio.shape == NOISE.shape and audio.dtype == np.float32


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_piped_wav_of_unknown_length_is_read(tmp_path: Path) -> None:
    samples = (NOISE * 32_767).astype("<i2").tobytes()
    audio, _ = read_recording(write(tmp_path / "a.wav", wav_header(24_000) + samples))
    assert len(audio) == len(NOISE)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "cannot be read as sound"),
        (b"RIFF" + b"\xff" * 400, "cannot be read as sound"),
        (wav_header(24_000), "0.00 s long"),
        (wav_header(1) + bytes(4000), "sample rate is 1 Hz"),
        (wav_header(2**31 - 1) + bytes(4000), "sample rate is 2147483647 Hz"),
        (b"ID3" + bytes(1000), "cannot be read as sound"),
    ],
)
def test_a_file_that_is_no_recording_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_recording(write(tmp_path / "a.wav", content))
    assert "a.wav" in str(caught.value) or "sample rate" in str(caught.value) or "long" in str(caught.value)


def test_a_header_that_promises_too_much_costs_no_memory(tmp_path: Path) -> None:
    """A FLAC file says itself how many samples it has; here 2^36 - 1, two weeks."""
    path = tmp_path / "a.flac"
    soundfile.write(path, NOISE, 24_000)
    data = bytearray(path.read_bytes())
    assert data[:4] == b"fLaC"
    data[21] |= 0x0F
    data[22:26] = b"\xff" * 4
    with pytest.raises(ValueError, match="long; expected more than 0 and at most 120 s"):
        read_recording(write(path, bytes(data)))


def test_stereo_says_how_to_mix_it(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([NOISE, NOISE], axis=1), 24_000)
    with pytest.raises(ValueError, match="has 2 channels; expected one; mix them first, with ffmpeg"):
        read_recording(tmp_path / "a.wav")
    assert check_recording(NOISE.astype(np.float64), 24_000).dtype == np.float32


# The command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs mlx-tts in an empty folder with a recording in it: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("ref.wav", recorded()["codec.enc_wav"], 24_000, "FLOAT")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["mlx-tts", *map(str, arguments)])
        code = cli.run()
        return code, *capsys.readouterr()

    return run


def test_a_voice_is_made_and_spoken_with(run) -> None:
    made = run("voices", "make", "ref.wav", "--text", REFERENCE_TEXT, "--model", BASE)
    assert made[:2] == (0, "ref.voice\n") and "1.3 s of ref.wav, with its words" in made[2]
    np.testing.assert_array_equal(ClonedVoice.load("ref.voice").codes, recorded()["clone.ref_codes"])
    spoken = run("speak", TEXT, "--voice", "ref.voice", "--model", BASE, "--greedy", "--language", "en", "-o", "a.wav")
    assert spoken[0] == 0 and "26 frames" in spoken[2]
    facts = json.loads(run("voices", "make", "ref.wav", "-o", "x.voice", "--model", BASE, "--json")[1])
    assert facts["frames"] == 0 and facts["text"] is None


@pytest.mark.parametrize("kind, message", [("base", "voices make clones"), ("voicedesign", "--instruct describes")])
def test_a_model_without_speakers_says_what_it_has_instead(run, kind: str, message: str) -> None:
    code, out, err = run("voices", "--model", TINY.with_name(f"tiny_{kind}"))
    assert (code, out) == (0, "") and message in err
    assert run("voices", "--json", "--model", TINY.with_name(f"tiny_{kind}"))[1] == "[]\n"


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["ref.wav", "--model", TINY], 3, "has no speaker encoder.*a Base model can"),
        (["ref.wav"], 3, "has no speaker encoder"),
        (["none.wav", "--model", BASE], 3, "none.wav does not exist"),
        (["old.voice", "--model", BASE], 2, "old.voice exists; --force"),
        (["ref.wav", "-o", "old.voice", "--model", BASE], 2, "old.voice exists; --force"),
        (["ref.wav", "-o", ".", "--model", BASE], 2, "a folder or device; name a file"),
        (["ref.wav", "--text", " ", "--model", BASE], 2, "text is empty"),
        (["text.txt", "--model", BASE], 2, "cannot be read as sound"),
        (["ref.wav", "-o", "none/me.voice", "--model", BASE], 2, "no folder none; create it"),
        (["stereo.wav", "--model", BASE], 2, "has 2 channels; .* ffmpeg"),
        (["short.wav", "--model", BASE], 2, "0.50 s long; expected 3 to 30 s"),
        (["silent.wav", "--model", BASE], 2, "is silent"),
        (["long.wav", "--model", BASE], 2, "121.00 s long; .* at most 120 s"),
    ],
)
def test_what_cannot_become_a_voice_is_one_line(run, arguments: list, code: int, message: str) -> None:
    Path("old.voice").touch()
    Path("text.txt").write_text("no sound")
    soundfile.write("stereo.wav", np.stack([NOISE, NOISE], axis=1), 44_100)
    soundfile.write("short.wav", NOISE[:8_000], 16_000)
    soundfile.write("silent.wav", np.zeros(48_000), 16_000)
    soundfile.write("long.wav", np.tile(NOISE, 21)[: 121 * 8_000], 8_000)
    before = sorted(Path().iterdir())
    found = run("voices", "make", *arguments)
    assert found[0] == code and found[2].count("\n") == 1
    assert re.search(message, found[2]), found
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    "model, options, code, message",
    [
        (BASE, [], 2, "voices make makes one"),
        (BASE, ["--speaker", "ryan"], 2, "a Base model has none"),
        (BASE, ["--voice", "none.voice"], 3, "no voice file"),
        (BASE, ["--voice", "other.voice"], 3, "not with this model"),
        (BASE, ["--voice", "me.voice", "--instruct", "sad"], 2, "ignores instructions"),
        (TINY, ["--voice", "me.voice"], 2, "need a Base model"),
    ],
)
def test_a_voice_that_does_not_fit_is_one_line(run, model: Path, options: list, code: int, message: str) -> None:
    voice().save("me.voice")
    replace(voice(), fingerprint="0" * 64).save("other.voice")
    found = run("speak", "Hi.", "--model", model, "-o", "a.wav", *options)
    assert found[0] == code and message in found[2] and found[2].count("\n") == 1
    assert not Path("a.wav").exists()
