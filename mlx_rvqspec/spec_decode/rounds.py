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
from ..multi_code_decoder import Books, MultiCodeDecoder, books_from
from ..sampling import choose
from .tree import Tree

SHORT_CHAIN = 4  # rows that are compared one by one: compiled, that is one step
NO_CODE = -2  # what a chain's last row would have to be followed by: nothing equals it


class Proposer(Protocol):
    """Drafts codes, best first. Called while a round is traced: pure, and no number in it may vary between calls.

    books: of the codes that are drafted; knobs: see ``sampling.Choice``. Drafts of codebooks that do not exist are
    ignored but must be legal codes. Both return candidates [B, K, M] int32 covering the ranks of the tree.
    """

    def propose(self, state: mx.array, newest: mx.array, slot: mx.array, books: Books, knobs: mx.array) -> mx.array:
        """Drafts of codes slot..slot+K-1.

        state: [B, 1, D] of slot ``slot`` - 1, from which the code before was chosen; newest: [B, 1] int32 that code;
        slot: [B, 1] int32.
        """
        ...

    def propose_first(self, inputs: mx.array, books: Books, knobs: mx.array) -> mx.array:
        """Drafts of codes 1..K before the frame has run, from the frame hidden and the embedding of code 0.

        inputs: [B, 2, talker width]. Only called when the first round's tree has drafted nodes.
        """
        ...


class RoundState(NamedTuple):
    """A frame between two rounds, all on the device. Axes of one stay: taking them away is a step of its own."""

    cache: FrameCache  # what stands from ``slot`` on is not looked at
    slot: mx.array  # [B, 1] int32: the root's slot, also how many slots are cached and codes known; 16 when done
    table: mx.array  # [2, B, n] int32: ``codes`` and ``origin``, known before ``slot``; n: see Rounds.capacity
    nodes: mx.array  # [B, N] int32: the root's code and the drafted ones; a chain has NO_CODE behind them
    books: Books  # of the codes from ``slot`` on, one for each depth of the tree

    @property
    def codes(self) -> mx.array:
        """[B, n]; -1 where the logits were not finite."""
        return self.table[0]

    @property
    def origin(self) -> mx.array:
        """[B, n]: the node a code was drafted as, see Rounds.depth; depth 0: the decoder's own."""
        return self.table[1]


class Decoded(NamedTuple):
    """The codes of a frame and their origins, [B, 16] each: see ``RoundState``."""

    codes: mx.array
    origin: mx.array


def named(state: tuple) -> RoundState:
    """The state that goes into or comes out of a compiled call, where tuples lose their names."""
    cache, slot, table, nodes, books = state
    return RoundState(FrameCache(*cache), slot, table, nodes, Books(*books))


class Rows:
    """What a round knows of its tree, on the device."""

    def __init__(self, tree: Tree, first_node: int):
        bounds = np.searchsorted(tree.depth, np.arange(tree.num_depths + 2)).tolist()
        self.spans = list(zip(bounds, bounds[1:]))  # rows of each depth: they share a head and a noise row
        self.tree, self.num_nodes, self.first_node = tree, tree.num_nodes, first_node
        self.most = tree.num_depths + 1  # codes a round commits
        self.depth, self.parent = mx.array(tree.depth), mx.array(tree.parent)
        self.drafted = mx.array(np.arange(self.most, dtype=np.int32) + first_node + 1)  # of a chain, what follows a row
        self.is_ancestor = mx.array(tree.ancestors.T.astype(np.float32))
        self.paths = mx.array(np.pad(tree.path_table, [(0, 0), (0, 1)]))  # a last column: what follows the deepest

    def of_depth(self, values: mx.array) -> mx.array:
        """Each row's of values by depth [B, num_depths + 1, ...]."""
        return values if self.tree.is_chain else mx.take(values, self.depth, axis=1)

    def heads(self, books: Books) -> mx.array:
        """[B, N]"""
        return self.of_depth(books.heads)

    def lay(self, root: mx.array, candidates: mx.array) -> mx.array:
        """Node codes of a root [B, 1] and candidates [B, K, M], as in ``RoundState``."""
        tree, (B, K, M) = self.tree, candidates.shape
        assert K >= tree.num_depths and M >= max(tree.num_candidates, default=0), (
            f"{K} x {M} candidates do not cover the tree"
        )
        drafted = candidates.reshape(B, -1)
        if M == 1 and tree.is_chain:
            drafted = drafted[:, : tree.num_depths]
        else:
            drafted = mx.take(drafted, mx.array((tree.depth[1:] - 1) * M + tree.rank[1:]), axis=1)
        end = [mx.array(np.full((B, 1), NO_CODE, dtype=np.int32))] if tree.is_chain else []
        return mx.concatenate([root, drafted, *end], axis=1)


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
        self.rows, self.first_rows = Rows(tree, first_node), Rows(first_tree, first_node + tree.num_nodes)
        self.depth = np.concatenate([tree.depth, first_tree.depth])
        self.rank = np.concatenate([tree.rank, first_tree.rank])
        self.num_slots, self.num_entries = model.num_codes + 1, model.num_entries
        # slots, and codes: a round writes as many as it may commit, also that of a frame that is done, from slot 16 on
        self.capacity = self.num_slots + max(self.rows.most, self.first_rows.most)
        self.is_origin = mx.array([[[False]], [[True]]])
        turns = mx.concatenate([table[0, 0] for table in model.at_slots(0, self.num_slots)], axis=-1)
        # [17, N, 2 head_dim]: how a round's rows are turned, by the slot of its root
        self.turns_from = turns[self._slots(self.rows, mx.arange(self.num_slots + 1)[:, None])]
        self.first_turns = mx.concatenate([turns[:1], turns[self._slots(self.first_rows, mx.array(1))]])[None, None]
        # [17, N, keys]: what a round's rows see; a chain's are in the cache, those of a tree with branches behind it
        slot, keys = np.arange(self.num_slots + 1)[:, None, None], np.arange(self.capacity)
        if tree.is_chain:
            seen = keys <= slot + tree.depth[:, None]
        else:
            cached, own = (keys < slot).repeat(tree.num_nodes, axis=1), tree.ancestors[None].repeat(len(slot), axis=0)
            seen = np.concatenate([cached, own], axis=2)
        self.seen_from = model.as_mask(seen)
        after_slot_0 = np.pad(first_tree.ancestors, [(1, 0), (1, 0)])
        after_slot_0[:, 0] = True
        self.first_seen = model.as_mask(after_slot_0)
        # a captured graph would be computed again in every call
        mx.eval(self.turns_from, self.first_turns, self.seen_from, self.first_seen, self.is_origin)
        self._first_call, self._next_call = wrap(self._first), wrap(self._next)

    def first(self, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array) -> RoundState:
        """The round that starts a frame: hidden, first as in ``MultiCodeDecoder.prefill``, code0 [B] int32."""
        return named(self._first_call(hidden, code0, first, noise, knobs))

    def next(self, state: RoundState, noise: mx.array, knobs: mx.array) -> RoundState:
        """Any later round."""
        return named(self._next_call(state, noise, knobs))

    def finished(self, state: RoundState) -> Decoded:
        """The frame of a state that is done."""
        return Decoded(*(values[:, : self.num_slots] for values in (state.codes, state.origin)))

    def _first(
        self, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
    ) -> RoundState:
        rows, B = self.first_rows, len(code0)
        slot, code0 = mx.array(np.ones((B, 1), dtype=np.int32)), code0[:, None]
        heads = np.minimum(np.arange(rows.most, dtype=np.uint32), self.num_slots - 2)
        in_order = rows.most < self.num_slots  # a slice is no step
        books = Books(
            mx.array(heads[None].repeat(B, axis=0)),
            noise[:, : rows.most] if in_order else mx.take(noise, mx.array(heads), axis=1),
        )
        inputs, candidates = mx.stack([hidden, first], axis=1), code0[..., None][:, :0]
        x = self.model.project(inputs)
        if rows.num_nodes > 1:
            candidates = self.proposer.propose_first(inputs, books, knobs)
        nodes = rows.lay(code0, candidates)
        if rows.num_nodes > 1:
            drafted = nodes[:, 1 : rows.num_nodes] + self._first_row(rows.heads(books)[:, 1:])
            x = mx.concatenate([x, self.model.feed(drafted)], axis=1)
        caches = [Joined() for _ in self.model.model.layers]
        states = self._run(x, self.first_turns, self.first_seen, caches)
        table = mx.pad(code0[None], [(0, 1), (0, 0), (0, self.capacity - 1)])
        # slot 0 is always kept, and all rows of a chain
        num_kept = min(1 + rows.num_nodes, self.capacity) if rows.tree.is_chain else 1
        room = [(0, 0), (0, 0), (0, self.capacity - num_kept), (0, 0)]
        kept = mx.concatenate([x for cache in caches for x in cache.new], axis=1)[:, :, :num_kept]  # of all layers
        parts = list(mx.split(mx.pad(kept, room), 2 * len(caches), axis=1))
        cache = FrameCache(parts[::2], parts[1::2])
        state = RoundState(cache, slot, table, nodes, books)
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
        rows, slot = self.rows, state.slot
        x = self.model.feed(state.nodes[:, : rows.num_nodes] + self._first_row(rows.heads(state.books)))
        pairs = zip(*state.cache)
        if rows.tree.is_chain:
            start = slot.reshape(-1)
            written = [Slots(*pair, start) for pair in pairs]
            states = self._run(x, self.turns_from[slot], self.seen_from[slot], written)
            cache = FrameCache([cache.keys for cache in written], [cache.values for cache in written])
            return states, state._replace(cache=cache), None
        joined = [Joined(pair) for pair in pairs]
        states = self._run(x, self.turns_from[slot], self.seen_from[slot], joined)
        return states, state, [cache.new for cache in joined]

    def logits(self, rows: Rows, states: mx.array, books: Books) -> mx.array:
        """Logits [B, N, V], each row through its depth's head."""
        if rows.tree.is_chain or self.model.lm_head.is_small:
            return self.model.lm_head(states[:, :, None], rows.heads(books))[:, :, 0]
        parts = [self.model.lm_head(states[:, a:b], books.heads[:, d]) for d, (a, b) in enumerate(rows.spans)]
        return mx.concatenate(parts, axis=1)

    def _slots(self, rows: Rows, slot: mx.array) -> mx.array:
        """Of a round's rows, for slots of its root that broadcast to them; clipped to the last slot."""
        return mx.minimum(slot + rows.depth, self.num_slots - 1)

    def _first_row(self, heads: mx.array) -> mx.array:
        """Where the table begins of the code that is fed where these heads are used: that of the code before."""
        return (heads.astype(mx.int32) - 1) * self.num_entries

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
        logits, row_noise = self.logits(rows, states, state.books), rows.of_depth(state.books.noise)
        targets = choose(logits, row_noise, self.form, knobs)
        last, length = accept(rows, state.nodes, targets, self.num_slots - state.slot)
        newest = mx.take_along_axis(targets, last, axis=1)
        total = logits.astype(mx.float32).sum(axis=-1)
        state = self._commit(rows, state, targets, total, new, last, length)
        books = books_from(state.slot, self.rows.most, noise)
        if self.rows.num_nodes == 1:
            return state._replace(nodes=self.rows.lay(newest, newest[..., None][:, :0]), books=books)
        if len(last) == 1:
            chosen_from = mx.take(states, last.reshape(-1), axis=1)
        else:
            chosen_from = mx.take_along_axis(states, last[..., None], axis=1)
        candidates = self.proposer.propose(chosen_from, newest, state.slot, books, knobs)
        return state._replace(nodes=self.rows.lay(newest, candidates), books=books)

    def _commit(
        self,
        rows: Rows,
        state: RoundState,
        targets: mx.array,
        total: mx.array,
        new: list[tuple[mx.array, mx.array]] | None,
        last: mx.array,
        length: mx.array,
    ) -> RoundState:
        """The root and accepted rows written into the next slots, and their targets into the next codes.

        Row j of the path ran at slot ``slot + j``, and its target is code ``slot + j``, or -1 where total [B, N], the
        sum of its logits, is not finite. What is written behind the newest code is overwritten by the next round.
        """
        cache, slot = state.cache, mx.minimum(state.slot + length, self.num_slots)
        if rows.tree.is_chain:
            wide = (2, *targets.shape)  # from the first on, so that all is one step
            targets, total, last = (mx.broadcast_to(values, wide) for values in (targets, total, last))
            following = mx.where(rows.depth < last, rows.drafted, rows.first_node)
            codes = mx.where(mx.isfinite(total), targets, -1)
        else:
            path = rows.paths[last[:, 0]]
            path, following = path[:, :-1], path[:, 1:] + rows.first_node
            codes = mx.take_along_axis(mx.where(mx.isfinite(total), targets, -1), path, axis=1)
            assert new is not None
            cache = self._keep(cache, new, state.slot, path)
        found = mx.where(self.is_origin, following, codes)
        return state._replace(cache=cache, slot=slot, table=write(state.table, found, state.slot))

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
    """table [2, B, W] with new [2, B, n] in the columns from start [B, 1] on."""
    if table.shape[1] == 1:
        return mx.slice_update(table, new, start.reshape(-1), [2])
    index = start + mx.array(np.arange(new.shape[2], dtype=np.int32))
    return mx.put_along_axis(table, mx.broadcast_to(index, new.shape), new, axis=2)


def accept(rows: Rows, nodes: mx.array, targets: mx.array, num_left: mx.array) -> tuple[mx.array, mx.array]:
    """The end of the longest path whose every node equals its parent's target, and how many rows it has, [B, 1].

    nodes: as in ``RoundState``; targets: [B, N] int32; num_left: [B, 1] codes the frame still lacks. A path gives one
    code per node and the target of its end; what is past the last codebook, and in a chain accepted, does not exist.
    """
    if rows.tree.is_chain:
        if 1 < rows.num_nodes <= SHORT_CHAIN:
            drafted, chosen = mx.split(nodes, rows.num_nodes + 1, axis=1), mx.split(targets, rows.num_nodes, axis=1)
            last = mx.array(0, dtype=mx.int32)
            for depth in reversed(range(1, rows.num_nodes)):
                last = (drafted[depth] == chosen[depth - 1]) * (1 + last)
        else:
            last = mx.argmax(nodes[:, 1:] != targets, axis=1, keepdims=True).view(mx.int32)  # same bits: not a step
        return last, last + 1
    right = (nodes == mx.take(targets, rows.parent, axis=1)) & (rows.depth <= num_left) | (rows.depth == 0)
    num_right = right.astype(mx.float32) @ rows.is_ancestor  # of each node and those above it
    length = mx.where(num_right == rows.depth + 1, rows.depth + 1, 0)
    return mx.argmax(length, axis=1, keepdims=True), mx.max(length, axis=1, keepdims=True)
