"""The SpeechEncoder and the SpeakerEncoder against recorded reference tensors, and at other lengths."""

import json
import shutil
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_rvqspec.config import ModelConfig, ModelError, read_config
from mlx_rvqspec.load import load_speaker_encoder, load_speech_encoder
from mlx_rvqspec.speech_encoder import encoder as encoders
from mlx_rvqspec.speech_encoder.encoder import SpeechEncoder
from mlx_rvqspec.speech_encoder.speaker import mel_filters, mel_spectrogram, reflect

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = ("tiny_base", "tiny_customvoice")
BASE = GOLDEN / "tiny_base"


@cache
def recorded(folder: str) -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / folder / "golden.npz"))


@cache
def config() -> ModelConfig:
    return read_config(BASE)


@cache
def speech_encoder(folder: str = "tiny_base") -> SpeechEncoder:
    return load_speech_encoder(read_config(GOLDEN / folder), GOLDEN / folder)


def recording(num_samples: int) -> mx.array:
    """[1, S]: the recorded chirp, repeated or cut."""
    return mx.array(np.resize(recorded("tiny_base")["codec.enc_wav"], num_samples))[None]


def assert_stage(x: mx.array, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(x[0]).T, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("folder", FOLDERS)
def test_stages_and_codes_are_upstreams(folder: str) -> None:
    encoder, golden = speech_encoder(folder), recorded(folder)
    audio = mx.array(golden["codec.enc_wav"])[None]
    x = encoder.encoder(audio[..., None])
    assert_stage(x, golden["codec.enc_seanet"])
    x = encoder.encoder_transformer(x)
    assert_stage(x, golden["codec.enc_transformer"])
    assert_stage(encoder.downsample(x), golden["codec.enc_latent"])
    np.testing.assert_array_equal(np.array(encoder(audio)[0]), golden["codec.enc_codes"])


def test_both_convolution_forms_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs take MLX's own convolutions, CPUs a product of windows; each loads the kernels in its layout."""
    audio, found = recording(9601), []
    for device in (mx.cpu, mx.gpu):
        monkeypatch.setattr(mx, "default_device", lambda device=device: mx.Device(device))
        speech, speaker = load_speech_encoder(config(), BASE), load_speaker_encoder(config(), BASE)
        found.append((speech.encoder.layers[3].weight.ndim, np.array(speech(audio)), np.array(speaker(audio))))
    assert (found[0][0], found[1][0]) == (2, 3)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [1, 959, 1920, 1921, 3 * 1920 - 1, 7001])
def test_every_begun_frame_is_a_frame(num_samples: int) -> None:
    codes = speech_encoder()(recording(num_samples))
    assert codes.shape == (1, -(-num_samples // 1920), 16)


@pytest.mark.parametrize("num_samples", [9600, 9601, 11_519, 13_000])
def test_blocks_leave_no_seam(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = recording(num_samples)[..., None]
    whole = speech_encoder().encoder(audio)
    monkeypatch.setattr(encoders, "BLOCK_SAMPLES", 1920)
    parts = speech_encoder().encoder(audio)
    np.testing.assert_allclose(np.array(parts), np.array(whole), rtol=0, atol=1e-5)


def test_what_follows_changes_no_earlier_frame() -> None:
    audio = recording(14 * 1920)
    whole = np.array(speech_encoder()(audio)[0])
    np.testing.assert_array_equal(np.array(speech_encoder()(audio[:, : 9 * 1920])[0]), whole[:9])


def test_every_frame_sees_the_whole_past() -> None:
    """The window of 250 in the file is not applied by what upstream runs on."""
    transformer = speech_encoder().encoder_transformer
    x = mx.random.normal((1, 300, 32), key=mx.random.key(0))
    changed = mx.concatenate([x[:, :1] + 1, x[:, 1:]], axis=1)
    moved = np.abs(np.array(transformer(x) - transformer(changed))[0]).max(axis=-1)
    assert moved[-1] > 0


def test_mel_spectrogram_is_upstreams() -> None:
    golden = recorded("tiny_base")
    mels = mel_spectrogram(mx.array(golden["codec.enc_wav"])[None], 128)
    np.testing.assert_allclose(np.array(mels[0]).T, golden["clone.mel"], rtol=0, atol=1e-4)


def test_speaker_vector_is_upstreams() -> None:
    golden = recorded("tiny_base")
    vector = load_speaker_encoder(config(), BASE)(mx.array(golden["codec.enc_wav"])[None])
    np.testing.assert_allclose(np.array(vector[0]), golden["clone.speaker_embedding"], rtol=0, atol=1e-4)


def test_kernels_in_mlx_audios_layout_are_read_as_they_are(tmp_path: Path) -> None:
    """Its conversions turn the speaker encoder's kernels to [out, taps, in] and leave the speech tokenizer alone."""
    folder = tmp_path / "converted"
    shutil.copytree(BASE, folder, ignore=shutil.ignore_patterns("*.npz"))
    tensors = dict(mx.load(str(BASE / "model.safetensors")))  # type: ignore[arg-type]
    kernels = [name for name, value in tensors.items() if name.startswith("speaker_encoder.") and value.ndim == 3]
    assert len(kernels) > 30
    tensors |= {name: mx.contiguous(tensors[name].swapaxes(1, 2)) for name in kernels}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    audio = recording(24_000)
    assert mx.array_equal(load_speaker_encoder(config(), folder)(audio), load_speaker_encoder(config(), BASE)(audio))


def test_mel_filters_have_equal_areas_and_leave_no_gap() -> None:
    filters = mel_filters(128)
    width_hz = 24_000 / 1024
    assert filters.shape == (128, 513) and (filters.max(axis=1) > 0).all()
    np.testing.assert_allclose(filters[64:].sum(axis=1) * width_hz, 1, atol=0.05)  # wide ones: sampled finely
    assert (filters[:, 1:-1].max(axis=0) > 0).all()


@pytest.mark.parametrize("left, right", [(0, 0), (3, 5), (5, 3)])
def test_reflect_is_numpys(left: int, right: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        np.array(reflect(mx.array(x), left, right)), np.pad(x, [(0, 0), (left, right), (0, 0)], mode="reflect")
    )


def test_published_files_leave_out_what_upstreams_classes_put_in(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.npz", "*.safetensors")))
    data = json.loads((folder / "config.json").read_text())
    data["speaker_encoder_config"] = {"enc_dim": 64, "sample_rate": 24000}
    (folder / "config.json").write_text(json.dumps(data))
    speaker = read_config(folder).speaker_encoder
    assert speaker and speaker.enc_channels == (512, 512, 512, 512, 1536) and speaker.enc_attention_channels == 128
    data["speaker_encoder_config"]["enc_dim"] = 65
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="vectors of 65 at 24000 Hz; expected 64"):
        read_config(folder)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("enc_channels", [32, 32, 96], "differ in length"),
        ("enc_channels", [], "differ in length"),
        ("enc_kernel_sizes", [5, 3], "differ in length"),
        ("enc_res2net_scale", 7, "into 7 parts"),
        ("enc_attention_channels", 17, "speaker_encoder|asp"),
        ("num_filters", 1, "has no half"),
        ("num_key_value_heads", 3, "4 heads for 3"),
        ("upsampling_ratios", [8, 6, 5, 5], "encodes 2400 samples a frame"),
        ("codebook_size", 65, "codebooks of 65, but decodes 1920 with 64"),
        ("intermediate_size", 65, "mlp.fc"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_error(tmp_path: Path, key: str, value: object, message: str) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.npz")))
    speaker = key.startswith("enc_")
    path = "config.json" if speaker else "speech_tokenizer/config.json"
    section = "speaker_encoder_config" if speaker else "encoder_config"
    data = json.loads((folder / path).read_text())
    data[section][key] = value
    (folder / path).write_text(json.dumps(data))
    with pytest.raises(ModelError, match=message):
        loaded = read_config(folder)
        load_speaker_encoder(loaded, folder)
        load_speech_encoder(loaded, folder)


def test_a_model_without_encoders_says_so() -> None:
    folder = GOLDEN / "tiny_voicedesign"
    with pytest.raises(ModelError, match="no speaker encoder"):
        load_speaker_encoder(read_config(folder), folder)
    built_in = Path(__file__).parents[1] / "weights" / "tiny-en"
    with pytest.raises(ModelError, match="no speech encoder"):
        load_speech_encoder(read_config(built_in), built_in)
