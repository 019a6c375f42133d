"""Trees from what a drafter got right: joint counts of whole paths, not a product of per-depth rates.

Ranks say where the true code stood among the candidates. From them follow the trees and, exactly, the rounds that
decoding the same frames with a tree will take.
"""

from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..model import Qwen3TTS
from ..multi_code_decoder import books_from
from ..sampling import Choice
from ..spec_decode.rounds import Proposer
from ..spec_decode.tree import Tree
from .collect import Frames, noise_of

NUM_NODES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CHAIN_SAVES = 1.1  # a chain's round costs this much less than that of a tree with branches (``rounds.Rounds``)
MAX_RANK = 64  # more siblings than this in a tree of 64 rows would be a bad drafter
MISS = MAX_RANK

Path = tuple[int, ...]


def ranks_of(model: Qwen3TTS, proposer: Proposer, choice: Choice, frames: Frames, *, drafts_first: bool) -> np.ndarray:
    """[M, 15, K]: rank of codebook slot + depth among the candidates drafted at ``slot``, MISS if not one of them.

    Slot 0 is the draft of a frame's first round. Depths beyond codebook 15 are MISS.
    """
    parts = []
    for batch in frames.batches():
        noise = noise_of(model, batch.keys)
        num_codes = batch.codes.shape[1] - 1
        drafts = []
        for slot in range(1, num_codes):
            here, following = slice(slot, slot + 1), mx.full((len(batch), 1), slot + 1, dtype=mx.int32)
            books = books_from(following, num_codes, noise)
            newest = batch.states[:, here], batch.codes[:, here]
            drafts.append(proposer.propose(*newest, following, books, choice.knobs))
        if drafts_first:
            inputs = mx.stack([batch.hidden, batch.embedded[:, 0]], axis=1)
            books = books_from(mx.ones((len(batch), 1), dtype=mx.int32), num_codes, noise)
            drafts.insert(0, proposer.propose_first(inputs, books, choice.knobs))
        else:
            drafts.insert(0, mx.full(drafts[0].shape, -1))
        candidates = mx.stack(drafts, axis=1)  # [m, 15, K, M]
        depths = mx.arange(1, candidates.shape[2] + 1)
        books = mx.arange(num_codes)[:, None] + depths
        true = batch.codes[:, mx.minimum(books, num_codes)]
        hits = (candidates == true[..., None]) & (books <= num_codes)[..., None]
        found = mx.where(hits.any(axis=-1), mx.argmax(hits, axis=-1), MISS)
        parts.append(np.array(found))  # counting is done on the host
    return np.concatenate(parts)


def count_paths(ranks: np.ndarray) -> Counter[Path]:
    """How often each path of ranks was the true one, over the rows of [..., K]; a prefix counts with its paths."""
    counts: Counter[Path] = Counter()
    rows, times = np.unique(ranks.reshape(-1, ranks.shape[-1]), axis=0, return_counts=True)
    for row, number in zip(rows.tolist(), times.tolist()):
        for depth, rank in enumerate(row, start=1):
            if rank == MISS:
                break
            counts[tuple(row[:depth])] += number
    return counts


def grow(counts: Counter[Path], num_nodes: int) -> tuple[Path, ...]:
    """The ``num_nodes - 1`` most frequent paths. A prefix is never rarer than its paths, so the set is closed."""
    order = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return tuple(order[: num_nodes - 1])


def rounds_of(ranks: np.ndarray, tree: Tree, first_tree: Tree) -> tuple[np.ndarray, np.ndarray]:
    """Rounds each frame takes [M] and which of its codes are drafted right [M, 15], with these trees."""
    num_codes = ranks.shape[1]
    known, first_known = set(tree.paths), set(first_tree.paths)
    rounds, drafted = np.zeros(len(ranks), dtype=np.int64), np.zeros((len(ranks), num_codes), dtype=bool)
    for frame, rows in enumerate(ranks.tolist()):
        slot = 0
        while slot < num_codes:
            paths, path = known if slot else first_known, ()
            for rank in rows[slot]:
                if (*path, rank) not in paths:
                    break
                path = (*path, rank)
            drafted[frame, slot : slot + len(path)] = True
            slot += len(path) + 1
            rounds[frame] += 1
    return rounds, drafted


def codes_per_round(ranks: np.ndarray, tree: Tree, first_tree: Tree) -> float:
    rounds, drafted = rounds_of(ranks, tree, first_tree)
    return float(drafted.size / rounds.sum())


def chain_of(num_nodes: int, num_depths: int) -> Tree:
    """Of at most so many nodes."""
    return Tree(tuple((0,) * depth for depth in range(1, min(num_nodes - 1, num_depths) + 1)))


def grow_trees(ranks: np.ndarray, sizes: Sequence[int] = NUM_NODES) -> dict[int, tuple[Tree, Tree]]:
    """(tree, first tree) by rows per round, each with the counts and the codes per round that speak for it.

    A first tree is one node smaller, as slot 0 is a row of its round; that of two rows is not, or nothing were drafted.
    """
    counts, first_counts = count_paths(ranks[:, 1:]), count_paths(ranks[:, 0])
    trees = {}
    for num_nodes in sizes:
        num_first = max(num_nodes - 1, min(num_nodes, 2))
        grown = Tree(grow(counts, num_nodes)), Tree(grow(first_counts, num_first))
        chain, first_chain = (chain_of(number, ranks.shape[2]) for number in (num_nodes, num_first))
        chains = chain, first_chain if first_counts else Tree(())
        expected, of_chains = (codes_per_round(ranks, *pair) for pair in (grown, chains))
        if chain.num_nodes == num_nodes and of_chains * CHAIN_SAVES > expected:
            grown, expected = chains, of_chains
        about = {"num_frames": len(ranks), "codes_per_round": round(expected, 4)}
        tree, first_tree = (
            Tree(chosen.paths, about | {"counts": [table[path] for path in chosen.paths]})
            for chosen, table in zip(grown, (counts, first_counts))
        )
        trees[tree.num_nodes] = tree, first_tree
    return trees
