"""SpeechEncoder: 24 kHz samples to frames of 16 codes, the way back of the SpeechDecoder.

    samples ─► encoder /960 ─► encoder_transformer ─► downsample /2 ─► quantizer ─► codes
               (ELU, residual   (causal, sees all     (replicates      (nearest entry,
                units)           of the past)          the ends)        then the rest)

The layout is Mimi's (transformers, modeling_mimi.py). Its ``sliding_window`` is not applied by the release that
upstream runs on (4.57.3), so every position sees the whole past: the work grows with the square of the length.
"""

import re

import mlx.core as mx
import mlx.nn as nn

from ..config import SpeechEncoderConfig
from ..layers import rotary, rotate
from ..speech_decoder.layers import CausalConv, Layer, State, conv_layout, initial_states, step_all
from ..speech_decoder.quantizer import fold_codebooks

BLOCK_SAMPLES = 960 * 48  # whole latents of 40 ms: bounds the memory of the convolutions, whatever the length


class Downsampling(CausalConv):
    """Every ``rate`` inputs become one output; an input that ends between is filled up with zeros."""

    def __init__(self, num_in: int, num_out: int, rate: int):
        super().__init__(num_in, num_out, 2 * rate, stride=rate)

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        return super().step(mx.pad(x, [(0, 0), (0, -x.shape[1] % self.stride), (0, 0)]), state)


class Elu(nn.Module):
    def initial_state(self, batch: int) -> State:
        return ()

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        return nn.elu(x), state


class ResidualUnit(nn.Module):
    def __init__(self, num_channels: int):
        super().__init__()
        hidden = num_channels // 2
        self.block = [Elu(), CausalConv(num_channels, hidden, 3), Elu(), CausalConv(hidden, num_channels, 1)]

    def initial_state(self, batch: int) -> State:
        return initial_states(self.block, batch)

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        y, state = step_all(self.block, x, state)
        return x + y, state


class Convolutions(nn.Module):
    """Samples [B, S, 1] to latents [B, ceil(S / 960), D]."""

    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        width = config.num_filters
        self.layers: list[Layer] = [CausalConv(1, width, 7)]
        for rate in reversed(config.upsampling_ratios):
            self.layers += [ResidualUnit(width), Elu(), Downsampling(width, 2 * width, rate)]
            width *= 2
        self.layers += [Elu(), CausalConv(width, config.hidden_size, 3)]

    def __call__(self, x: mx.array) -> mx.array:
        state, blocks = initial_states(self.layers, x.shape[0]), []
        for start in range(0, x.shape[1], BLOCK_SAMPLES):
            y, state = step_all(self.layers, x[:, start : start + BLOCK_SAMPLES], state)
            blocks.append(y)
        return mx.concatenate(blocks, axis=1)


class Attention(nn.Module):
    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.scale = config.head_dim**-0.5
        width, kv_width = self.num_heads * config.head_dim, self.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def __call__(self, x: mx.array, position: tuple[mx.array, mx.array]) -> mx.array:
        B, T, _ = x.shape
        q = self.q_proj(x).reshape(B, T, self.num_heads, -1).swapaxes(1, 2)
        k = self.k_proj(x).reshape(B, T, self.num_kv_heads, -1).swapaxes(1, 2)
        v = self.v_proj(x).reshape(B, T, self.num_kv_heads, -1).swapaxes(1, 2)
        q, k = rotate(q, *position), rotate(k, *position)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask="causal")
        return self.o_proj(out.swapaxes(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(nn.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = mx.ones(width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.scale * x


class TransformerLayer(nn.Module):
    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        width = config.hidden_size
        self.input_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = LayerScale(width)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = MLP(config)
        self.mlp_layer_scale = LayerScale(width)

    def __call__(self, x: mx.array, position: tuple[mx.array, mx.array]) -> mx.array:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), position))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """Without a norm at its end, as Mimi's."""

    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.layers = [TransformerLayer(config) for _ in range(config.num_hidden_layers)]

    def __call__(self, x: mx.array) -> mx.array:
        position = rotary(mx.arange(x.shape[1])[None], self.head_dim, self.theta)
        for layer in self.layers:
            x = layer(x, position)
        return x


class Halving(CausalConv):
    """Two latents to one, both ends replicated."""

    def __init__(self, width: int):
        super().__init__(width, width, 4, stride=2)

    def __call__(self, x: mx.array) -> mx.array:
        padding = [(0, 0), (self.reach, x.shape[1] % 2), (0, 0)]
        return super().__call__(mx.pad(x, padding, mode="edge"))


class NearestEntries(nn.Module):
    """A group of codebooks [Q, V, D]: each takes the entry nearest to what the ones before it left."""

    def __init__(self, num_codebooks: int, config: SpeechEncoderConfig):
        super().__init__()
        self.codebook = mx.random.normal((num_codebooks, config.codebook_size, config.codebook_dim))
        self.input_proj = nn.Linear(config.hidden_size, config.codebook_dim, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """x: [B, T, hidden] -> codes [B, T, Q] uint32."""
        rest, codes = self.input_proj(x), []
        for entries in self.codebook:
            nearness = rest @ entries.T - mx.square(entries).sum(axis=-1) / 2
            codes.append(mx.argmax(nearness, axis=-1))
            rest = rest - entries[codes[-1]]
        return mx.stack(codes, axis=-1)


class SplitQuantizer(nn.Module):
    """Both groups quantise the same latent, each through a projection of its own."""

    def __init__(self, config: SpeechEncoderConfig, num_codebooks: int):
        super().__init__()
        num_semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = NearestEntries(num_semantic, config)
        self.acoustic_residual_vector_quantizer = NearestEntries(num_codebooks - num_semantic, config)

    def __call__(self, x: mx.array) -> mx.array:
        parts = [self.semantic_residual_vector_quantizer(x), self.acoustic_residual_vector_quantizer(x)]
        return mx.concatenate(parts, axis=-1)


class SpeechEncoder(nn.Module):
    """Always float32. The checkpoint has 32 codebooks, of which the first ``num_codebooks`` are used."""

    def __init__(self, config: SpeechEncoderConfig, num_codebooks: int):
        super().__init__()
        self.encoder = Convolutions(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = Halving(config.hidden_size)
        self.quantizer = SplitQuantizer(config, num_codebooks)

    def __call__(self, audio: mx.array) -> mx.array:
        """audio: [B, S] float32 at 24 kHz -> codes [B, ceil(S / 1920), num_codebooks] uint32."""
        latents = self.encoder_transformer(self.encoder(audio[..., None]))
        return self.quantizer(self.downsample(latents))

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The checkpoint's ``encoder.*`` tensors, prefix removed, as parameters of this class.

        Kernels take our layouts and codebooks are stacked; those beyond ``num_codebooks``, and output_proj, which
        decodes, are dropped. Raises KeyError naming a tensor that another one needs.
        """
        wanted = {
            (f"quantizer.{group}", str(number))
            for group, entries in self.quantizer.items()
            for number in range(entries.codebook.shape[0])
        }
        weights = {k: v.astype(mx.float32) for k, v in weights.items() if _is_used(k, wanted)}
        fold_codebooks(weights, _CODEBOOK)
        weights["downsample.conv.bias"] = mx.zeros(weights["downsample.conv.weight"].shape[0])  # it has none
        return {name.replace(".conv.", "."): _in_our_layout(name, value) for name, value in weights.items()}


_CODEBOOK = re.compile(r"(quantizer\.\w+)\.layers\.(\d+)\.codebook\.embed_sum")
_IN_CODEBOOK = re.compile(r"(quantizer\.\w+)\.layers\.(\d+)\.codebook\.(\w+)")


def _is_used(name: str, wanted: set[tuple[str, str]]) -> bool:
    if match := _IN_CODEBOOK.fullmatch(name):
        return (match[1], match[2]) in wanted and match[3] != "initialized"
    return not (name.startswith("quantizer.") and name.endswith(".output_proj.weight"))


def _in_our_layout(name: str, weight: mx.array) -> mx.array:
    if name.endswith(".conv.weight"):
        return conv_layout(weight.swapaxes(1, 2))
    return weight[:, :, 0] if name.endswith(".input_proj.weight") else weight
