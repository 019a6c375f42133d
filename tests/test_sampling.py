"""Filters in the official order, and choices that are exact draws from the filtered softmax."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_rvqspec.sampling import (
    Choice,
    Sampling,
    choose,
    first_code_scores,
    frame_limit,
    frame_noise,
    keep_likely,
    sampling_defaults,
)


def draw(logits: np.ndarray, choice: Choice, num_draws: int, seed: int = 0) -> np.ndarray:
    noise = mx.random.gumbel((num_draws, len(logits)), key=mx.random.key(seed))
    rows = mx.broadcast_to(mx.array(logits, dtype=mx.float32), noise.shape)
    return np.array(choose(rows, noise, choice.form, choice.knobs))


def filtered_softmax(logits: np.ndarray, choice: Choice) -> np.ndarray:
    """Temperature, top-k, top-p one after another in float64, straight from their definitions."""
    scores = logits.astype(np.float64) / choice.temperature
    if choice.top_k:
        scores[scores < np.sort(scores)[-min(choice.top_k, len(scores))]] = -np.inf
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    order = np.argsort(probs)[::-1]
    keep = np.cumsum(probs[order]) - probs[order] < choice.top_p
    probs[order[~keep]] = 0
    return probs / probs.sum()


@pytest.mark.parametrize("temperature", [0.3, 0.9, 1.2])
@pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (3, 1.0), (5, 0.8), (0, 0.5)])
def test_draws_follow_the_filtered_softmax(temperature: float, top_k: int, top_p: float) -> None:
    choice = Choice(temperature, top_k, top_p)
    logits = np.array([2.0, 1.5, 1.4, 0.3, -0.2, -1.0, -1.1, -3.0])
    expected = filtered_softmax(logits, choice) * 40_000
    counts = np.bincount(draw(logits, choice, 40_000), minlength=8)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 26  # 7 degrees of freedom at most, p = 0.0005


@pytest.mark.parametrize(
    "choice", [Choice(0.9, 1, 1.0), Choice(0.9, 1, 0.8), Choice(0.9, 50, 1e-9), Choice(1e-4, 50, 1.0)]
)
def test_settings_that_leave_one_code_are_argmax_for_any_seed(choice: Choice) -> None:
    logits = np.random.default_rng(0).normal(size=64)
    for seed in range(5):
        assert set(draw(logits, choice, 50, seed)) == {int(logits.argmax())}


def test_temperature_zero_is_greedy_whatever_the_filters() -> None:
    logits = np.array([0.0, 3.0, 1.0])
    assert Choice(0.0, 2, 0.5).form == (0, False)
    assert set(draw(logits, Choice(0.0, 2, 0.5), 20)) == {1}
    assert Sampling(do_sample=False).first == Sampling(temperature=0).first


def test_top_k_keeps_ties_and_never_everything_goes() -> None:
    kept = keep_likely(mx.array([1.0, 1.0, 0.0, 1.0]), (2, False), Choice(1.0, 2, 1.0).knobs)
    assert np.isfinite(np.array(kept)).tolist() == [True, True, False, True]
    flat = keep_likely(mx.zeros((8,)), (1, True), Choice(1.0, 1, 1e-9).knobs)
    assert np.isfinite(np.array(flat)).sum() >= 1


def test_end_of_speech_is_filtered_like_any_code() -> None:
    """Rank 60 with top_k 50 is never drawn (a known cause of words cut off at the end)."""
    logits = -0.01 * np.arange(100)
    assert (draw(logits, Choice(5.0, 50, 1.0), 200) != 60).all()


def test_penalty_counts_each_code_once_and_spares_the_unseen() -> None:
    logits, seen = mx.array([[2.0, -2.0, 2.0, -2.0]]), mx.array([[True, True, False, False]])
    allowed = mx.array([True, True, True, True])
    scores = first_code_scores(logits, seen, mx.array(5), allowed, 3, mx.array(1.05))
    np.testing.assert_allclose(np.array(scores), [[2 / 1.05, -2 * 1.05, 2.0, -2.0]], rtol=1e-6)


def test_no_end_of_speech_in_the_first_two_frames() -> None:
    logits, nothing = mx.array([[0.0, 9.0]]), mx.zeros((1, 2), dtype=mx.bool_)
    allowed = mx.array([True, True])
    ends = [
        int(np.argmax(first_code_scores(logits, nothing, mx.array(t), allowed, 1, mx.array(1.0)))) for t in range(4)
    ]
    assert ends == [0, 0, 1, 1]


def test_noise_belongs_to_seed_and_frame() -> None:
    def rows(seed: int, frame: int) -> np.ndarray:
        first, rest = frame_noise(mx.array(seed, mx.uint32), mx.array(frame, mx.uint32), 80, (15, 64))
        return np.concatenate([np.array(first), np.array(rest).ravel()])

    assert (rows(7, 3) == rows(7, 3)).all()
    others = [rows(7, 4), rows(8, 3), rows(3, 7), rows(2**32 - 1, 3)]
    assert all(abs(np.corrcoef(rows(7, 3), other)[0, 1]) < 0.15 for other in others)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_k": 2.5}, {"subtalker_top_p": 0}, {"repetition_penalty": 0}, {"max_frames": 0}],
)
def test_settings_outside_their_range_are_named(settings: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Sampling(**settings)


def test_checkpoint_defaults() -> None:
    found = sampling_defaults({"temperature": 0.7, "subtalker_dosample": False, "max_new_tokens": 100, "other": 1})
    assert found == Sampling(temperature=0.7, subtalker_do_sample=False)
    assert (frame_limit({"max_new_tokens": 100}), frame_limit({})) == (99, 2047)
