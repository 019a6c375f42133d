"""Keys and values of earlier positions, as plain arrays that go into a compiled call and come out of it.

mlx-lm's KVCache keeps its offset in a Python attribute, which ``mx.compile`` would freeze at trace time. Here the
state that lives between calls is a tuple of arrays; the small classes exist only inside one call, where a layer
asks them to ``update_and_fetch`` as it would ask mlx-lm's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

BLOCK = 256  # capacity grows by this many slots, so a long text recompiles its step a few times, not every frame


class KVCache(NamedTuple):
    """CodeDecoder keys and values: per layer [B, kv_heads, capacity, head_dim]; num_cached: [] int32."""

    keys: list[mx.array]
    values: list[mx.array]
    num_cached: mx.array

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]


class Head(NamedTuple):
    """The first positions of a prompt, read: embeddings [1, n, D], keys and values [layers, kv_heads, n, head_dim]."""

    rows: mx.array
    keys: mx.array
    values: mx.array


class FrameCache(NamedTuple):
    """MultiCodeDecoder keys and values of one frame: per layer [B, kv_heads, slots, head_dim]."""

    keys: list[mx.array]
    values: list[mx.array]


def round_up(num_slots: int) -> int:
    """The smallest whole number of blocks that holds ``num_slots``."""
    return -(-num_slots // BLOCK) * BLOCK


def grow(cache: KVCache, capacity: int) -> KVCache:
    """The same cache with room for ``capacity`` slots; new slots are zeros and masked until written."""
    extra = capacity - cache.capacity

    def pad(x: mx.array) -> mx.array:
        return mx.pad(x, [(0, 0), (0, 0), (0, extra), (0, 0)])

    return KVCache([pad(k) for k in cache.keys], [pad(v) for v in cache.values], cache.num_cached)


def begin_with(heads: Sequence[Head], num_pads: Sequence[int], num_slots: int) -> KVCache:
    """A cache with room for ``num_slots``, filled as far as the heads of all rows go, each behind its padding."""
    known = min(pads + head.rows.shape[1] for head, pads in zip(heads, num_pads))
    capacity = round_up(num_slots)

    def place(part: mx.array, pads: int) -> mx.array:
        pads = min(pads, known)
        return mx.pad(part[:, :, : known - pads], [(0, 0), (0, 0), (pads, capacity - known), (0, 0)])

    keys, values = (
        list(mx.stack([place(part, pads) for part, pads in zip(parts, num_pads)], axis=1))
        for parts in zip(*(head[1:] for head in heads))
    )
    return KVCache(keys, values, mx.array(known, dtype=mx.int32))


class Slots:
    """One layer's fixed-capacity cache during one call: new rows are written from ``start`` on, all slots returned.

    start: [] or [1] for all batch rows alike, or [B]. What is written must fit.
    """

    def __init__(self, keys: mx.array, values: mx.array, start: mx.array):
        self.keys, self.values, self.start = keys, values, start

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys, self.values = (self._write(*pair) for pair in ((self.keys, keys), (self.values, values)))
        return self.keys, self.values

    def _write(self, slots: mx.array, new: mx.array) -> mx.array:
        if self.start.size == 1:
            return mx.slice_update(slots, new, self.start, [2])
        index = self.start[:, None] + mx.arange(new.shape[2])
        return mx.put_along_axis(slots, mx.broadcast_to(index[:, None, :, None], new.shape), new, axis=2)


class Joined:
    """One layer's earlier rows (or none) during one call: new rows are appended.

    new: the rows this call added; rows: all of them, (keys, values) [B, kv_heads, n, head_dim] each.
    """

    def __init__(self, past: tuple[mx.array, mx.array] | None = None):
        self.past = past

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.new = self.rows = (keys, values)
        if self.past is not None:
            earlier_keys, earlier_values = self.past
            keys = mx.concatenate([earlier_keys, keys], axis=2)
            self.rows = (keys, mx.concatenate([earlier_values, values], axis=2))
        return self.rows
