"""MultiCodeDecoder (upstream: code predictor): codes 1..15 of a frame from its hidden state and code 0.

Slot 0 is the frame hidden, slot 1 is code 0, slot s is code s-1; the state at slot q predicts codebook q through
``lm_head[q-1]``. The fifteen heads, and the fifteen tables, are stacked into one tensor each, so that a codebook
chosen by an array needs no copy of its head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .cache import Joined
from .config import CodeDecoderConfig, MultiCodeDecoderConfig
from .layers import (
    SMALL_MATRIX,
    DecoderLayer,
    LayerCache,
    Linear,
    added_mask,
    as_multiplied,
    gathered_matmul,
    rotary,
)
from .sampling import choose


class Heads(nn.Module):
    """One bias-free head per codebook 1..15: weight [15, V, D], or packed, see ``quantisation``."""

    def __init__(self, num_heads: int, width: int, num_codes: int):
        super().__init__()
        self.is_small = num_codes * width <= SMALL_MATRIX  # to read one again costs less than a call
        self.weight = mx.zeros((num_heads, num_codes, width))

    def __call__(self, states: mx.array, head: mx.array) -> mx.array:
        """Logits [..., n, V] of states [..., n, D], those of row i through head[i]; head: [...] integers."""
        matrices = self["_matrices"] if "_matrices" in self else self.weight.swapaxes(-1, -2)
        return gathered_matmul(states, matrices, head)

    def lay_out(self) -> None:
        """As ``layers.lay_out``: keep the matrices as they are multiplied."""
        self._matrices = as_multiplied(self.weight.swapaxes(-1, -2))
        self.weight = self._matrices.swapaxes(-1, -2)

    def numbers(self) -> mx.array:
        """All heads [15, V, D]."""
        return self.weight

    def to_quantized(self, group_size: int, bits: int) -> "QuantizedHeads":
        """What ``nn.quantize`` asks for."""
        return QuantizedHeads(self, group_size, bits)


class Books(NamedTuple):
    """What some consecutive codes are chosen with; past the last codebook its own again."""

    heads: mx.array  # [B, n] uint32
    noise: mx.array  # [B, n, V]


class QuantizedHeads(nn.Module):
    def __init__(self, heads: Heads, group_size: int, bits: int):
        super().__init__()
        self.group_size, self.bits, self.is_small = group_size, bits, heads.is_small
        self.weight, self.scales, self.biases = mx.quantize(heads.weight, group_size, bits)

    def __call__(self, states: mx.array, head: mx.array) -> mx.array:
        parts = self.weight, self.scales, self.biases
        return mx.gather_qmm(states, *parts, rhs_indices=head, group_size=self.group_size, bits=self.bits)

    def numbers(self) -> mx.array:
        return mx.dequantize(self.weight, self.scales, self.biases, self.group_size, self.bits)


class MultiCodeDecoderModel(nn.Module):
    def __init__(self, config: MultiCodeDecoderConfig, input_size: int):
        super().__init__()
        num_tables = config.num_code_groups - 1
        self.codec_embedding = nn.Embedding(num_tables * config.vocab_size, input_size)
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class MultiCodeDecoder(nn.Module):
    def __init__(self, config: MultiCodeDecoderConfig, talker: CodeDecoderConfig):
        super().__init__()
        self._config = config
        self.num_codes, self.num_entries = config.num_code_groups - 1, config.vocab_size
        self.width, self.input_size = config.hidden_size, talker.hidden_size
        self.model = MultiCodeDecoderModel(config, talker.hidden_size)
        self.lm_head = Heads(self.num_codes, config.hidden_size, config.vocab_size)
        if talker.hidden_size != config.hidden_size:
            self.small_to_mtp_projection = Linear(talker.hidden_size, config.hidden_size)
        # Tables, not numbers: a number that changes with the slot would be baked into a kernel of its own.
        self._first_row = mx.arange(self.num_codes) * config.vocab_size
        turns = rotary(mx.arange(config.num_code_groups)[None], config.head_dim, config.rope_theta)
        self._rotary = [np.array(table) for table in turns]  # a part is then a constant of a graph, not a step of it
        self._heads = mx.arange(self.num_codes, dtype=mx.uint32)

    def lay_out(self) -> None:
        """Keep the tables as projected to the decoder's width: a code is fed without a product."""
        projection = self.small_to_mtp_projection if "small_to_mtp_projection" in self else None
        if isinstance(projection, Linear) and isinstance(self.model.codec_embedding, nn.Embedding):
            self._fed = projection(self.model.codec_embedding.weight)

    def project(self, x: mx.array) -> mx.array:
        """x [..., talker width] -> [..., D]."""
        return self.small_to_mtp_projection(x) if "small_to_mtp_projection" in self else x

    def feed(self, rows: mx.array) -> mx.array:
        """What the decoder's layers are fed for codes: rows [...] of all tables -> [..., D]."""
        return self._fed[rows] if "_fed" in self else self.project(self.model.codec_embedding(rows))

    def embed(self, codes: mx.array, first_row: mx.array) -> mx.array:
        """codes [B, n] whose tables begin at first_row (broadcastable to codes) -> [B, n, talker width]."""
        return self.model.codec_embedding(codes + first_row)

    def embed_frame(self, codes: mx.array) -> mx.array:
        """Sum of the embeddings of codes 1..15 [B, 15] -> [B, talker width]."""
        return self.embed(codes, self._first_row).sum(axis=1)

    def as_mask(self, seen: np.ndarray) -> mx.array:
        """Masks [..., n, keys], true where a row may look, as the layers need them with the fewest steps."""
        tiles = self.model.layers[0].self_attn.tiles
        if not tiles:
            return mx.array(seen)
        return added_mask(mx.array(np.concatenate([seen] * tiles, axis=-2)), mx.float32)  # see ``layers.attend``

    def at_slots(self, begin: int, end: int) -> tuple[mx.array, mx.array]:
        """The rotation of slots begin..end-1, see ``layers.rotary``."""
        cos, sin = (mx.array(table[:, :, begin:end]) for table in self._rotary)
        return cos, sin

    def __call__(
        self,
        x: mx.array,
        position: tuple[mx.array, mx.array],
        mask: mx.array | None,
        caches: Sequence[LayerCache],
    ) -> mx.array:
        """States after the final norm [B, n, D] of input rows x [B, n, talker width]."""
        return self.run(self.project(x), position, mask, caches)

    def run(
        self,
        x: mx.array,
        position: tuple[mx.array, mx.array],
        mask: mx.array | None,
        caches: Sequence[LayerCache],
    ) -> mx.array:
        """The same of rows x [B, n, D], see ``project`` and ``feed``."""
        B, n, D = x.shape
        x = x.reshape(-1, D)
        for layer, cache in zip(self.model.layers, caches):
            x = layer(x, position, mask, cache)
        return self.model.norm(x).reshape(B, n, D)

    def prefill(self, hidden: mx.array, first: mx.array) -> tuple[mx.array, list[Joined]]:
        """State of slot 1 [B, 1, D] and the caches of slots 0 and 1.

        hidden: [B, talker width] frame hidden; first: [B, talker width] embedding of code 0.
        """
        caches = [Joined() for _ in self.model.layers]
        mask = mx.array([[True, False], [True, True]])
        states = self(mx.stack([hidden, first], axis=1), self.at_slots(0, 2), mask, caches)
        return states[:, 1:], caches

    def decode_frame(
        self, hidden: mx.array, first: mx.array, noise: mx.array, form: tuple[int, bool], knobs: mx.array
    ) -> mx.array:
        """Codes 1..15 [B, 15] int32, one after another: the oracle of speculative decoding.

        hidden, first: as in ``prefill``; noise: [B, 15, V] Gumbel rows; form, knobs: see ``sampling.Choice``.
        Compiled as it stands, it is the whole frame as one graph of static shapes.
        """
        states, caches = self.prefill(hidden, first)
        codes = []
        for i in range(self.num_codes):
            head = mx.broadcast_to(self._heads[i : i + 1], (hidden.shape[0],))
            logits = self.lm_head(states, head)[:, 0]
            codes.append(choose(logits, noise[:, i], form, knobs))
            if i + 1 < self.num_codes:
                x = self.feed(codes[-1][:, None] + self._first_row[i : i + 1])
                caches = [Joined(cache.rows) for cache in caches]
                states = self.run(x, self.at_slots(i + 2, i + 3), None, caches)
        # a value that is not finite stays in the cache, so it shows in the last logits: the caller sees -1
        codes[-1] = mx.where(mx.isfinite(logits.astype(mx.float32)).all(axis=-1), codes[-1], -1)
        return mx.stack(codes, axis=1)


def books_from(slot: mx.array, number: int, noise: mx.array) -> Books:
    """Of ``number`` codes from code ``slot`` [B, 1] on; noise: as in ``MultiCodeDecoder.decode_frame``."""
    steps = mx.array(np.arange(number, dtype=np.uint32))
    heads = mx.minimum(slot.astype(mx.uint32) + steps, noise.shape[1]) - 1
    return Books(heads, mx.take_along_axis(noise, heads[..., None], axis=1))


def stack_codebooks(weights: dict[str, mx.array], num_tables: int) -> dict[str, mx.array]:
    """The checkpoint's ``lm_head.i`` and ``model.codec_embedding.i`` joined over i, other tensors as they are.

    Raises KeyError with the name of a tensor that is not there, ValueError for tensors that are not alike.
    """
    stacked = dict(weights)
    for name, join in (("lm_head", mx.stack), ("model.codec_embedding", mx.concatenate)):
        for part in ("weight", *(p for p in ("scales", "biases") if f"{name}.0.{p}" in weights)):
            tensors = [stacked.pop(f"{name}.{i}.{part}") for i in range(num_tables)]
            if len({(tensor.shape, tensor.dtype) for tensor in tensors}) > 1:
                shapes = sorted({str(list(tensor.shape)) for tensor in tensors})
                raise ValueError(f"{name}.0 to {num_tables - 1}: {part} of unlike shapes or types, {', '.join(shapes)}")
            stacked[f"{name}.{part}"] = join(tensors)
    return stacked
