"""Causal convolutions as functions of (input, state), and the blocks the SpeechDecoder builds from them.

Arrays are [B, S, C], channels last. A layer with memory has ``initial_state(batch)`` and ``step(x, state)``,
which returns the output of the new positions and the next state. The first state is zeros, upstream's left
padding, so running a whole utterance is one step from there and no second form exists.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

State = Any  # a tree of lists and tuples with arrays as leaves, as mx.compile takes it


class Layer(Protocol):
    def initial_state(self, batch: int) -> State: ...
    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]: ...


def initial_states(layers: Sequence[Layer], batch: int) -> State:
    return [layer.initial_state(batch) for layer in layers]


def step_all(layers: Sequence[Layer], x: mx.array, states: State) -> tuple[mx.array, State]:
    """The layers in order, each with its own state."""
    new_states = []
    for layer, state in zip(layers, states, strict=True):
        x, state = layer.step(x, state)
        new_states.append(state)
    return x, new_states


def windows(x: mx.array, kernel: int, dilation: int = 1, stride: int = 1) -> mx.array:
    """[B, S, C] -> [B, (S - (kernel - 1) * dilation - 1) // stride + 1, kernel, C], the inputs under each output.

    A view.
    """
    B, S, C = x.shape
    num_outputs = (S - (kernel - 1) * dilation - 1) // stride + 1
    return mx.as_strided(x, (B, num_outputs, kernel, C), (S * C, stride * C, dilation * C, 1))


def conv_layout(weight: mx.array) -> mx.array:
    """A kernel [out, kernel, in] as the default device likes it, which also picks the form of ``convolve``.

    MLX's CPU convolutions are slow: there it is one product of the windows and a [kernel * in, out] matrix.
    This order of the matrix, not its transpose, doubles the speed of the Linux wheel's reference BLAS.
    """
    if mx.default_device().type == mx.DeviceType.gpu and weight.shape[1] > 1:
        return weight
    return mx.contiguous(weight.reshape(weight.shape[0], -1).T)


def convolve(
    x: mx.array, weight: mx.array, bias: mx.array, kernel: int, dilation: int = 1, stride: int = 1
) -> mx.array:
    """The convolution without padding; weight: from ``conv_layout``."""
    if weight.ndim == 3:
        return mx.conv1d(x, weight, stride=stride, dilation=dilation) + bias
    if kernel > 1:
        x = windows(x, kernel, dilation, stride).flatten(2)
    return mx.addmm(bias, x, weight)


class CausalConv(nn.Module):
    """A convolution whose output ends with its input. State: the inputs it still needs, [B, reach, in].

    With a stride, a step takes a multiple of it.
    """

    def __init__(self, num_in: int, num_out: int, kernel: int, dilation: int = 1, stride: int = 1):
        super().__init__()
        self.num_in, self.kernel, self.dilation, self.stride = num_in, kernel, dilation, stride
        self.reach = (kernel - 1) * dilation + 1 - stride
        bound = (num_in * kernel) ** -0.5
        self.weight = conv_layout(mx.random.uniform(-bound, bound, (num_out, kernel, num_in)))
        self.bias = mx.zeros(num_out)

    def __call__(self, x: mx.array) -> mx.array:
        """x: [B, reach + S, in], state included -> [B, S / stride, out]."""
        return convolve(x, self.weight, self.bias, self.kernel, self.dilation, self.stride)

    def initial_state(self, batch: int) -> State:
        return mx.zeros((batch, self.reach, self.num_in))

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        x = mx.concatenate([state, x], axis=1)
        return self(x), x[:, x.shape[1] - self.reach :]


class Upsampling(CausalConv):
    """A transposed convolution of stride ``rate`` and kernel ``taps * rate``, trimmed on the right.

    Each input makes ``rate`` outputs from itself and the ``taps - 1`` inputs before it: a causal convolution
    with ``rate`` times the channels. So its memory is inputs too, and the bias cannot be added twice.
    """

    def __init__(self, num_in: int, num_out: int, rate: int, taps: int):
        super().__init__(num_in, rate * num_out, taps)
        self.rate = rate

    def __call__(self, x: mx.array) -> mx.array:
        y = super().__call__(x)
        return y.reshape(y.shape[0], y.shape[1] * self.rate, -1)


class DepthwiseConv(nn.Module):
    """A causal convolution of each channel by itself. State: [B, kernel - 1, C]."""

    def __init__(self, num_channels: int, kernel: int):
        super().__init__()
        bound = kernel**-0.5
        self.weight = mx.random.uniform(-bound, bound, (kernel, num_channels))
        self.bias = mx.zeros(num_channels)

    def initial_state(self, batch: int) -> State:
        kernel, num_channels = self.weight.shape
        return mx.zeros((batch, kernel - 1, num_channels))

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        num_new, kernel = x.shape[1], self.weight.shape[0]
        x = mx.concatenate([state, x], axis=1)
        return (windows(x, kernel) * self.weight).sum(axis=2) + self.bias, x[:, num_new:]


class Snake(nn.Module):
    """x + amplitude * sin^2(frequency * x); both are made at load from SnakeBeta's logarithms."""

    def __init__(self, num_channels: int):
        super().__init__()
        self.frequency = mx.ones(num_channels)
        self.amplitude = mx.ones(num_channels)

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.amplitude * mx.square(mx.sin(self.frequency * x))

    def initial_state(self, batch: int) -> State:
        return ()

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        return self(x), state


class ConvNeXtBlock(nn.Module):
    def __init__(self, num_channels: int):
        super().__init__()
        self.dwconv = DepthwiseConv(num_channels, 7)
        self.norm = nn.LayerNorm(num_channels, eps=1e-6)
        self.pwconv1 = nn.Linear(num_channels, 4 * num_channels)
        self.pwconv2 = nn.Linear(4 * num_channels, num_channels)

    def initial_state(self, batch: int) -> State:
        return self.dwconv.initial_state(batch)

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        y, state = self.dwconv.step(x, state)
        return x + self.pwconv2(nn.gelu(self.pwconv1(self.norm(y)))), state


class ResidualUnit(nn.Module):
    def __init__(self, num_channels: int, dilation: int):
        super().__init__()
        self.act1 = Snake(num_channels)
        self.conv1 = CausalConv(num_channels, num_channels, 7, dilation)
        self.act2 = Snake(num_channels)
        self.conv2 = CausalConv(num_channels, num_channels, 1)  # no memory, so it is called, not stepped

    def initial_state(self, batch: int) -> State:
        return self.conv1.initial_state(batch)

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        y, state = self.conv1.step(self.act1(x), state)
        return x + self.conv2(self.act2(y)), state


class DecoderBlock(nn.Module):
    """``rate`` times the samples in half the channels, then three residual units."""

    def __init__(self, num_in: int, rate: int):
        super().__init__()
        num_out = num_in // 2
        self.block = [
            Snake(num_in),
            Upsampling(num_in, num_out, rate, taps=2),
            *(ResidualUnit(num_out, dilation) for dilation in (1, 3, 9)),
        ]

    def initial_state(self, batch: int) -> State:
        return initial_states(self.block, batch)

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        return step_all(self.block, x, state)
