"""SpeakerEncoder: 24 kHz samples to the one vector that stands for a voice (ECAPA-TDNN on a log mel spectrogram).

Upstream: modeling_qwen3_tts.py, ``mel_spectrogram`` and ``Qwen3TTSSpeakerEncoder``. Arrays are [B, T, C].
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..config import SpeakerEncoderConfig
from ..speech_decoder.layers import conv_layout, convolve, windows

WINDOW, HOP, SAMPLE_RATE = 1024, 256, 24_000
FLOOR = 1e-5  # of a mel band, before the logarithm


def reflect(x: mx.array, left: int, right: int) -> mx.array:
    """x [B, T, C] with its inner values mirrored at both ends, the last one not repeated."""
    T = x.shape[1]
    index = np.abs(np.arange(-left, T + right))
    return x[:, mx.array(np.where(index < T, index, 2 * (T - 1) - index))]


def mel_filters(num_mels: int) -> np.ndarray:
    """[num_mels, WINDOW / 2 + 1] float32: triangles of equal area on Slaney's mel scale, 0 to 12 kHz.

    That scale (librosa's default) is linear below 1 kHz, 3 mel per 200 Hz, and logarithmic above it.
    """
    step = np.log(6.4) / 27
    mels = np.linspace(0, 15 + np.log(SAMPLE_RATE / 2 / 1000) / step, num_mels + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = np.fft.rfftfreq(WINDOW, 1 / SAMPLE_RATE)
    triangles = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre))
    return (np.maximum(triangles, 0) * 2 / (high - low)).astype(np.float32)


def mel_spectrogram(audio: mx.array, num_mels: int) -> mx.array:
    """audio [B, S] float32 at 24 kHz -> natural logarithms of mel bands [B, S // 256, num_mels]."""
    padding = (WINDOW - HOP) // 2
    frames = windows(reflect(audio[..., None], padding, padding), WINDOW, stride=HOP)[..., 0]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    spectrum = mx.fft.rfft(frames * mx.array(hann.astype(np.float32)))
    power = mx.square(spectrum.real) + mx.square(spectrum.imag)
    return mx.log(mx.maximum(mx.sqrt(power + 1e-9) @ mx.array(mel_filters(num_mels)).T, FLOOR))


class Conv(nn.Module):
    """A convolution that keeps the length; both ends are mirrored."""

    def __init__(self, num_in: int, num_out: int, kernel: int = 1, dilation: int = 1):
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.weight = conv_layout(mx.zeros((num_out, kernel, num_in)))
        self.bias = mx.zeros(num_out)

    def __call__(self, x: mx.array) -> mx.array:
        padding = (self.kernel - 1) * self.dilation
        if padding:
            x = reflect(x, padding // 2, padding - padding // 2)
        return convolve(x, self.weight, self.bias, self.kernel, self.dilation)


class TimeDelay(nn.Module):
    def __init__(self, num_in: int, num_out: int, kernel: int = 1, dilation: int = 1):
        super().__init__()
        self.conv = Conv(num_in, num_out, kernel, dilation)

    def __call__(self, x: mx.array) -> mx.array:
        return nn.relu(self.conv(x))


class Res2Net(nn.Module):
    """The channels in ``scale`` parts: each is convolved together with the result of the one before it."""

    def __init__(self, num_channels: int, scale: int, kernel: int, dilation: int):
        super().__init__()
        self.scale, width = scale, num_channels // scale
        self.blocks = [TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1)]

    def __call__(self, x: mx.array) -> mx.array:
        first, *parts = mx.split(x, self.scale, axis=-1)
        outputs = [first]
        for number, (block, part) in enumerate(zip(self.blocks, parts)):
            outputs.append(block(part + outputs[-1] if number else part))
        return mx.concatenate(outputs, axis=-1)


class SqueezeExcitation(nn.Module):
    """Every channel scaled by what the means of all of them say."""

    def __init__(self, num_channels: int, hidden: int):
        super().__init__()
        self.conv1 = Conv(num_channels, hidden)
        self.conv2 = Conv(hidden, num_channels)

    def __call__(self, x: mx.array) -> mx.array:
        mean = x.mean(axis=1, keepdims=True)
        return x * mx.sigmoid(self.conv2(nn.relu(self.conv1(mean))))


class SqueezeExcitationRes2Net(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, layer: int):
        super().__init__()
        width = config.enc_channels[layer]
        kernel, dilation = config.enc_kernel_sizes[layer], config.enc_dilations[layer]
        self.tdnn1 = TimeDelay(config.enc_channels[layer - 1], width)
        self.res2net_block = Res2Net(width, config.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = TimeDelay(width, width)
        self.se_block = SqueezeExcitation(width, config.enc_se_channels)

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class AttentiveStatistics(nn.Module):
    """Means and deviations over time [B, 1, 2 C], every channel weighing the moments for itself."""

    def __init__(self, num_channels: int, hidden: int):
        super().__init__()
        self.tdnn = TimeDelay(3 * num_channels, hidden)
        self.conv = Conv(hidden, num_channels)

    def __call__(self, x: mx.array) -> mx.array:
        everywhere = [mx.broadcast_to(value, x.shape) for value in _statistics(x, mx.array(1 / x.shape[1]))]
        weights = self.conv(mx.tanh(self.tdnn(mx.concatenate([x, *everywhere], axis=-1))))
        return mx.concatenate(_statistics(x, mx.softmax(weights, axis=1)), axis=-1)


def _statistics(x: mx.array, weights: mx.array) -> list[mx.array]:
    mean = (weights * x).sum(axis=1, keepdims=True)
    variance = (weights * mx.square(x - mean)).sum(axis=1, keepdims=True)
    return [mean, mx.sqrt(mx.maximum(variance, 1e-12))]


class SpeakerEncoder(nn.Module):
    """Always float32."""

    def __init__(self, config: SpeakerEncoderConfig):
        super().__init__()
        first, *_, last = config.enc_channels
        self.num_mels = config.mel_dim
        inner = range(1, len(config.enc_channels) - 1)
        self.blocks = [
            TimeDelay(config.mel_dim, first, config.enc_kernel_sizes[0], config.enc_dilations[0]),
            *(SqueezeExcitationRes2Net(config, layer) for layer in inner),
        ]
        num_features = sum(config.enc_channels[layer] for layer in inner)
        self.mfa = TimeDelay(num_features, last, config.enc_kernel_sizes[-1], config.enc_dilations[-1])
        self.asp = AttentiveStatistics(last, config.enc_attention_channels)
        self.fc = Conv(2 * last, config.enc_dim)

    def __call__(self, audio: mx.array) -> mx.array:
        """audio: [B, S] float32 at 24 kHz, at least 0.1 s -> [B, enc_dim] float32."""
        x, features = mel_spectrogram(audio, self.num_mels), []
        for block in self.blocks:
            x = block(x)
            features.append(x)
        x = self.mfa(mx.concatenate(features[1:], axis=-1))
        return self.fc(self.asp(x))[:, 0]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The checkpoint's ``speaker_encoder.*`` tensors, prefix removed, as parameters of this class.

        Kernels are [out, in, taps] as upstream's, or all [out, taps, in] in a folder that mlx-audio converted.
        """
        first = weights.get("blocks.0.conv.weight")
        upstream = first is None or first.shape[-1] != self.num_mels

        def kernel(value: mx.array) -> mx.array:
            value = value.astype(mx.float32)
            return conv_layout(value.swapaxes(1, 2) if upstream else value)

        return {name: kernel(value) if name.endswith(".weight") else value for name, value in weights.items()}
