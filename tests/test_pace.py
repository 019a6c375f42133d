"""The number of rows that frames are found to be cheapest with, on made-up clocks; and codes that do not follow it."""

import numpy as np
import pytest
from test_rounds_speech import GOLDEN, random_drafter, uncompiled

from mlx_rvqspec.generate import Engine, owner
from mlx_rvqspec.load import load_model
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.spec_decode.drafter import Form
from mlx_rvqspec.spec_decode.pace import ENOUGH, Pace

SIZES = (16, 2, 4, 8, 32)


def run(pace: Pace, costs: dict[int, float], num_frames: int) -> list[int]:
    rng, sizes = np.random.default_rng(0), []
    for _ in range(num_frames):
        sizes.append(pace.pick())
        pace.learn(sizes[-1], costs[sizes[-1]] * rng.uniform(0.8, 1.2))
    return sizes


@pytest.mark.parametrize("cheapest", [2, 8, 32])
def test_the_cheapest_size_is_found_from_anywhere(cheapest: int):
    costs = {size: 1 + 0.2 * abs(np.log2(size / cheapest)) for size in SIZES}
    for start in SIZES:
        pace = Pace(SIZES, start)
        sizes = run(pace, costs, 1000)
        assert pace.best == cheapest, start
        assert sizes[-200:].count(cheapest) > 160, "most frames are spoken at the best size"


def test_it_follows_a_machine_that_changes():
    pace = Pace(SIZES, 8)
    run(pace, {2: 3.0, 4: 2.0, 8: 1.0, 16: 2.0, 32: 3.0}, 300)
    assert pace.best == 8
    run(pace, {2: 1.0, 4: 2.0, 8: 3.0, 16: 4.0, 32: 5.0}, 1000)
    assert pace.best == 2


def test_sizes_of_equal_cost_are_not_exchanged_and_a_slow_first_frame_does_not_count():
    pace = Pace((4, 8), 4)
    assert set(run(pace, {4: 1.0, 8: 1.0}, 600)) == {4, 8} and pace.best == 4
    pace = Pace((4, 8), 4)
    pace.learn(8, 1000.0)  # its calls were compiled
    for size in [4] * (ENOUGH + 1) + [8] * ENOUGH:
        pace.learn(size, 1.0 if size == 4 else 0.5)
    assert pace.best == 8


def test_plain_decoding_is_found_behind_sizes_that_do_not_pay():
    """From 4 rows on the way to 1 leads past 2, which is worse than both."""
    costs = {1: 0.8, 2: 1.5, 4: 1.0, 8: 1.2, 16: 2.0}
    for start in costs:
        pace = Pace(costs, start)
        run(pace, costs, 1500)
        assert pace.best == 1, start


def test_one_size_needs_no_looking():
    assert set(run(Pace((8,), 8), {8: 1.0}, 100)) == {8}


@pytest.mark.parametrize("decode", ["spec", None])
def test_codes_are_plain_whatever_the_size(decode: str | None, monkeypatch: pytest.MonkeyPatch):
    used, sizes = iter([4, 16, 16, 4 if decode else 1] * 20), []
    begin_with = Pace.__init__
    monkeypatch.setattr(Pace, "__init__", lambda self, all, best: sizes.append(all) or begin_with(self, all, best))
    monkeypatch.setattr(Pace, "pick", lambda self: next(used))
    drafter = random_drafter(Form(3, 1, True, 2, 4, 4, "noise"))
    engine = owner().run(lambda: Engine(load_model(GOLDEN), uncompiled, drafter=drafter, num_nodes=4, adapt=True))
    options = {"speaker": "ryan", "seed": 3, "sampling": Sampling(max_frames=9)}
    spec, plain = (engine.speak("Hello there.", decode=way, **options) for way in (decode, "plain"))
    assert (1 in sizes[0]) == (decode is None), "what is asked for is done"
    assert spec.stats.decode == "spec" and plain.stats.decode == "plain"
    np.testing.assert_array_equal(spec.codes, plain.codes)
    accepted = sum(spec.stats.num_accepted)
    assert 0 <= spec.stats.rounds + accepted - 15 * spec.stats.frames <= spec.stats.frames
