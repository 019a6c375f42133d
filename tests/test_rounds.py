"""Speculative rounds against plain decoding, with proposers that are always right, always wrong, and random."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_tree import grown

from mlx_rvqspec.cache import FrameCache, Joined
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.multi_code_decoder import books_from
from mlx_rvqspec.sampling import Choice
from mlx_rvqspec.spec_decode import frames
from mlx_rvqspec.spec_decode.rounds import Decoded, Rounds, RoundState
from mlx_rvqspec.spec_decode.tree import Tree

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = ["tiny_customvoice", "tiny_projected", "tiny_voicedesign", "tiny_base"]
ROOT, CHAIN = Tree(()), Tree(((0,), (0, 0), (0, 0, 0)))
V = 64
NUM_DEPTHS, NUM_CANDIDATES = 5, 6  # of the test trees
FIRST_NODE = 5  # numbers of other trees come before
CHOICES = [
    Choice(0.0, 0, 1.0),
    Choice(0.3, 50, 1.0),
    Choice(0.9, 50, 1.0),
    Choice(0.9, 1, 1.0),
    Choice(0.9, 5, 0.8),
    Choice(1.2, 0, 1.0),
    Choice(1.2, 0, 0.8),
    Choice(1.2, 50, 0.8),
]


@cache
def model(variant: str = "tiny_customvoice") -> Qwen3TTS:
    return load_model(GOLDEN / variant)


def uncompiled(function):
    return function


@dataclass(frozen=True)
class Frames:
    """A batch of frames to decode: random states and codes 0, and what plain decoding makes of them."""

    hidden: mx.array
    code0: mx.array
    first: mx.array
    noise: mx.array
    knobs: mx.array
    codes: mx.array  # [B, 16]

    @property
    def inputs(self) -> tuple[mx.array, ...]:
        return self.hidden, self.code0, self.first, self.noise, self.knobs


@cache
def batch(B: int, choice: Choice, variant: str = "tiny_customvoice", seed: int = 0) -> Frames:
    keys = mx.random.split(mx.random.key(seed), 3)
    decoder = model(variant).code_decoder
    hidden = mx.random.normal((B, decoder._config.hidden_size), key=keys[0])
    code0 = mx.random.randint(0, V, (B,), key=keys[1]).astype(mx.int32)
    first = decoder.embed_codes(code0[:, None])[:, 0]
    noise = mx.random.gumbel((B, 15, V), key=keys[2])
    rest = model(variant).multi_code_decoder.decode_frame(hidden, first, noise, choice.form, choice.knobs)
    return Frames(hidden, code0, first, noise, choice.knobs, mx.concatenate([code0[:, None], rest], axis=1))


class Told:
    """Proposes from a table [B, 16, M] of candidates per codebook, and counts how often it is traced."""

    def __init__(self, table: np.ndarray, num_depths: int = NUM_DEPTHS):
        self.table = mx.array(np.pad(table, [(0, 0), (0, num_depths), (0, 0)]).astype(np.int32))
        self.num_depths, self.num_traces = num_depths, 0

    def propose(self, state, newest, slot, books, knobs):
        self.num_traces += 1
        index = slot + mx.arange(self.num_depths)
        return mx.take_along_axis(self.table, index[..., None], axis=1)

    def propose_first(self, inputs, books, knobs):
        return self.table[:, 1 : 1 + self.num_depths]


def always_right(codes: mx.array) -> np.ndarray:
    """The true code first, other codes after it."""
    return (np.array(codes)[..., None] + np.arange(NUM_CANDIDATES)) % V


def always_wrong(codes: mx.array) -> np.ndarray:
    return (np.array(codes)[..., None] + 1 + np.arange(NUM_CANDIDATES)) % V


def sometimes_right(codes: mx.array, seed: int = 0) -> np.ndarray:
    """The true code at a random rank, often none that is offered."""
    shift = np.random.default_rng(seed).integers(0, 2 * NUM_CANDIDATES, codes.shape)
    return (np.array(codes)[..., None] + np.arange(NUM_CANDIDATES) - shift[..., None]) % V


def all_kinds(codes: mx.array) -> np.ndarray:
    """Each of the three for a third of the batch."""
    kinds = (always_right, always_wrong, sometimes_right)
    return np.concatenate([kind(part) for kind, part in zip(kinds, mx.split(codes, 3))])


def walk(codes: np.ndarray, table: np.ndarray, tree: Tree, first_tree: Tree) -> list[int]:
    """Known codes after each round of one frame: codes [16], table [16, M], by the rule in words."""
    known, marks = 1, []
    while known < 16:
        nodes, path = {(), *(tree if marks else first_tree).paths}, ()
        while known + len(path) < 16:
            ranks = np.flatnonzero(table[known + len(path)] == codes[known + len(path)])
            if not len(ranks) or (*path, int(ranks[0])) not in nodes:
                break
            path = (*path, int(ranks[0]))
        known = min(known + len(path) + 1, 16)
        marks.append(known)
    return marks


def count_rounds(rounds: Rounds, state: Decoded, first_node: int = 0) -> np.ndarray:
    """Rounds of each frame: its codes that are the decoder's own, and a last round clipped at code 15."""
    depth = rounds.depth[np.array(state.origin)[:, 1:] - first_node]
    return (depth == 0).sum(axis=1) + (depth[:, -1] > 0)


def check(frame: Frames, table: np.ndarray, tree: Tree, first_tree: Tree, choice: Choice, variant: str) -> None:
    told = Told(table, max(NUM_DEPTHS, tree.num_depths, first_tree.num_depths))
    decoder = model(variant).multi_code_decoder
    rounds = Rounds(decoder, told, tree, first_tree, choice.form, wrap=uncompiled, first_node=FIRST_NODE)
    state = frames.in_bursts(rounds, *frame.inputs)
    np.testing.assert_array_equal(np.array(state.codes), np.array(frame.codes))
    expected = [len(walk(*row, tree, first_tree)) for row in zip(np.array(frame.codes), table)]
    assert count_rounds(rounds, state, FIRST_NODE).tolist() == expected
    # what was drafted right stood at the rank of its node, and the nodes of the first tree come behind the others
    node = np.array(state.origin)[:, 1:] - FIRST_NODE
    codes, drafted = np.array(frame.codes)[:, 1:], rounds.depth[node] > 0
    at_rank = np.take_along_axis(table[:, 1:], rounds.rank[node][..., None], axis=2)[..., 0]
    assert (at_rank == codes)[drafted].all()
    assert (node[:, 1:] < tree.num_nodes)[rounds.depth[node[:, 1:]] == 1].all()
    assert (node[:, 0] >= tree.num_nodes).all()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("num_nodes", [4, 16])
def test_codes_equal_plain(num_nodes: int, choice: Choice):
    frame, tree = batch(9, choice), grown(num_nodes, NUM_DEPTHS, NUM_CANDIDATES, num_nodes)
    check(frame, all_kinds(frame.codes), tree, tree, choice, "tiny_customvoice")


ODD_CHAIN, DEEP_CHAIN = Tree(((1,), (1, 0))), Tree(tuple((0,) * depth for depth in range(1, 18)))


@pytest.mark.parametrize(
    ("tree", "first_tree"),
    [(9, 4), (4, 12), (ODD_CHAIN, ODD_CHAIN), (12, ODD_CHAIN), (DEEP_CHAIN, DEEP_CHAIN), (ROOT, 7), (CHAIN, 7)],
)
def test_trees_of_a_frame_may_be_of_any_two_kinds(tree: Tree | int, first_tree: Tree | int):
    """A number is a tree with so many nodes and branches. Codes, rounds and which node was right are those in words."""
    frame = batch(9, CHOICES[2])
    pair = [
        grown(kind, NUM_DEPTHS, NUM_CANDIDATES, kind) if isinstance(kind, int) else kind for kind in (tree, first_tree)
    ]
    check(frame, all_kinds(frame.codes), *pair, CHOICES[2], "tiny_customvoice")
    rank_1 = np.roll(always_right(frame.codes), 1, axis=2)
    check(frame, rank_1, *pair, CHOICES[2], "tiny_customvoice")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.9, 1.2])
def test_codes_equal_plain_in_every_setting(temperature: float, variant: str):
    for top_k in (0, 1, 5, 50) if temperature else (0,):
        for top_p in (0.8, 1.0) if temperature else (1.0,):
            choice = Choice(temperature, top_k, top_p)
            frame = batch(24, choice, variant, seed=1)
            for i, num_nodes in enumerate((1, 2, 4, 8, 16, 32, 64)):
                tree = grown(num_nodes, NUM_DEPTHS, NUM_CANDIDATES, num_nodes)
                check(frame, all_kinds(frame.codes), tree, (ROOT, tree, CHAIN)[i % 3], choice, variant)


@pytest.mark.parametrize(
    ("num_depths", "drafts_first", "num_right"),
    [
        (1, False, 8),
        (1, True, 8),
        (2, False, 6),
        (2, True, 5),
        (3, False, 5),
        (3, True, 4),
        (4, True, 3),
        (5, False, 4),
    ],
)
def test_rounds_are_the_number_worked_out_by_hand(num_depths: int, drafts_first: bool, num_right: int):
    """A right chain of depth K commits K + 1 codes a round, the first one 1 without a draft; a wrong one always 1."""
    frame, tree = batch(3, CHOICES[2]), Tree(tuple((0,) * d for d in range(1, num_depths + 1)))
    first_tree = tree if drafts_first else ROOT
    decoder = model().multi_code_decoder
    for kind, expected in ((always_right, num_right), (always_wrong, 15)):
        rounds = Rounds(decoder, Told(kind(frame.codes)), tree, first_tree, CHOICES[2].form, wrap=uncompiled)
        state, num_rounds = rounds.first(*frame.inputs), 1
        while np.array(state.slot).min() < 16:
            state, num_rounds = rounds.next(state, frame.noise, frame.knobs), num_rounds + 1
        state = rounds.finished(state)
        np.testing.assert_array_equal(np.array(state.codes), np.array(frame.codes))
        assert num_rounds == expected and count_rounds(rounds, state).tolist() == [expected] * 3


def test_last_round_is_clipped_wherever_it_starts():
    """Drafts that reach past code 15, from every distance to it, in one batch."""
    frame, tree = batch(16, CHOICES[2]), grown(40, NUM_DEPTHS, 2, 0)
    table = always_right(frame.codes)
    for b in range(15):
        table[b, 1 : 1 + b] = (table[b, 1 : 1 + b, :1] + 1) % V  # nothing right so far
    check(frame, table, tree, ROOT, CHOICES[2], "tiny_customvoice")


def test_drivers_and_compilation_change_nothing():
    """Both drivers, compiled or not, give the same, and no slot or batch content is traced again."""
    choice, tree = CHOICES[4], grown(8, NUM_DEPTHS, NUM_CANDIDATES, 0)
    frame = batch(3, choice)
    states, traces = [], []
    for wrap in (uncompiled, mx.compile):
        proposer = Told(sometimes_right(frame.codes))
        rounds = Rounds(model().multi_code_decoder, proposer, tree, ROOT, choice.form, wrap=wrap)
        states += [drive(rounds, *frame.inputs) for drive in (frames.in_bursts, frames.ahead)]
        traces.append(proposer.num_traces)
    for state in states:
        np.testing.assert_array_equal(np.array(state.codes), np.array(frame.codes))
        np.testing.assert_array_equal(np.array(state.origin), np.array(states[0].origin))
    assert traces[1] == 2  # the first round and any other


@pytest.mark.parametrize(
    ("table", "expected", "num_started"),
    [
        (always_right, {"in_bursts": (4, 1), "ahead": (5, 1)}, 5),
        (always_wrong, {"in_bursts": (14, 7), "ahead": (14, 6)}, 14),
    ],
)
def test_rounds_and_reads_of_the_drivers(
    table: Callable, expected: dict[str, tuple[int, int]], num_started: int, monkeypatch: pytest.MonkeyPatch
):
    """Rounds behind the first that are built, and reads. Ahead builds one while it waits, but starts none in vain.

    A round that gives the last code for certain is left to the caller, without a read.
    """
    frame, built, started, reads = batch(1, CHOICES[2]), [], [], []
    rounds = Rounds(model().multi_code_decoder, Told(table(frame.codes)), CHAIN, ROOT, CHOICES[2].form, wrap=uncompiled)
    next_round, array, start = rounds.next, np.array, mx.async_eval
    monkeypatch.setattr(rounds, "next", lambda *args: built.append(args) or next_round(*args))
    for name, found in expected.items():
        built.clear(), started.clear(), reads.clear()
        with monkeypatch.context() as patch:
            patch.setattr(frames.np, "array", lambda x: reads.append(x) or array(x))
            patch.setattr(frames.mx, "async_eval", lambda x: started.append(x) or start(x))
            getattr(frames, name)(rounds, *frame.inputs)
        assert (len(built), len(reads)) == found
    assert sum(isinstance(state, RoundState) for state in started) == num_started  # with the first
    early = [at for at, what in enumerate(started) if not isinstance(what, RoundState)]
    assert len(early) == len(reads)  # what is read is under way before the drafts of its round
    assert all(started[at] is started[at + 1].slot for at in early)


def plain_caches(frame: Frames, variant: str = "tiny_customvoice") -> FrameCache:
    """Keys and values of slots 0..15 when the whole frame is fed at once."""
    decoder = model(variant).multi_code_decoder
    rest = decoder.embed(frame.codes[:, 1:15], decoder._first_row[:14])
    x = mx.concatenate([frame.hidden[:, None], frame.first[:, None], rest], axis=1)
    caches = [Joined() for _ in decoder.model.layers]
    decoder(x, decoder.at_slots(0, 16), mx.tril(mx.ones((16, 16), dtype=mx.bool_)), caches)
    return FrameCache(*([cache.rows[part] for cache in caches] for part in range(2)))


@pytest.mark.parametrize(("seed", "chain"), [(0, False), (1, False), (2, True)])
def test_caches_equal_plain_after_every_round(seed: int, chain: bool):
    """Random accept lengths, 30 rows at different slots: more than 500 rounds of a row in all."""
    B, choice = 30, CHOICES[6]
    frame, tree = batch(B, choice, seed=seed), CHAIN if chain else grown(24, NUM_DEPTHS, 4, seed)
    table = sometimes_right(frame.codes, seed)
    rounds = Rounds(model().multi_code_decoder, Told(table), tree, tree, choice.form, wrap=uncompiled)
    expected = [np.array(x) for x in plain_caches(frame)]
    marks = [walk(*row, tree, tree) for row in zip(np.array(frame.codes), table)]
    state = rounds.first(*frame.inputs)
    for i in range(max(map(len, marks))):
        slot = np.array(state.slot)[:, 0]
        assert slot.tolist() == [mark[min(i, len(mark) - 1)] for mark in marks]
        for cached, whole in zip(state.cache, expected):
            for b in range(B):
                np.testing.assert_allclose(np.array(cached)[:, b, :, : slot[b]], whole[:, b, :, : slot[b]], atol=1e-5)
        state = rounds.next(state, frame.noise, frame.knobs)
    assert sum(map(len, marks)) > 170


@pytest.mark.parametrize("slot", range(2, 16))
def test_node_logits_equal_the_path_run_alone(slot: int):
    """Every node against one causal pass over slot 0, the known codes and the codes of its own path."""
    decoder, tree, frame = model().multi_code_decoder, grown(20, 3, 4, slot), batch(1, CHOICES[0])
    rounds = Rounds(decoder, Told(always_wrong(frame.codes)), tree, ROOT, CHOICES[0].form, wrap=uncompiled)
    known = mx.arange(16)[:, None] < slot
    room = [(0, 0), (0, 0), (0, rounds.capacity - 16), (0, 0)]
    cache = FrameCache(*([mx.pad(mx.where(known, x, 0), room) for x in part] for part in plain_caches(frame)))
    draws = np.random.default_rng(slot).integers(0, V, tree.num_nodes).astype(np.int32)
    draws[0] = int(np.array(frame.codes)[0, slot - 1])
    slots = mx.array([[slot]])
    books = books_from(slots, rounds.rows.most, frame.noise)
    state = RoundState(cache, slots, mx.stack([frame.codes] * 2), mx.array(draws[None]), books)
    logits = rounds.logits(rounds.rows, rounds.verify(state)[0], books)
    for node in range(tree.num_nodes):
        end = slot + int(tree.depth[node])
        if end > 15:
            continue
        path = tree.path_table[node, : tree.depth[node] + 1]
        known = np.concatenate([np.array(frame.codes)[0, 1 : slot - 1], draws[path]])
        x = decoder.embed(mx.array(known)[None], decoder._first_row[: end - 1])
        x = mx.concatenate([frame.hidden[:, None], frame.first[:, None], x], axis=1)
        mask = mx.tril(mx.ones((end + 1, end + 1), dtype=mx.bool_))
        states = decoder(x, decoder.at_slots(0, end + 1), mask, [Joined() for _ in decoder.model.layers])
        alone = decoder.lm_head(states[:, -1:], decoder._heads[end - 1 : end])
        np.testing.assert_allclose(np.array(logits)[0, node], np.array(alone)[0, 0], atol=1e-5)


def test_codes_of_logits_that_are_not_finite_are_minus_one():
    frame = batch(3, CHOICES[2])
    hidden = mx.where(mx.array([[False], [True], [False]]), mx.nan, frame.hidden)
    rounds = Rounds(
        model().multi_code_decoder, Told(always_right(frame.codes)), CHAIN, CHAIN, CHOICES[2].form, wrap=uncompiled
    )
    for drive in (frames.in_bursts, frames.ahead):
        codes = np.array(drive(rounds, hidden, *frame.inputs[1:]).codes)
        assert (codes[1, 1:] == -1).all()
        np.testing.assert_array_equal(codes[[0, 2]], np.array(frame.codes)[[0, 2]])


def test_candidates_must_cover_the_tree():
    frame = batch(1, CHOICES[0])
    wide = Tree(tuple((rank,) for rank in range(NUM_CANDIDATES + 1)))
    rounds = Rounds(
        model().multi_code_decoder, Told(always_right(frame.codes)), wide, ROOT, CHOICES[0].form, wrap=uncompiled
    )
    with pytest.raises(AssertionError, match="cover"):
        frames.in_bursts(rounds, *frame.inputs)
