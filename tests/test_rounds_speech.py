"""Speech by speculation: the codes, frames and errors of plain decoding, and counts that add up."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_tree import grown

from mlx_rvqspec.generate import Engine, Speech, load, owner
from mlx_rvqspec.layers import lay_out
from mlx_rvqspec.load import load_model
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.spec_decode.drafter import Drafter, Form
from mlx_rvqspec.spec_decode.stats import Tally
from mlx_rvqspec.spec_decode.tree import Tree
from mlx_rvqspec.utterance import GenerationError, Steps

GOLDEN = Path(__file__).parent / "golden" / "tiny_customvoice"
SHORT = Sampling(max_frames=7)


def uncompiled(function):
    return function


def random_drafter(form: Form) -> Drafter:
    """Drafts are right by chance: all entries of a codebook stand a chance at temperature 0.9 of random weights."""
    mx.random.seed(2)
    weights = {name: 0.3 * mx.random.normal(shape) for name, shape in form.shapes(64, 64).items()}
    mx.eval(weights)  # streams belong to a thread: the owner cannot finish what another one began
    trees = {}
    for num_nodes in (4, 16):
        tree = grown(num_nodes, form.num_depths, 6, num_nodes)
        trees[num_nodes] = tree, tree if form.first_size else Tree(())
    return Drafter(form, weights, trees, "tiny", "", {"num_nodes": 4})


@cache
def engine(drafts_first: bool = True, num_nodes: int = 16) -> Engine:
    drafter = random_drafter(Form(3, 1, True, 2, 4, 4 if drafts_first else 0, "noise"))
    return owner().run(lambda: Engine(load_model(GOLDEN), uncompiled, drafter=drafter, num_nodes=num_nodes))


def speak(engine: Engine, decode: str | None, seed: int, sampling: Sampling = SHORT) -> Speech:
    return engine.speak("Hello there.", speaker="ryan", seed=seed, decode=decode, sampling=sampling)


@pytest.mark.parametrize("drafts_first", [False, True])
def test_speech_equals_plain(drafts_first: bool):
    spec, plain = (speak(engine(drafts_first), decode, 3) for decode in ("spec", "plain"))
    np.testing.assert_array_equal(spec.codes, plain.codes)
    np.testing.assert_array_equal(spec.audio, plain.audio)
    assert (spec.finish_reason, spec.stats.decode, plain.stats.decode) == (plain.finish_reason, "spec", "plain")


@pytest.mark.parametrize("temperature", [0.1, 1.2])
def test_the_two_decoders_have_their_own_settings(temperature: float):
    """Codebook 0 and the others sampled unlike, which engines that keep one set get wrong."""
    sampling = replace(SHORT, temperature=1.3 - temperature, subtalker_temperature=temperature, subtalker_top_k=5)
    spec, plain = (speak(engine(), decode, 4, sampling) for decode in ("spec", "plain"))
    np.testing.assert_array_equal(spec.codes, plain.codes)


def test_stats_add_up():
    plain, spec = (speak(engine(), decode, 3).stats for decode in ("plain", "spec"))
    assert plain.rounds == 15 * plain.frames and plain.codes_per_round == 1
    assert plain.acceptance == (0,) * 15 and plain.acceptance_by_depth == ()
    assert spec.frames == plain.frames and spec.rounds < plain.rounds
    accepted = sum(map(sum, spec.num_accepted_by_rank))
    assert accepted == sum(spec.num_accepted) > 0
    assert 0 <= spec.rounds + accepted - plain.rounds <= spec.frames  # a clipped last round adds no code of its own
    assert len(spec.acceptance_by_depth) == 3 and all(0 <= share <= 1 for share in spec.acceptance_by_depth)
    for shallower, tried in zip(spec.num_accepted_by_rank, spec.num_tried[1:]):
        assert sum(shallower) - spec.frames <= tried <= sum(shallower)  # all but a frame's last code are tried on


def test_tally_of_a_frame_worked_out_by_hand():
    """Nodes of the tree: 0 root, 1 (0,), 2 (1,), 3 (0, 0); of the first round: 4 root, 5 (0,)."""
    depth, rank = np.array([0, 1, 1, 2, 0, 1]), np.array([0, 0, 1, 0, 0, 0])
    tally = Tally(depth, rank, drafts_first=True, num_codes=15)
    # rounds: [5 4] [1 3 0] [0] [2 0] [1 0] [1 3 0] [2], clipped at code 15
    tally.add(np.array([0, 5, 4, 1, 3, 0, 0, 2, 0, 1, 0, 1, 3, 0, 0, 2]))
    counts = tally.counts()
    assert counts["rounds"] == 8
    assert counts["num_accepted"] == (1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1)
    assert counts["num_tried"] == (8, 5)
    assert counts["num_accepted_by_rank"] == ((4, 2), (2, 0))
    assert tally.take_depths().tolist() == [[0, 1, 0, 1, 2, 0, 0, 1, 0, 1, 0, 1, 2, 0, 0, 1]]


def test_chunks_say_how_deep_each_code_was_drafted():
    options = {"speaker": "ryan", "seed": 3, "sampling": SHORT, "chunk_frames": 3}
    chunks = list(engine().stream("Hello there.", decode="spec", **options))
    assert [chunk.depths.shape for chunk in chunks] == [chunk.codes.shape for chunk in chunks]
    depths, stats = np.concatenate([chunk.depths for chunk in chunks]), chunks[-1].stats
    assert not depths[:, 0].any() and tuple((depths[:, 1:] > 0).sum(axis=0)) == stats.num_accepted
    assert not any(chunk.depths.any() for chunk in engine().stream("Hello there.", decode="plain", **options))


def test_a_frame_is_begun_in_vain_at_most_once(monkeypatch: pytest.MonkeyPatch):
    calls, speculate = [], Steps._speculate
    monkeypatch.setattr(Steps, "_speculate", lambda self, *args: calls.append(1) or speculate(self, *args))
    fresh = owner().run(
        lambda: Engine(
            load_model(GOLDEN), uncompiled, drafter=random_drafter(Form(3, 1, False, 0, 0, 0, "noise")), num_nodes=4
        )
    )
    for max_frames, reason in ((7, "stop"), (1, "length")):
        calls.clear()
        speech = speak(fresh, "spec", 5, Sampling(max_frames=max_frames))
        assert speech.finish_reason == reason and len(calls) == len(speech.codes) + (reason == "stop")


def test_default_is_spec_where_a_drafter_is_and_pays():
    assert speak(engine(), None, 1).stats.decode == "spec" and not engine().why_plain
    slow = engine(True, 1)
    assert speak(slow, None, 1).stats.decode == "plain" and "does not pay" in slow.why_plain
    assert speak(slow, "spec", 1).stats.rounds < 15 * 7


def test_spec_without_a_drafter_says_how_to_get_one():
    plain = load(GOLDEN, drafter="none", compile=False)
    assert speak(plain, None, 1).stats.decode == "plain"
    for text in (plain.why_plain, str(pytest.raises(ValueError, speak, plain, "spec", 1).value)):
        assert "mlx-tts fit" in text
    with pytest.raises(ValueError, match="'fast'.*'spec' or 'plain'"):
        speak(plain, "fast", 1)


def test_values_that_are_not_finite_are_reported():
    def broken() -> Engine:
        model = load_model(GOLDEN)
        head = model.multi_code_decoder.lm_head
        head.weight = mx.where(mx.arange(15)[:, None, None] == 6, mx.nan, head.weight)
        lay_out(model.multi_code_decoder)
        return Engine(model, uncompiled, drafter=random_drafter(Form(3, 1, True, 2, 4, 4, "noise")), num_nodes=16)

    with pytest.raises(GenerationError, match="frame 0"):
        speak(owner().run(broken), "spec", 1)
