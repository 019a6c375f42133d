"""Speculation samples the filtered softmax: frequencies against exact enumeration, on a toy decoder of 8 codes.

Its attention is switched off, so a code depends on the one before it alone and probabilities can be multiplied out.
Drafts are ranked by the very noise that chooses the codes, the case in which a mistake would bend the distribution.
"""

import math
from functools import cache
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map_with_path

from mlx_rvqspec.cache import Joined
from mlx_rvqspec.config import MultiCodeDecoderConfig
from mlx_rvqspec.multi_code_decoder import MultiCodeDecoder
from mlx_rvqspec.sampling import Choice
from mlx_rvqspec.spec_decode.drafter import Drafter, Form
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree

V, NUM_CODES, NUM_FRAMES, BATCH = 8, 15, 200_000, 20_000
TREE = Tree(((0,), (1,), (0, 0)))
CHOICES = [
    Choice(0.9, 0, 1.0),
    Choice(0.3, 3, 1.0),
    Choice(0.9, 3, 0.8),
    Choice(1.2, 0, 0.8),
    Choice(0.9, 1, 1.0),
]


@cache
def toy() -> MultiCodeDecoder:
    config = MultiCodeDecoderConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        vocab_size=V,
        num_code_groups=NUM_CODES + 1,
    )
    mx.random.seed(0)
    decoder = MultiCodeDecoder(config, cast(Any, config))  # only the width of its talker is read

    def draw(name: str, value: mx.array) -> mx.array:
        return mx.zeros_like(value) if "o_proj" in name else mx.random.normal(value.shape) * 0.7

    decoder.update(tree_map_with_path(draw, decoder.parameters()))
    return decoder


def filtered(logits: np.ndarray, choice: Choice) -> np.ndarray:
    """Probabilities [V] after temperature, top-k and top-p in double precision, written from their definitions."""
    order = np.argsort(-logits)
    kept = order[: choice.top_k or V]
    probs = np.exp((logits[kept] - logits.max()) / choice.temperature)
    probs /= probs.sum()
    kept = kept[np.cumsum(probs) - probs < choice.top_p]
    result = np.zeros(V)
    result[kept] = np.exp((logits[kept] - logits.max()) / choice.temperature)
    return result / result.sum()


def transitions(choice: Choice, first: mx.array) -> list[np.ndarray]:
    """For codebooks 1..15, [V, V]: probability of a code (column) after each code of the codebook before (row)."""
    decoder, tables = toy(), []
    for book in range(1, NUM_CODES + 1):
        codes = mx.arange(V)[:, None]
        x = mx.broadcast_to(first, (V, 1, 8)) if book == 1 else decoder.embed(codes, mx.array((book - 2) * V))
        states = decoder(x, decoder.at_slots(0, 1), None, [Joined()])
        logits = decoder.lm_head(states, mx.full((V,), book - 1, dtype=mx.uint32))[:, 0]
        tables.append(np.array([filtered(row, choice) for row in np.array(logits).astype(np.float64)]))
    return tables


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """Of Pearson's chi-square (Wilson and Hilferty 1931); cells too rare for it are taken together."""
    assert not counts[probs == 0].any(), "a code that the filter removes was sampled"
    expected = probs * counts.sum()
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    if expected[-1] < 5:
        counts, expected = counts[:-1], expected[:-1]
    k = len(counts) - 1
    if not k:
        return 1.0
    chi_square = ((counts - expected) ** 2 / expected).sum()
    z = ((chi_square / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def sampled(choice: Choice, first: mx.array, seed: int) -> np.ndarray:
    """NUM_FRAMES frames [_, 15] of one code 0, decoded by speculation."""
    decoder, form = toy(), Form(3, 1, False, 0, 0, 0, "noise")
    drafter = Drafter(form, {"hidden_offset": mx.zeros((1, 3, 8))}, {}, "toy", "", {})
    proposer = drafter.proposer(decoder, choice.form, TREE, Tree(()))
    rounds = Rounds(decoder, proposer, TREE, Tree(()), choice.form, wrap=lambda function: function)
    frames, hidden = [], mx.zeros((BATCH, 8))
    for key in mx.random.split(mx.random.key(seed), NUM_FRAMES // BATCH):
        noise = mx.random.gumbel((BATCH, NUM_CODES, V), key=key)
        code0 = mx.zeros((BATCH,), dtype=mx.int32)
        state = in_bursts(rounds, hidden, code0, mx.broadcast_to(first, (BATCH, 8)), noise, choice.knobs)
        frames.append(np.array(state.codes)[:, 1:])
    # with top_k 1 all frames are one and the same, of whose 16 codes 2 are drafted right
    assert (rounds.depth[np.array(state.origin)] > 0).mean() > 0.1, "hardly anything was speculated"
    return np.concatenate(frames)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_frequencies_are_those_of_the_filtered_softmax(choice: Choice):
    first = mx.random.normal((1, 8), key=mx.random.key(1))
    codes, before = sampled(choice, first, 100 + CHOICES.index(choice)), np.full(V, 1 / V)
    p_values = []
    for book, table in enumerate(transitions(choice, first)):
        single = np.bincount(codes[:, book], minlength=V)
        p_values.append(p_value(single, before @ table))
        if book:
            pairs = np.bincount(V * codes[:, book - 1] + codes[:, book], minlength=V * V)
            p_values.append(p_value(pairs, (before[:, None] * table).ravel()))
        before = before @ table
    # 29 statistics a setting: one of them below 0.001 by chance is no rarity (Bonferroni), and the seeds are fixed
    print(f"{choice}: smallest of {len(p_values)} p-values {min(p_values):.4f}")
    assert len(p_values) * min(p_values) > 0.001


def test_a_bent_distribution_is_noticed():
    """The statistic itself: frequencies of one table against another, and against their own."""
    probs = np.array([0.5, 0.3, 0.2, 0.0])
    counts = np.random.default_rng(0).multinomial(200_000, probs)
    assert p_value(counts, probs) > 0.01
    assert p_value(counts, np.array([0.495, 0.305, 0.2, 0.0])) < 0.001
