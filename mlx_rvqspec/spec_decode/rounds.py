"""One round of exact speculation: verify a tree of drafted codes, accept, commit, draft for the next round.

The root is the newest code, number ``slot - 1``, about to be fed at ``slot``; a node at depth d is a draft of code
``slot - 1 + d`` and its row runs at slot ``slot + d``. A row's target is the decoder's own choice of the code after
it, made with the frame's noise, so a path whose codes equal their parents' targets is what plain decoding gives.

A round is a function of arrays whose shapes never change and is compiled once; batch rows stand at different slots,
and a row that is done commits nothing. Rows past the last slot are clipped onto it and never accepted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from ..cache import FrameCache, Joined, Slots
from ..layers import LayerCache
from ..multi_code_decoder import MultiCodeDecoder
from ..sampling import choose
from .tree import Tree

NO_CODE = -2  # what a chain's last row would have to be followed by: nothing equals it


class Proposer(Protocol):
    """Drafts codes, best first. Called while a round is traced: pure, and no number in it may vary between calls.

    noise: [B, 15, V] the frame's rows; knobs: see ``sampling.Choice``. Drafts of codebooks that do not exist are
    ignored but must be legal codes. Both return candidates [B, K, M] int32 covering the ranks of the tree.
    """

    def propose(self, state: mx.array, newest: mx.array, slot: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """Drafts of codes slot+1..slot+K.

        state: [B, 1, D] of slot ``slot``, from which code ``slot`` was chosen; newest: [B, 1] int32 that code; slot:
        [B, 1] int32.
        """
        ...

    def propose_first(self, hidden: mx.array, first: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """Drafts of codes 1..K before the frame has run: hidden, first as in ``MultiCodeDecoder.prefill``.

        Only called when the first round's tree has drafted nodes.
        """
        ...


class RoundState(NamedTuple):
    """A frame between two rounds, all on the device. Axes of one stay: taking them away is a step of its own."""

    cache: FrameCache  # what stands from ``slot`` on is not looked at
    slot: mx.array  # [B, 1] int32: the root's slot, also how many slots are cached and codes known; 16 when done
    codes: mx.array  # [B, 16 + N] int32, known before ``slot``; -1 where the logits were not finite
    origin: mx.array  # [B, 16 + N] int32: the node a code was drafted as, see Rounds.depth; depth 0: the decoder's own
    nodes: mx.array  # [B, N] int32: the root's code and the drafted ones; a chain has NO_CODE behind them


def named(state: tuple) -> RoundState:
    """The state that goes into or comes out of a compiled call, where tuples lose their names."""
    cache, *rest = state
    return RoundState(FrameCache(*cache), *rest)


class Rows:
    """What a round knows of its tree, on the device."""

    def __init__(self, tree: Tree, first_node: int, tiles: int):
        """tiles: see ``MultiCodeDecoder.tiles``."""
        bounds = np.searchsorted(tree.depth, np.arange(tree.num_depths + 2)).tolist()
        self.spans = list(zip(bounds, bounds[1:]))  # rows of each depth: they share a head and a noise row
        self.tree, self.num_nodes, self.first_node = tree, tree.num_nodes, first_node
        self.most = tree.num_depths + 1  # codes a round commits
        self.depth, self.parent = mx.array(tree.depth), mx.array(tree.parent)
        self.row_depth = mx.array(tree.depth.astype(np.uint32))  # of what becomes an index
        self.drafted = mx.array(np.arange(self.most, dtype=np.int32) + first_node + 1)  # of a chain, what follows a row
        self.ancestors = mx.array(tree.ancestors)
        self.tiled_depth = mx.array(np.tile(tree.depth, tiles)[:, None])
        self.tiled_ancestors = mx.array(np.tile(tree.ancestors, (tiles, 1)))
        after_slot_0 = np.pad(tree.ancestors, [(1, 0), (1, 0)]) | (np.arange(tree.num_nodes + 1) == 0)
        self.after_slot_0 = mx.array(np.tile(after_slot_0, (tiles, 1)))
        self.paths = mx.array(np.pad(tree.path_table, [(0, 0), (0, 1)]))  # a last column: what follows the deepest

    def lay(self, root: mx.array, candidates: mx.array) -> mx.array:
        """Node codes of a root [B, 1] and candidates [B, K, M], as in ``RoundState``."""
        tree, (B, K, M) = self.tree, candidates.shape
        assert K >= tree.num_depths and M >= max(tree.num_candidates, default=0), (
            f"{K} x {M} candidates do not cover the tree"
        )
        if tree.is_chain:
            end = mx.array(np.full((B, 1), NO_CODE, dtype=np.int32))
            best = candidates.reshape(B, K) if M == 1 else candidates[:, :, 0]
            return mx.concatenate([root, best[:, : tree.num_depths], end], axis=1)
        index = mx.array((tree.depth[1:] - 1) * M + tree.rank[1:])
        drafted = mx.take(candidates.reshape(B, -1), index, axis=1)
        return mx.concatenate([root, drafted], axis=1)


class Rounds:
    """The first and the following rounds of a frame for one model, proposer, pair of trees and form of sampling.

    A tree with branches keeps its rows' keys beside the cache until it is known which are right. A chain writes them
    into the cache at once: wrong ones stand behind the newest slot and are overwritten by the next round.
    first_tree: of the first round, which also feeds slot 0; ``Tree(())`` where nothing is drafted that early.
    depth, rank: tables for ``RoundState.origin``, tree nodes first, then first_tree's; numbers begin at first_node.
    wrap: ``mx.compile``, or the identity for the oracle.
    """

    def __init__(
        self,
        model: MultiCodeDecoder,
        proposer: Proposer,
        tree: Tree,
        first_tree: Tree,
        form: tuple[int, bool],
        *,
        wrap: Callable[[Callable], Callable] = mx.compile,
        first_node: int = 0,
    ) -> None:
        self.model, self.proposer, self.form = model, proposer, form
        self.rows = Rows(tree, first_node, model.tiles)
        self.first_rows = Rows(first_tree, first_node + tree.num_nodes, model.tiles)
        self.depth = np.concatenate([tree.depth, first_tree.depth])
        self.rank = np.concatenate([tree.rank, first_tree.rank])
        self.num_slots, self.num_entries = model.num_codes + 1, model.num_entries
        # slots, and codes: a round writes as many as it may commit, also that of a frame that is done, from slot 16 on
        self.capacity = self.num_slots + max(self.rows.most, self.first_rows.most)
        self.slots = mx.arange(self.capacity)
        self.turns = mx.concatenate([table[0, 0] for table in model.at_slots(0, self.num_slots)], axis=-1)
        # [17, N, 2 head_dim]: how a round's rows are turned, by the slot of its root
        self.turns_from = self.turns[self._slots(self.rows, mx.arange(self.num_slots + 1)[:, None])]
        mx.eval(self.turns, self.turns_from, self.slots)  # a captured graph would be computed again in every call
        self._first_call, self._next_call = wrap(self._first), wrap(self._next)

    def first(self, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array) -> RoundState:
        """The round that starts a frame: hidden, first as in ``MultiCodeDecoder.prefill``, code0 [B] int32."""
        return named(self._first_call(hidden, code0, first, noise, knobs))

    def next(self, state: RoundState, noise: mx.array, knobs: mx.array) -> RoundState:
        """Any later round."""
        return named(self._next_call(state, noise, knobs))

    def finished(self, state: RoundState) -> RoundState:
        """With the codes and origins [B, 16] of the frame alone."""
        return state._replace(codes=state.codes[:, : self.num_slots], origin=state.origin[:, : self.num_slots])

    def _first(
        self, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
    ) -> RoundState:
        rows = self.first_rows
        slot, code0 = mx.array(np.ones((len(code0), 1), dtype=np.int32)), code0[:, None]
        x, candidates = self.model.project(mx.stack([hidden, first], axis=1)), code0[..., None][:, :0]
        if rows.num_nodes > 1:
            candidates = self.proposer.propose_first(hidden, first, noise, knobs)
        nodes = rows.lay(code0, candidates)
        if rows.num_nodes > 1:
            drafted = nodes[:, 1 : rows.num_nodes] + self._first_row(slot + rows.depth[1:])
            x = mx.concatenate([x, self.model.feed(drafted)], axis=1)
        slots = np.minimum(np.append(0, 1 + rows.tree.depth), self.num_slots - 1)
        caches = [Joined() for _ in self.model.model.layers]
        states = self._run(x, self.turns[mx.array(slots)][None, None], rows.after_slot_0, caches)
        codes = mx.pad(code0, [(0, 0), (0, self.capacity - 1)])
        # slot 0 is always kept, and all rows of a chain
        num_kept = min(1 + rows.num_nodes, self.capacity) if rows.tree.is_chain else 1
        room = [(0, 0), (0, 0), (0, self.capacity - num_kept), (0, 0)]
        kept = mx.concatenate([x for cache in caches for x in cache.new], axis=1)[:, :, :num_kept]  # of all layers
        parts = list(mx.split(mx.pad(kept, room), 2 * len(caches), axis=1))
        cache = FrameCache(parts[::2], parts[1::2])
        state = RoundState(cache, slot, codes, mx.zeros_like(codes), nodes)
        new = None if rows.tree.is_chain else [(k[:, :, 1:], v[:, :, 1:]) for k, v in (cache.new for cache in caches)]
        return self._settle(rows, state, states[:, 1:], new, noise, knobs)

    def _next(self, state: RoundState, noise: mx.array, knobs: mx.array) -> RoundState:
        state = named(state)
        states, state, new = self.verify(state)
        return self._settle(self.rows, state, states, new, noise, knobs)

    def verify(self, state: RoundState) -> tuple[mx.array, RoundState, list[tuple[mx.array, mx.array]] | None]:
        """States [B, N, D] of all tree rows in one pass; a chain's rows are in the cache then, others' are returned.

        A row sees the cached slots, itself and its ancestors, and is rotated by its slot, not by its row number.
        """
        rows, slot, B, N = self.rows, state.slot, len(state.slot), self.rows.num_nodes
        x = self.model.feed(state.nodes[:, :N] + self._first_row(slot + rows.depth))
        pairs = zip(*state.cache)
        if rows.tree.is_chain:
            seen = self.slots <= slot[..., None, None] + rows.tiled_depth
            start = slot.reshape(-1)
            written = [Slots(*pair, start) for pair in pairs]
            states = self._run(x, self.turns_from[slot], seen, written)
            cache = FrameCache([cache.keys for cache in written], [cache.values for cache in written])
            return states, state._replace(cache=cache), None
        tiled = len(rows.tiled_ancestors)
        cached = mx.broadcast_to((self.slots < slot)[:, None], (B, tiled, self.capacity))
        seen = mx.concatenate([cached, mx.broadcast_to(rows.tiled_ancestors, (B, tiled, N))], axis=2)
        joined = [Joined(pair) for pair in pairs]
        states = self._run(x, self.turns_from[slot], seen[:, None], joined)
        return states, state, [cache.new for cache in joined]

    def logits(self, rows: Rows, states: mx.array, slot: mx.array) -> tuple[mx.array, mx.array]:
        """Logits [B, N, V], each row through its depth's head, and these heads [B, N]."""
        heads = mx.minimum(slot.astype(mx.uint32) + rows.row_depth, self.num_slots - 1) - 1
        if rows.tree.is_chain or self.model.lm_head.is_small:
            return self.model.lm_head(states[:, :, None], heads)[:, :, 0], heads
        parts = [self.model.lm_head(states[:, a:b], heads[:, a]) for a, b in rows.spans]
        return mx.concatenate(parts, axis=1), heads

    def _slots(self, rows: Rows, slot: mx.array) -> mx.array:
        """[B, N], clipped to the last slot."""
        return mx.minimum(slot + rows.depth, self.num_slots - 1)

    def _first_row(self, slots: mx.array) -> mx.array:
        """Where the table of the code that is fed at a slot begins."""
        return (mx.minimum(slots, self.num_slots - 1) - 2) * self.num_entries

    def _run(self, x: mx.array, turns: mx.array, seen: mx.array, caches: Sequence[LayerCache]) -> mx.array:
        cos, sin = mx.split(turns, 2, axis=-1)
        return self.model.run(x, (cos, sin), seen, caches)

    def _settle(
        self,
        rows: Rows,
        state: RoundState,
        states: mx.array,
        new: list[tuple[mx.array, mx.array]] | None,
        noise: mx.array,
        knobs: mx.array,
    ) -> RoundState:
        """Accept, commit and draft once the tree rows have run: states [B, N, D]; new: see ``verify``."""
        logits, heads = self.logits(rows, states, state.slot)
        row_noise = mx.take_along_axis(noise, heads[..., None], axis=1)
        targets = choose(logits, row_noise, self.form, knobs)
        # no node has code -1: what is not finite ends the path and is committed as -1, as in plain decoding
        targets = mx.where(mx.isfinite(logits.astype(mx.float32).sum(axis=-1)), targets, -1)
        last, length = accept(rows, state.nodes, targets, self.num_slots - state.slot)
        state = self._commit(rows, state, targets, new, last, length)
        newest = mx.take_along_axis(targets, last, axis=1)
        if self.rows.num_nodes == 1:
            return state._replace(nodes=self.rows.lay(newest, newest[..., None][:, :0]))
        if len(last) == 1:
            chosen_from = mx.take(states, last.reshape(-1), axis=1)
        else:
            chosen_from = mx.take_along_axis(states, last[..., None], axis=1)
        candidates = self.proposer.propose(chosen_from, newest, state.slot - 1, noise, knobs)
        return state._replace(nodes=self.rows.lay(newest, candidates))

    def _commit(
        self,
        rows: Rows,
        state: RoundState,
        targets: mx.array,
        new: list[tuple[mx.array, mx.array]] | None,
        last: mx.array,
        length: mx.array,
    ) -> RoundState:
        """The root and accepted rows written into the next slots, and their targets into the next codes.

        Row j of the path ran at slot ``slot + j``, and its target is code ``slot + j``. What is written behind the
        newest code is overwritten by the next round.
        """
        cache = state.cache
        if rows.tree.is_chain:
            following = mx.where(rows.row_depth < last, rows.drafted, rows.first_node)
        else:
            path = rows.paths[last[:, 0]]
            path, following = path[:, :-1], path[:, 1:] + rows.first_node
            targets = mx.take_along_axis(targets, path, axis=1)
            assert new is not None
            cache = self._keep(cache, new, state.slot, path)
        return RoundState(
            cache=cache,
            slot=mx.minimum(state.slot + length, self.num_slots),
            codes=write(state.codes, targets, state.slot),
            origin=write(state.origin, following, state.slot),
            nodes=state.nodes,
        )

    def _keep(
        self, cache: FrameCache, new: list[tuple[mx.array, mx.array]], slot: mx.array, path: mx.array
    ) -> FrameCache:
        """The cache with the keys and values of the rows of a path [B, n] from ``slot`` on; all layers at once."""
        added = mx.concatenate([x for pair in new for x in pair], axis=1)
        if len(path) == 1:
            added = mx.take(added, path[0], axis=2)
        else:
            added = mx.take_along_axis(added, path[:, None, :, None], axis=2)
        parts = mx.split(added, 2 * len(new), axis=1)
        written = [Slots(*pair, slot.reshape(-1)) for pair in zip(*cache)]
        for slots, keys, values in zip(written, parts[::2], parts[1::2]):
            slots.update_and_fetch(keys, values)
        return FrameCache([slots.keys for slots in written], [slots.values for slots in written])


def write(table: mx.array, new: mx.array, start: mx.array) -> mx.array:
    """table [B, W] with new [B, n] in the columns from start [B, 1] on."""
    if len(table) == 1:
        return mx.slice_update(table, new, start.reshape(-1), [1])
    return mx.put_along_axis(table, start + mx.array(np.arange(new.shape[1], dtype=np.int32)), new, axis=1)


def accept(rows: Rows, nodes: mx.array, targets: mx.array, num_left: mx.array) -> tuple[mx.array, mx.array]:
    """The end of the longest path whose every node equals its parent's target, and how many rows it has, [B, 1].

    nodes: as in ``RoundState``; targets: [B, N] int32; num_left: [B, 1] codes the frame still lacks. A path gives one
    code per node and the target of its end; what is past the last codebook, and in a chain accepted, does not exist.
    """
    if rows.tree.is_chain:
        last = mx.argmax(nodes[:, 1:] != targets, axis=1, keepdims=True)
        return last, last.astype(mx.int32) + 1
    right = (nodes == mx.take(targets, rows.parent, axis=1)) & (rows.depth <= num_left) | (rows.depth == 0)
    whole = (right[:, None] | ~rows.ancestors).all(axis=-1)
    length = mx.where(whole, rows.depth + 1, 0)
    return mx.argmax(length, axis=1, keepdims=True), mx.max(length, axis=1, keepdims=True)
