"""SpeechDecoder: frames of 16 codes to 24 kHz samples, any number of frames at a time.

    codes ─► quantizer ─► pre_conv ─► pre_transformer ─► upsample x4 ─► decoder x480 ─► samples
              (sum of      (k 3)       (window of 72       (ConvNeXt)     (Snake, residual
               entries)                 frames)                            units)

Every stage is causal and carries what it needs of the past in the state, so any split of the frames gives
the samples of one whole pass. Upstream (modeling_qwen3_tts_tokenizer_v2.py, ``chunked_decode``) instead
restarts every 300 frames with 25 frames of context, and has seams there.
"""

import re

import mlx.core as mx
import mlx.nn as nn

from ..config import SpeechDecoderConfig
from ..layers import MLP, rotary, rotate
from .layers import (
    CausalConv,
    ConvNeXtBlock,
    DecoderBlock,
    Layer,
    Snake,
    State,
    Upsampling,
    conv_layout,
    initial_states,
    step_all,
)
from .quantizer import Quantizer, fold_codebooks

BLOCK_FRAMES = 16  # of a whole decode: bounds its memory (0.5 GB at full size) whatever its length


class WindowAttention(nn.Module):
    """Attention to the last ``sliding_window`` positions. State: the keys and values before the new ones.

    Keys are kept unrotated and turned by their place in the window, so a stream never reaches positions where
    float32 angles are coarse.
    """

    def __init__(self, config: SpeechDecoderConfig):
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.scale = config.head_dim, config.head_dim**-0.5
        self.num_past = config.sliding_window - 1
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def initial_state(self, batch: int) -> State:
        empty = mx.zeros((batch, self.num_kv_heads, self.num_past, self.head_dim))
        return empty, empty

    def step(
        self, x: mx.array, state: State, position: tuple[mx.array, mx.array], mask: mx.array
    ) -> tuple[mx.array, State]:
        B, T, _ = x.shape
        q = self.q_proj(x).reshape(B, T, self.num_heads, -1).swapaxes(1, 2)
        k = self.k_proj(x).reshape(B, T, self.num_kv_heads, -1).swapaxes(1, 2)
        v = self.v_proj(x).reshape(B, T, self.num_kv_heads, -1).swapaxes(1, 2)
        k, v = (mx.concatenate([past, new], axis=2) for past, new in zip(state, (k, v), strict=True))
        cos, sin = position
        q = rotate(q, cos[:, :, self.num_past :], sin[:, :, self.num_past :])
        out = mx.fast.scaled_dot_product_attention(q, rotate(k, cos, sin), v, scale=self.scale, mask=mask)
        return self.o_proj(out.swapaxes(1, 2).reshape(B, T, -1)), (k[:, :, T:], v[:, :, T:])


class TransformerLayer(nn.Module):
    def __init__(self, config: SpeechDecoderConfig):
        super().__init__()
        self.self_attn = WindowAttention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def step(
        self, x: mx.array, state: State, position: tuple[mx.array, mx.array], mask: mx.array
    ) -> tuple[mx.array, State]:
        y, state = self.self_attn.step(self.input_layernorm(x), state, position, mask)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), state


class Transformer(nn.Module):
    """State: how many of the kept positions are filled, int32, and each layer's keys and values."""

    def __init__(self, config: SpeechDecoderConfig):
        super().__init__()
        self.num_past = config.sliding_window - 1
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.layers = [TransformerLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def initial_state(self, batch: int) -> State:
        return mx.array(0), [layer.self_attn.initial_state(batch) for layer in self.layers]

    def step(self, x: mx.array, state: State) -> tuple[mx.array, State]:
        (num_filled, layer_states), num_new = state, x.shape[1]
        slots = mx.arange(self.num_past + num_new)
        age = slots[self.num_past :, None] - slots  # of a key, seen from a query
        mask = (age >= 0) & (age <= self.num_past) & (slots >= self.num_past - num_filled)
        position = rotary(slots[None], self.head_dim, self.theta)
        x, new_states = self.input_proj(x), []
        for layer, layer_state in zip(self.layers, layer_states, strict=True):
            x, layer_state = layer.step(x, layer_state, position, mask)
            new_states.append(layer_state)
        num_filled = mx.minimum(num_filled + num_new, self.num_past)
        return self.output_proj(self.norm(x)), (num_filled, new_states)


class SpeechDecoder(nn.Module):
    """Always float32. ``step`` is a function of arrays alone: compile it once per number of frames."""

    def __init__(self, config: SpeechDecoderConfig):
        super().__init__()
        latent, width = config.latent_dim, config.decoder_dim
        num_blocks = len(config.upsample_rates)
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = [
            [Upsampling(latent, latent, rate, taps=1), ConvNeXtBlock(latent)] for rate in config.upsampling_ratios
        ]
        self.decoder = [
            CausalConv(latent, width, 7),
            *(DecoderBlock(width >> i, rate) for i, rate in enumerate(config.upsample_rates)),
            Snake(width >> num_blocks),
            CausalConv(width >> num_blocks, 1, 7),
        ]

    @property
    def stages(self) -> list[Layer]:
        """All that follows the quantizer, in order."""
        upsample = [layer for stage in self.upsample for layer in stage]
        return [self.pre_conv, self.pre_transformer, *upsample, *self.decoder]

    def initial_state(self, batch: int) -> State:
        return initial_states(self.stages, batch)

    def step(self, codes: mx.array, state: State) -> tuple[mx.array, State]:
        """The samples of the next frames, and the state after them.

        codes: [B, T, 16] integers -> audio: [B, T * samples_per_frame] float32, -1..1.
        """
        audio, state = step_all(self.stages, self.quantizer(codes), state)
        return mx.clip(audio[..., 0], -1, 1), state

    def __call__(self, codes: mx.array) -> mx.array:
        """codes: [B, T, 16] integers -> audio: [B, T * samples_per_frame] float32, -1..1."""
        state = self.initial_state(codes.shape[0])
        blocks = [mx.zeros((codes.shape[0], 0))]  # no frames are no samples
        for start in range(0, codes.shape[1], BLOCK_FRAMES):
            audio, state = self.step(codes[:, start : start + BLOCK_FRAMES], state)
            blocks.append(audio)
        return mx.concatenate(blocks, axis=1)

    @staticmethod
    def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The checkpoint's ``decoder.*`` tensors, prefix removed, as parameters of this class.

        The module that upstream wraps around each convolution (``.conv``) goes, kernels take our layouts, and
        what only scales another tensor is folded into it. The quantizer's input_proj encodes: it is dropped.
        Raises KeyError naming a tensor that another one needs.
        """
        weights = {k: v.astype(mx.float32) for k, v in weights.items() if not _ENCODING.fullmatch(k)}
        _fold_scales(weights)
        fold_codebooks(weights, _CODEBOOK)
        return dict(_converted(name, weights) for name in weights)


_ENCODING = re.compile(r"quantizer\.rvq_(first|rest)\.input_proj\.weight")
_CODEBOOK = re.compile(r"(quantizer\.rvq_(?:first|rest))\.vq\.layers\.(\d+)\._codebook\.embedding_sum")
_TRANSPOSED = re.compile(r"(upsample\.\d+\.0|decoder\.\d+\.block\.1)\.conv\.(weight|bias)")
_SCALED = (
    (".self_attn_layer_scale.scale", (".self_attn.o_proj.weight",)),
    (".mlp_layer_scale.scale", (".mlp.down_proj.weight",)),
    (".gamma", (".pwconv2.weight", ".pwconv2.bias")),
)


def _fold_scales(weights: dict[str, mx.array]) -> None:
    """Multiply the scales of residual branches into the layer before them; changes ``weights``."""
    for suffix, targets in _SCALED:
        for name in [name for name in weights if name.endswith(suffix)]:
            scale = weights.pop(name)
            for target in (name.removesuffix(suffix) + target for target in targets):
                weights[target] = (weights[target].T * scale).T  # by output, which is the first axis


def _converted(name: str, weights: dict[str, mx.array]) -> tuple[str, mx.array]:
    """One tensor under our name and in our layout, both decided by its name."""
    weight, stem = weights[name], name.replace(".conv.", ".")
    if match := _TRANSPOSED.fullmatch(name):
        taps = 2 if name.startswith("decoder") else 1
        rate = weights[name.removesuffix(match[2]) + "weight"].shape[2] // taps
        if match[2] == "bias":
            return stem, mx.tile(weight, rate)
        # [in, out, kernel]; the first ``rate`` places of the kernel meet the newest input, our last tap
        num_in, num_out, _ = weight.shape
        weight = weight.reshape(num_in, num_out, taps, rate)[:, :, ::-1].transpose(3, 1, 2, 0)
        return stem, conv_layout(weight.reshape(rate * num_out, taps, num_in))
    if name.endswith(".dwconv.conv.weight"):
        return stem, weight[:, 0].T
    if name.endswith(".conv.weight"):
        return stem, conv_layout(weight.swapaxes(1, 2))
    if name.startswith("quantizer.") and name.endswith(".output_proj.weight"):
        return name, weight[:, :, 0]
    if name.endswith(".alpha"):
        return name.removesuffix("alpha") + "frequency", mx.exp(weight)
    if name.endswith(".beta"):
        return name.removesuffix("beta") + "amplitude", 1 / (mx.exp(weight) + 1e-9)
    return stem, weight
