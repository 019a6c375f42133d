"""The Qwen3 decoder layer, shared by CodeDecoder and MultiCodeDecoder.

Pre-norm, grouped-query attention with an RMSNorm per head on queries and keys before the rotation, SwiGLU, no
biases. Upstream's multimodal rotary has three equal position rows here, so it is the plain half-split rotary.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .config import TransformerConfig

SMALL_MATRIX = 100**3 // 2  # numbers; see ``side_by_side``
# What OpenBLAS multiplies without packing the matrix first, when that is [out, in]; see ``multiply``.
UNPACKED_PRODUCTS, UNPACKED_RESULTS = 100**3, 1200
LEAST_BLOCK = 32


class LayerCache(Protocol):
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]: ...


def rotary(positions: mx.array, head_dim: int, theta: float) -> tuple[mx.array, mx.array]:
    """cos and sin [B, 1, T, head_dim] float32 for integer positions [B, T], half-split layout, for ``rotate``.

    Built once per call and shared by all layers. Tree rows of equal depth share a position, so the row index is
    no position and ``mx.fast.rope``'s consecutive offsets do not fit.
    """
    half = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    frequencies = mx.array(np.concatenate([-half, half]), dtype=mx.float32)  # cos is even, sin is odd
    angles = positions[:, None, :, None].astype(mx.float32) * frequencies
    return mx.cos(angles), mx.sin(angles)


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """x: [B, H, T, head_dim] turned by its positions, in x's dtype."""
    first, second = mx.split(x, 2, axis=-1)
    turned = mx.concatenate([second, first], axis=-1)  # the minus sign is in sin
    return (x * cos + turned * sin).astype(x.dtype)


def gathered_matmul(x: mx.array, matrices: mx.array, index: mx.array) -> mx.array:
    """x[i] @ matrices[index[i]]: x [..., n, D], matrices [Q, D, V], index [...] uint32 -> [..., n, V].

    On a GPU, and in float32, no matrix is copied; MLX's CPU gather_mm knows float32 alone (0.32.4).
    """
    if x.dtype != mx.float32 and on_cpu():
        return x @ matrices[index]
    each = mx.array(np.arange(index.size, dtype=np.uint32).reshape(index.shape))  # a constant of the compiled graph
    (n, D), (Q, _, V) = x.shape[-2:], matrices.shape
    if not (block := unpacked_block(n, matrices[0])):
        return mx.gather_mm(x, matrices, each, index)
    blocks = matrices.swapaxes(-1, -2).reshape(Q * V // block, block, D).swapaxes(-1, -2)
    index = index[..., None] * (V // block) + mx.arange(V // block, dtype=mx.uint32)
    parts = mx.gather_mm(x, blocks, mx.broadcast_to(each[..., None], index.shape), index)
    return parts.swapaxes(-3, -2).reshape(*x.shape[:-1], V)


def unpacked_block(rows: int, matrix: mx.array) -> int:
    """How many outputs of a matrix [in, out] are best multiplied at a time with so many rows, 0 for all.

    OpenBLAS copies a large matrix into an order of its own in every call, which for a few rows costs more than the
    product. It does not do so up to 10^6 products and, of a matrix stored as [out, in], 1,200 results
    (sgemm_small_kernel_permit_skylakex.c, 0.3.31): blocks below that are read at the memory's speed. Elsewhere blocks
    cost nothing.
    """
    if matrix.size <= SMALL_MATRIX or matrix.dtype != mx.float32 or not on_cpu():
        return 0
    num_in, num_out = matrix.shape
    most = min(UNPACKED_PRODUCTS // num_in, UNPACKED_RESULTS) // rows
    block = 1 << most.bit_length() - 1 if most else 0
    while block and num_out % block:
        block //= 2
    return block if LEAST_BLOCK <= block < num_out else 0


def multiply(x: mx.array, matrix: mx.array) -> mx.array:
    """x [n, in] @ matrix [in, out], a view of [out, in] where it is large."""
    if x.ndim != 2 or not (block := unpacked_block(len(x), matrix)):
        return x @ matrix
    blocks = matrix.T.reshape(-1, block, matrix.shape[0]).swapaxes(1, 2)
    return (x @ blocks).swapaxes(0, 1).reshape(len(x), -1)


def on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)


def by_head(x: mx.array, T: int, num_heads: int) -> mx.array:
    """x [B T, heads x head_dim] as [B, heads, T, head_dim]; of one row nothing has to be turned."""
    if T == 1:
        return x.reshape(-1, num_heads, 1, x.shape[1] // num_heads)
    return x.reshape(-1, T, num_heads, x.shape[1] // num_heads).swapaxes(1, 2)


def attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> mx.array:
    """As ``mx.fast.scaled_dot_product_attention`` of scaled queries, in the fewest steps where it is no single one.

    Heads that see the same keys become rows of one product, so the result is [B, key heads, tiles T, head_dim]; a mask
    that comes tiled for them, [..., tiles T, keys], is used as it is, and so is one that is what the product adds.
    """
    B, H, T, D = q.shape
    tiles = H // k.shape[1]
    q, k = q.reshape(B, -1, tiles * T, D), k.swapaxes(2, 3)
    if mask is None:
        return mx.softmax(q @ k, axis=-1) @ v
    if mask.shape[-2] not in (1, tiles * T):
        mask = mx.concatenate([mask] * tiles, axis=-2)
    # compiled, all layers share what is made of the mask, and the product adds it
    unseen = added_mask(mask, q.dtype) if mask.dtype == mx.bool_ else mask
    return mx.softmax(mx.addmm(unseen, q, k), axis=-1) @ v


def added_mask(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    return mx.where(mask, mx.array(0, dtype=dtype), mx.array(-mx.inf, dtype=dtype))


class Linear(nn.Linear):
    """nn.Linear that can keep its matrix as it is multiplied instead of turning it in every call."""

    def __call__(self, x: mx.array) -> mx.array:
        matrix = self["_matrix"] if "_matrix" in self else self.weight.T
        return mx.addmm(self.bias, x, matrix) if "bias" in self else multiply(x, matrix)

    def add_to(self, sum: mx.array, x: mx.array) -> mx.array:
        """sum + self(x) of a layer without bias, x [n, in]; in one step where the matrix is multiplied whole."""
        matrix = self["_matrix"] if "_matrix" in self else self.weight.T
        return sum + multiply(x, matrix) if unpacked_block(len(x), matrix) else mx.addmm(sum, x, matrix)

    def lay_out(self) -> None:
        """Keep the matrix as it is multiplied; weights that are set later are not seen."""
        side_by_side([self])


def added(sum: mx.array, projection: nn.Module, x: mx.array) -> mx.array:
    """sum + projection(x), without a step of its own for the addition where nothing is packed."""
    return projection.add_to(sum, x) if isinstance(projection, Linear) else sum + projection(x)


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up. MLX's exp on the CPU takes 40 ns a number, the C library's power, which MLX calls, 8 to 15."""
    if gate.dtype == mx.float32 and on_cpu():
        return gate * up / (1 + mx.power(1 / math.e, gate))
    return nn.silu(gate) * up


def side_by_side(layers: list[Linear]) -> mx.array:
    """The matrices of some layers in one [in, sum of out], of which their weights become parts. Changes the layers."""
    matrix, begin = as_multiplied(mx.concatenate([layer.weight for layer in layers]).T), 0
    for layer in layers:
        end = begin + layer.weight.shape[0]
        layer._matrix = matrix[:, begin:end]
        layer.weight, begin = layer._matrix.T, end
    return matrix


def as_multiplied(matrices: mx.array) -> mx.array:
    """Matrices [..., in, out], small float32 ones turned round in memory on the CPU.

    In that layout OpenBLAS multiplies a few rows (up to 100^3 products) without packing the matrix anew in every call,
    so 4 rows cost what one does; in the other its limit is 1,200 results (sgemm_small_kernel_permit_skylakex.c,
    0.3.31). CPUs without AVX-512 pack in any case, this layout with less work.
    """
    is_small = matrices.shape[-1] * matrices.shape[-2] <= SMALL_MATRIX
    return mx.contiguous(matrices) if on_cpu() and matrices.dtype == mx.float32 and is_small else matrices


def packed_side_by_side(layers: list[Any]) -> tuple[mx.array, mx.array, mx.array]:
    """Weights, scales and biases of some layers, packed alike, each in one array of which theirs become parts."""
    joined = []
    for name in ("weight", "scales", "biases"):
        whole, begin = mx.concatenate([layer[name] for layer in layers]), 0
        for layer in layers:
            end = begin + layer[name].shape[0]
            layer[name], begin = whole[begin:end], end
        joined.append(whole)
    weight, scales, biases = joined
    return weight, scales, biases


def together(layers: list[Any]) -> Callable[[mx.array], mx.array] | None:
    """What some layers without bias make of the same input, side by side in one product: fewer, larger steps.

    Their weights become parts of one array. None where they are not stored alike.
    """
    if all(isinstance(layer, Linear) for layer in layers):
        matrix = side_by_side(layers)
        return lambda x: multiply(x, matrix)
    kinds = {(getattr(layer, "group_size", 0), getattr(layer, "bits", 0)) for layer in layers}
    if len(kinds) > 1:
        return None
    ((group_size, bits),) = kinds
    parts = packed_side_by_side(layers)
    return lambda x: mx.quantized_matmul(x, *parts, group_size=group_size, bits=bits)


def lay_out(module: nn.Module) -> None:
    """Prepare loaded weights for being used again and again; shapes and values stay. Changes ``module``."""
    for part in sorted(module.modules(), key=lambda part: len(part.children())):  # what holds others comes last
        if hasattr(part, "lay_out"):
            part.lay_out()
            # once, when the model is loaded: a part at a time
            mx.eval([value for _, value in tree_flatten(part) if isinstance(value, mx.array)])


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.scale = config.head_dim, config.head_dim**-0.5
        self.tiles = 0  # of a mask, where ``attend`` is used
        self._qkv: Callable[[mx.array], mx.array] | None = None
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, width, bias=False)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = Linear(width, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, position: tuple[mx.array, mx.array], mask: mx.array | None, cache: LayerCache
    ) -> mx.array:
        """What the heads of x [B T, D] saw [B T, heads x head_dim], before ``o_proj``."""
        rows = x.shape[0]
        q, k, v = self._together(x, position) if self._qkv else self._apart(x, position)
        k, v = cache.update_and_fetch(k, v)
        if self.tiles:
            out = attend(q, k, v, mask)
        else:
            out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask)
        return out.reshape(rows, -1) if q.shape[2] == 1 else out.reshape(q.shape).swapaxes(1, 2).reshape(rows, -1)

    def lay_out(self) -> None:
        """Make queries, keys and values together where that can be."""
        self._qkv = together([self.q_proj, self.k_proj, self.v_proj])
        if self._qkv:
            q_norm = self.q_norm.weight
            if isinstance(self.q_proj, Linear) and self.q_proj.weight.dtype == mx.float32 and on_cpu():
                self.tiles, q_norm = self.num_heads // self.num_kv_heads, q_norm * self.scale
            norms = [q_norm] * self.num_heads + [self.k_norm.weight] * self.num_kv_heads
            self._qk_norm = mx.stack(norms)[:, None]

    def _together(self, x: mx.array, position: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values [B, heads, T, head_dim], normed and turned."""
        assert self._qkv, "laid out"
        num_turned = self.num_heads + self.num_kv_heads
        heads = by_head(self._qkv(x), position[0].shape[2], num_turned + self.num_kv_heads)
        turned, v = mx.split(heads, [num_turned], axis=1)  # a step less than two slices
        turned = rotate(mx.fast.rms_norm(turned, None, self.q_norm.eps) * self._qk_norm, *position)
        q, k = mx.split(turned, [self.num_heads], axis=1)
        return q, k, v

    def _apart(self, x: mx.array, position: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array, mx.array]:
        T = position[0].shape[2]
        q = self.q_norm(by_head(self.q_proj(x), T, self.num_heads))
        k = self.k_norm(by_head(self.k_proj(x), T, self.num_kv_heads))
        v = by_head(self.v_proj(x), T, self.num_kv_heads)
        return rotate(q, *position), rotate(k, *position), v


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=False)
        self._gate_up: Callable[[mx.array], mx.array] | None = None

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(self.inner(x))

    def inner(self, x: mx.array) -> mx.array:
        """Before ``down_proj``."""
        if self._gate_up:
            return swiglu(*mx.split(self._gate_up(x), 2, axis=-1))
        return swiglu(self.gate_proj(x), self.up_proj(x))

    def lay_out(self) -> None:
        """Make gates and what they let through together where that can be."""
        self._gate_up = together([self.gate_proj, self.up_proj])


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, position: tuple[mx.array, mx.array], mask: mx.array | None, cache: LayerCache
    ) -> mx.array:
        """States [B T, D] after the layer, of x [B T, D]: with two axes no product has to change shapes.

        mask: boolean, broadcast to [B, H, T, keys], true where a row may look, or as ``attend`` takes it where that is
        used; None: at all keys.
        """
        x = added(x, self.self_attn.o_proj, self.self_attn(self.input_layernorm(x), position, mask, cache))
        return added(x, self.mlp.down_proj, self.mlp.inner(self.post_attention_layernorm(x)))
