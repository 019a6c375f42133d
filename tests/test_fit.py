"""Fitting: the frames are those of plain decoding, the trees those of the counts, the rounds those of the engine."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import ROOT, TINY

from mlx_rvqspec import cli
from mlx_rvqspec.device_profile import rows_for, write_profile
from mlx_rvqspec.fit import collect, device, grow_tree, offsets, run
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.multi_code_decoder import books_from
from mlx_rvqspec.prompt import build_prompt, embed_prompt
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode.drafter import Drafter, Form
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree
from mlx_rvqspec.utterance import Line, Steps, speak_line

FORM = Form(3, 1, True, 2, 2, 2, "noise")
MISS = grow_tree.MISS


def as_it_is(function):
    return function


@cache
def model() -> Qwen3TTS:
    return load_model(TINY)


@cache
def spoken() -> collect.Frames:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "MAX_TEXT_FRAMES", 8)
        patch.setattr(collect, "FRAMES_PER_TEXT", 4)
        return collect.collect(model(), ["Hello there.", "A", "One two three four."], 60, seed=5)


@cache
def fitted() -> Drafter:
    drafter = run.fit_drafter(model(), spoken(), FORM, seed=0, num_steps=8)
    return run.calibrate(model(), drafter, spoken())


def test_frames_are_those_of_plain_decoding():
    texts, voices = ["Hello there.", "A", "One two three four."], collect.all_voices(model().config)
    frames, steps = spoken(), Steps(model(), model().sampling, as_it_is)
    seeds = np.array(frames.keys[:, 0])
    assert set(seeds.tolist()) == set(range(5, 5 + 15))
    for number in (0, 1, 11):
        voice = voices[number % len(voices)]
        prompt = build_prompt(model().config, model().tokenizer, texts[number % 3], voice, model().text_feed)
        line = Line(*embed_prompt(prompt, model()), 5 + number, 8)
        alone = [frame.codes for frame in speak_line(steps, line, model().sampling)]
        rows = np.flatnonzero(seeds == 5 + number)
        assert np.array(frames.keys[:, 1])[rows].tolist() == list(range(len(alone)))
        assert np.array(frames.codes)[rows].tolist() == np.stack(alone).tolist()


def test_frames_can_be_decoded_again_from_what_is_kept():
    frames, choice = spoken().take(slice(0, 40)), model().sampling.rest
    decoder, noise = model().multi_code_decoder, collect.noise_of(model(), frames.keys)
    codes = decoder.decode_frame(frames.hidden, frames.embedded[:, 0], noise, choice.form, choice.knobs)
    assert mx.array_equal(codes, frames.codes[:, 1:])
    states, _ = decoder.prefill(frames.hidden, frames.embedded[:, 0])
    assert mx.abs(states[:, 0] - frames.states[:, 1]).max() < 1e-5


def test_texts_of_the_three_sets_are_different():
    paths = [run.TEXTS / "fit.txt", run.TEXTS / "calibration.txt", ROOT / "bench" / "texts" / "evaluation.txt"]
    texts = [collect.read_texts(path) for path in paths]
    assert [len(part) for part in texts] == [60, 60, 40]
    assert len(set().union(*texts)) == 160


def test_a_text_file_is_split_in_two(tmp_path: Path):
    path = tmp_path / "texts.txt"
    path.write_text("# head\none\n\ntwo\nthree\n")
    assert run.texts_for(path) == (["one", "three"], ["two"])
    path.write_text("one\n")
    with pytest.raises(ValueError, match="has 1 texts"):
        run.texts_for(path)


def test_fitting_lowers_the_loss():
    losses = []
    decoder, choice = model().multi_code_decoder, model().sampling.rest
    offsets.fit(
        decoder,
        spoken(),
        offsets.initial_weights(FORM, decoder, mx.random.key(0)),
        lambda weights, batch: offsets.offset_drafts(FORM, weights, batch),
        choice,
        offsets.cross_entropy,
        seed=0,
        num_steps=30,
        learning_rate=1e-2,
        progress=lambda step, loss: losses.append(loss.item()),
    )
    assert np.mean(losses[-5:]) < np.mean(losses[:3]) - 0.02


@pytest.mark.parametrize("slot", [0, 4])
def test_drafts_are_those_of_the_proposer_when_its_guesses_are_right(slot: int):
    """Teacher forcing and drafting differ only in whose codes are remembered."""
    drafter, frames = fitted(), spoken().take(slice(0, 2))
    decoder, K, knobs = model().multi_code_decoder, FORM.num_depths, model().sampling.rest.knobs
    heads = decoder.lm_head.weight
    noise = 100.0 * (mx.arange(64) == frames.codes[:, 1:, None])  # makes every true code the guess
    proposer = drafters.OffsetProposer(drafter, decoder, (0, False), K, K, 2)
    found = []
    proposer._best = lambda scores: found.append(scores[:, :, 0] - knobs[0] * noise[:, slot : slot + K])
    here, following = slice(slot, slot + 1), mx.full((2, 1), slot + 1, dtype=mx.int32)
    books = books_from(following, K, noise)
    if slot:
        proposer.propose(frames.states[:, here], frames.codes[:, here], following, books, knobs)
    else:
        proposer.propose_first(mx.stack([frames.hidden, frames.embedded[:, 0]], axis=1), books, knobs)
    drafts = list(offsets.offset_drafts(FORM, dict(drafter.weights), frames))
    for depth in range(1, K + 1):
        book, states = drafts[depth - 1 if slot else K + depth - 1]
        expected = states[:, slot + depth - book] @ heads[slot + depth - 1].T
        assert mx.abs(found[0][:, depth - 1] - expected).max() < 1e-3


def test_a_tree_is_the_most_frequent_paths():
    ranks = np.array([[0, 0], [0, 0], [0, 1], [0, MISS], [1, 0], [MISS, 0], [0, 0]])
    counts = grow_tree.count_paths(ranks)
    assert counts == Counter({(0,): 5, (0, 0): 3, (0, 1): 1, (1,): 1, (1, 0): 1})
    assert grow_tree.grow(counts, 1) == ()
    assert grow_tree.grow(counts, 4) == ((0,), (0, 0), (1,))  # of equal ones the shorter path, then the lower rank
    assert [Tree(grow_tree.grow(counts, n)).num_nodes for n in (2, 3, 5, 9)] == [2, 3, 5, 6]


def test_rounds_are_counted_as_in_words():
    ranks = np.full((2, 15, 2), MISS)
    ranks[0] = 0
    ranks[0, 14, 1:] = MISS  # beyond codebook 15
    chain = Tree(((0,), (0, 0)))
    rounds, drafted = grow_tree.rounds_of(ranks, chain, Tree(()))
    assert rounds.tolist() == [1 + 5, 15]  # code 1, then 14 codes three at a time; nothing drafted right
    assert drafted[0].tolist() == [False, *[True, True, False] * 4, True, True] and not drafted[1].any()
    assert grow_tree.rounds_of(ranks, chain, chain)[0].tolist() == [5, 15]


@pytest.mark.parametrize("num_nodes", [2, 4, 8, 32])
def test_simulated_rounds_are_those_of_the_engine(num_nodes: int):
    drafter, frames, choice = fitted(), spoken().take(slice(0, 20)), model().sampling.rest
    tree, first_tree = drafter.trees[num_nodes]
    expected, _ = grow_tree.rounds_of(run.drafter_ranks(model(), drafter, frames), tree, first_tree)
    proposer = drafter.proposer(model().multi_code_decoder, choice.form, tree, first_tree)
    rounds = Rounds(model().multi_code_decoder, proposer, tree, first_tree, choice.form, wrap=as_it_is)
    noise = collect.noise_of(model(), frames.keys)
    state = in_bursts(rounds, frames.hidden, frames.codes[:, 0], frames.embedded[:, 0], noise, choice.knobs)
    assert mx.array_equal(state.codes, frames.codes)
    depth = rounds.depth[np.array(state.origin)[:, 1:]]
    assert ((depth == 0).sum(axis=1) + (depth[:, -1] > 0)).tolist() == expected.tolist()


def test_trees_carry_their_statistics():
    for num_nodes, (tree, first_tree) in fitted().trees.items():
        assert tree.num_nodes == num_nodes and len(tree.provenance["counts"]) == len(tree.paths)
        assert first_tree.provenance["num_frames"] == len(spoken())
        # slot 0 is a row of the first round, so that has as many rows as any other
        assert first_tree.num_nodes == (num_nodes if num_nodes <= 2 else num_nodes - 1)
    reached = [tree.provenance["codes_per_round"] for tree, _ in fitted().trees.values()]
    assert reached[0] == 1 and reached[-1] > reached[1] > 1


def test_a_device_where_speculation_loses_decodes_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    drafter = replace(fitted(), facts={"num_nodes": 8})
    assert rows_for(drafter, "a") == rows_for(drafter, "b") == 8
    slow = [device.Cost(1, 1.0, 0.010), device.Cost(8, 3.0, 0.031)]
    fast = [device.Cost(1, 1.0, 0.010), device.Cost(4, 2.5, 0.012), device.Cost(8, 3.0, 0.016)]
    for name, costs in (("a", slow), ("b", fast)):
        write_profile(drafter.fingerprint, name, device.profile_of(model(), costs, 1.0, {"1": 1.0}))
    assert rows_for(drafter, "a") == 1 and rows_for(drafter, "b") == 4


def test_every_size_is_measured():
    drafter = fitted()
    drafter = replace(drafter, trees={n: drafter.trees[n] for n in (1, 4)})
    costs = device.measure(model(), drafter, spoken(), as_it_is, num_frames=1, repeats=1)
    assert [cost.num_nodes for cost in costs] == [1, 4] and all(cost.round_s > 0 for cost in costs)
    assert costs[0].codes_per_round == 1 < costs[1].codes_per_round


def test_the_default_form_is_small():
    decoder = model().multi_code_decoder
    form = run.default_form(decoder)
    assert form.memory_size > 0
    assert 0.5 < run.size_of(form, decoder) / (run.MAX_SHARE * run.num_parameters(decoder)) < 1


def test_a_drafter_is_made_from_texts(monkeypatch):
    monkeypatch.setattr(collect, "MAX_TEXT_FRAMES", 3)
    monkeypatch.setattr(collect, "FRAMES_PER_TEXT", 2)
    messages = []
    drafter, frames = run.make_drafter(
        model(), (["Hello."], ["Goodbye."]), num_frames=40, seed=1, num_steps=2, show=messages.append
    )
    assert drafter.fingerprint == model().fingerprint and drafter.facts["num_frames"][0] >= 40
    assert len(frames) == drafter.facts["num_frames"][1]
    assert drafter.facts["share"] < run.MAX_SHARE and set(drafter.trees) >= {1, 2, 4, 8}
    assert messages[0].startswith("speaking") and messages[-1] == "growing trees"


def fit_command(monkeypatch, capsys, *arguments) -> tuple:
    """Exit code, stdout and stderr of mlx-tts fit, made short."""
    monkeypatch.setattr(collect, "MAX_TEXT_FRAMES", 2)
    monkeypatch.setattr(device, "measure", partial(device.measure, num_frames=1, repeats=1))
    monkeypatch.setattr(device, "measure_others", lambda *_: (1.0, {"1": 1.0}))
    monkeypatch.setattr(device, "peak_gb_per_s", lambda: 1.0)
    monkeypatch.setattr("sys.argv", ["mlx-tts", "fit", *map(str, arguments)])
    code = cli.run()
    return code, *capsys.readouterr()


def test_the_command_makes_a_drafter_that_speak_finds(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    code, out, err = fit_command(monkeypatch, capsys, TINY, "--frames", "32", "--steps", "1", "-q")
    path = tmp_path / "mlx-rvqspec" / model().fingerprint / drafters.FILE
    assert (code, out, err) == (0, f"{path}\n", "")
    assert drafters.find(tmp_path, model().multi_code_decoder, model().fingerprints, None)
    path.with_name("rows.json").unlink()
    code, out, err = fit_command(monkeypatch, capsys, TINY, "--keep")
    assert code == 0 and out == "" and "used here" in err and path.with_name("rows.json").is_file()


def test_the_command_says_what_is_wrong_before_it_speaks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = TINY.with_name("tiny_base")
    for arguments, code, message in (
        ((TINY, "-o", "drafter.bin"), 2, "does not end in .safetensors"),
        ((TINY, "--text", tmp_path / "none.txt"), 3, "none.txt does not exist"),
        ((base,), 2, "Base model"),
        ((TINY, "--keep"), 3, "no drafter to keep"),
    ):
        found = fit_command(monkeypatch, capsys, *arguments)
        assert found[0] == code and message in found[2] and found[2].count("\n") == 1
