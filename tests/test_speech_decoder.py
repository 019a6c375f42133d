"""The SpeechDecoder against recorded reference tensors, and streaming against one whole pass."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map_with_path

from mlx_rvqspec.config import read_config
from mlx_rvqspec.speech_decoder.decoder import BLOCK_FRAMES, SpeechDecoder
from mlx_rvqspec.speech_decoder.layers import conv_layout, convolve

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = ["tiny_customvoice", "tiny_projected", "tiny_voicedesign", "tiny_base"]


def load(variant: str) -> SpeechDecoder:
    decoder = SpeechDecoder(read_config(GOLDEN / variant).speech_decoder)
    tensors = mx.load(str(GOLDEN / variant / "speech_tokenizer" / "model.safetensors"))
    assert isinstance(tensors, dict)
    tensors = {k.removeprefix("decoder."): v for k, v in tensors.items() if k.startswith("decoder.")}
    decoder.load_weights(list(decoder.sanitize(tensors).items()), strict=True)
    return decoder


@cache
def recorded(variant: str) -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / variant / "golden.npz"))


@cache
def random_decoder(sliding_window: int = 12) -> SpeechDecoder:
    """The tiny shape with every parameter random, biases and norms included."""
    config = replace(read_config(GOLDEN / "tiny_customvoice").speech_decoder, sliding_window=sliding_window)
    mx.random.seed(1)
    decoder = SpeechDecoder(config)

    def shake(name: str, value: mx.array) -> mx.array:
        gain = 0.1 if value.ndim == 1 else 0.0
        return value + gain * mx.random.normal(value.shape)

    decoder.update(tree_map_with_path(shake, decoder.parameters()))
    mx.eval(decoder.parameters())
    return decoder


def random_codes(decoder: SpeechDecoder, num_frames: int, batch: int = 1, seed: int = 0) -> mx.array:
    num_codes = decoder.quantizer.rvq_first.codebook.shape[1]
    return mx.random.randint(0, num_codes, (batch, num_frames, 16), key=mx.random.key(seed))


def streamed(decoder: SpeechDecoder, codes: mx.array, sizes: list[int]) -> np.ndarray:
    """Audio of the codes in steps of the given sizes, the last repeated."""
    state, chunks, start = decoder.initial_state(codes.shape[0]), [], 0
    while start < codes.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        audio, state = decoder.step(codes[:, start : start + size], state)
        mx.eval(audio, state)
        chunks.append(np.array(audio))
        start += size
    return np.concatenate(chunks, axis=1)


def assert_same_audio(audio, expected) -> None:
    audio, expected = np.array(audio), np.array(expected)
    assert audio.shape == expected.shape and audio.dtype == np.float32
    assert np.abs(expected).max() > 0.05 and np.mean(np.abs(expected) == 1) < 0.01, "silent or clipped"
    np.testing.assert_allclose(audio, expected, rtol=0, atol=1e-5)


def assert_recorded_audio(audio: mx.array, expected: np.ndarray) -> None:
    """Random weights grow the signal to 2,000 inside; for what float32 loses there see the test in float64."""
    error = np.array(audio) - expected
    assert np.sqrt(np.mean(error**2)) < 5e-5
    assert np.abs(error).max() < 1e-3


# Against upstream


@pytest.mark.parametrize("variant", ["tiny_customvoice", "tiny_base"])
def test_stages_are_upstreams(variant):
    decoder, golden = load(variant), recorded(variant)
    x = decoder.quantizer(mx.array(golden["codec.codes"])[None])
    assert_stage(x, golden["codec.quantized"])
    x, _ = decoder.pre_conv.step(x, decoder.pre_conv.initial_state(1))
    assert_stage(x, golden["codec.pre_conv"])
    x, _ = decoder.pre_transformer.step(x, decoder.pre_transformer.initial_state(1))
    assert_stage(x, golden["codec.pre_transformer"])
    for layer in (layer for stage in decoder.upsample for layer in stage):
        x, _ = layer.step(x, layer.initial_state(1))
    assert_stage(x, golden["codec.upsampled"])


def assert_stage(x: mx.array, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(x[0]).T, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("variant", ["tiny_customvoice", "tiny_base"])
def test_audio_is_upstreams(variant):
    golden = recorded(variant)
    assert_recorded_audio(load(variant)(mx.array(golden["codec.codes"])[None])[0], golden["codec.wav"])


def test_float32_is_as_near_to_the_exact_audio_as_upstreams():
    """The same program in float64 is 1.4e-4 from upstream's float32 recording: no run of it can be within 1e-4."""
    golden = recorded("tiny_customvoice")
    codes, upstream = mx.array(golden["codec.codes"])[None], golden["codec.wav"]
    ours = np.array(load("tiny_customvoice")(codes)[0])
    exact = np.array(in_float64(load("tiny_customvoice"))(codes)[0])
    assert exact.dtype == np.float64
    rounding = np.sqrt(np.mean((upstream - exact) ** 2))
    assert 1e-4 < np.abs(upstream - exact).max() < 2e-4 and np.abs(ours - exact).max() < 3e-4
    assert np.sqrt(np.mean((ours - exact) ** 2)) < 1.1 * rounding < 2e-5


def in_float64(part):
    """A module with all its tables in float64, those that are no parameters too. Changes it."""
    for name, value in part.items() if isinstance(part, dict) else enumerate(part):
        if isinstance(value, mx.array) and value.dtype == mx.float32:
            part[name] = value.astype(mx.float64)
        elif isinstance(value, (dict, list)):
            in_float64(value)
    return part


@pytest.mark.parametrize("variant", VARIANTS)
def test_audio_of_generated_codes_is_upstreams(variant):
    """Below 300 frames upstream's chunked decode is one chunk. A clone is decoded after its reference."""
    golden = recorded(variant)
    codes, skip = golden["stream.codes.0"], 0
    if variant == "tiny_base":
        reference = golden["codec.enc_codes"]
        codes = np.concatenate([reference, codes])
        skip = int(len(reference) / len(codes) * len(codes) * 1920)
    audio = load(variant)(mx.array(codes)[None])[0]
    assert len(audio) - skip == golden["stream.wav_length.0"]
    assert_recorded_audio(audio[skip : skip + 16 * 1920], golden["stream.wav.0"])


def test_both_convolution_forms_agree(monkeypatch):
    golden = recorded("tiny_customvoice")
    codes = mx.array(golden["codec.codes"])[None, :4]
    decoders = []
    for device in (mx.cpu, mx.gpu):
        monkeypatch.setattr(mx, "default_device", lambda device=device: mx.Device(device))
        decoders.append(load("tiny_customvoice"))
    matrices, kernels = decoders
    assert (matrices.pre_conv.weight.ndim, kernels.pre_conv.weight.ndim) == (2, 3)
    assert_recorded_audio(matrices(codes), np.array(kernels(codes)))


@pytest.mark.parametrize(
    ("kernel", "dilation", "stride"), [(1, 1, 1), (3, 1, 1), (7, 1, 1), (7, 3, 1), (7, 9, 1), (4, 1, 2), (16, 1, 8)]
)
def test_convolve_is_conv1d(kernel, dilation, stride, monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    x, weight = mx.random.normal((2, 70, 6)), mx.random.normal((5, kernel, 6))
    bias = mx.random.normal((5,))
    expected = mx.conv1d(x, weight, stride=stride, dilation=dilation) + bias
    actual = convolve(x, conv_layout(weight), bias, kernel, dilation, stride)
    np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=0, atol=1e-5)


# Streaming


@pytest.mark.parametrize("sizes", [[1], [2], [3], [7], [12], [13], [25], [25, 1, 11, 3, 1], [5, 8, 2, 13, 1, 1]])
def test_any_split_is_one_pass(sizes):
    decoder = random_decoder()
    codes = random_codes(decoder, 43)
    whole, _ = decoder.step(codes, decoder.initial_state(1))
    assert_same_audio(streamed(decoder, codes, list(sizes)), whole)


@pytest.mark.parametrize("sizes", [[71], [72], [73], [25, 7, 60, 1]])
def test_splits_around_the_published_window(sizes):
    decoder = random_decoder(sliding_window=72)
    codes = random_codes(decoder, 160)
    whole, _ = decoder.step(codes, decoder.initial_state(1))
    assert_same_audio(streamed(decoder, codes, list(sizes)), whole)


def test_random_splits_are_one_pass():
    decoder = random_decoder()
    codes = random_codes(decoder, 60, seed=3)
    whole, _ = decoder.step(codes, decoder.initial_state(1))
    for seed in range(5):
        sizes = np.random.default_rng(seed).integers(1, 20, size=60).tolist()
        assert_same_audio(streamed(decoder, codes, sizes), whole)


def test_blocks_of_a_whole_decode_leave_no_seam():
    decoder = random_decoder()
    codes = random_codes(decoder, 2 * BLOCK_FRAMES + 1)
    whole, _ = decoder.step(codes, decoder.initial_state(1))
    assert_same_audio(decoder(codes), whole)


def test_attention_forgets_what_left_the_window():
    """A changed frame moves num_layers * (window - 1) later frames of the transformer and no more."""
    transformer = random_decoder().pre_transformer
    x = mx.random.normal((1, 40, transformer.input_proj.weight.shape[1]), key=mx.random.key(0))
    changed = mx.concatenate([x[:, :1] + 1, x[:, 1:]], axis=1)
    (a, _), (b, _) = (transformer.step(v, transformer.initial_state(1)) for v in (x, changed))
    moved = np.abs(np.array(a - b)[0]).max(axis=-1) > 0
    last = len(transformer.layers) * transformer.num_past
    assert moved[last] and not moved[last + 1 :].any()


def test_a_stream_of_any_age_sounds_the_same():
    """State has no position that grows: after the window is full, only the sounds in it matter."""
    decoder = random_decoder()
    codes = random_codes(decoder, 30)
    states = []
    for repeats in (2, 5):
        _, state = decoder.step(mx.concatenate([codes] * repeats, axis=1), decoder.initial_state(1))
        states.append(state)
    for (_, young), (_, old) in zip(*map(tree_flatten, states), strict=True):
        np.testing.assert_allclose(np.array(young), np.array(old), rtol=0, atol=1e-5)


def test_two_streams_interleave():
    decoder = random_decoder()
    streams = [random_codes(decoder, 9, seed=seed) for seed in (1, 2)]
    states, audio = [decoder.initial_state(1) for _ in streams], [[], []]
    for t in range(9):
        for i, codes in enumerate(streams):
            chunk, states[i] = decoder.step(codes[:, t : t + 1], states[i])
            audio[i].append(chunk)
    for chunks, codes in zip(audio, streams, strict=True):
        assert_same_audio(mx.concatenate(chunks, axis=1), decoder(codes))


def test_batch_rows_are_independent():
    decoder = random_decoder()
    codes = random_codes(decoder, 15, batch=3)
    together = streamed(decoder, codes, [4])
    for row in range(3):
        assert_same_audio(together[row : row + 1], decoder(codes[row : row + 1]))


# Edges


def test_code_zero_is_a_sound():
    """Length comes from the number of frames, never from code values (case A6)."""
    decoder = random_decoder()
    codes = random_codes(decoder, 4)
    codes[:, 1::2, 0] = 0
    assert decoder(codes).shape == (1, 4 * 1920)
    assert decoder(mx.zeros_like(codes)).shape == (1, 4 * 1920)


def test_no_frames_are_no_samples():
    assert random_decoder()(mx.zeros((1, 0, 16), mx.int32)).shape == (1, 0)


def test_weights_of_any_precision_become_float32():
    tensors = {
        "pre_conv.conv.weight": mx.ones((2, 3, 4), mx.bfloat16),
        "decoder.5.alpha": mx.zeros(2, mx.float16),
    }
    clean = SpeechDecoder.sanitize(tensors)
    assert {value.dtype for value in clean.values()} == {mx.float32}
    assert set(clean) == {"pre_conv.weight", "decoder.5.frequency"}


def test_step_compiles_once():
    """The compiled step serves every state of its shape, the first included, and equals the eager one."""
    decoder, traces = random_decoder(), []

    def step(codes, state):
        traces.append(codes.shape)
        return decoder.step(codes, state)

    compiled = mx.compile(step)
    codes, chunks = random_codes(decoder, 16), []
    state = decoder.initial_state(1)
    for t in range(16):
        audio, state = compiled(codes[:, t : t + 1], state)
        chunks.append(audio)
    assert_same_audio(mx.concatenate(chunks, axis=1), decoder(codes))
    assert traces == [(1, 1, 16)]
