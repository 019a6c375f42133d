"""Drafters: the folded proposer against the formula in numpy, and their file."""

import dataclasses
import json
import math
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY

from mlx_rvqspec.bench.harness import primitives
from mlx_rvqspec.config import ModelError
from mlx_rvqspec.device_profile import rows_for
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.multi_code_decoder import books_from
from mlx_rvqspec.sampling import Choice
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode.drafter import Drafter, Form
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree

CHOICE = Choice(0.9, 50, 1.0)
PAPER = Form(3, 1, False, 0, 0, 0, "probability")
OURS = Form(5, 15, True, 3, 4, 4, "noise")
TREE, FIRST = Tree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))), Tree(((0,), (1,), (0, 0)))


@cache
def model() -> Qwen3TTS:
    return load_model(TINY)


def random_drafter(form: Form, seed: int = 0) -> Drafter:
    heads, table = model().multi_code_decoder.lm_head.weight, model().multi_code_decoder.model.codec_embedding.weight
    weights = {}
    for i, (name, shape) in enumerate(form.shapes(heads.shape[2], table.shape[1]).items()):
        weights[name] = 0.5 * mx.random.normal(shape, key=mx.random.key(100 * seed + i))
    trees = {8: (TREE, FIRST if form.first_size else Tree(()))}
    return Drafter(form, weights, trees, "a tiny model", model().fingerprint, {"num_nodes": 8})


def scores_by_formula(form: Form, drafts: np.ndarray, slot: int, noise: np.ndarray) -> list[np.ndarray]:
    """Scores of each depth for one row of draft states [K, D]."""
    heads = np.array(model().multi_code_decoder.lm_head.weight)
    scores = []
    for depth, draft in enumerate(drafts):
        book = min(slot + depth, 14)
        row = heads[book] @ draft
        if form.ranking == "noise":
            least = np.sort(row)[-CHOICE.top_k]
            row = np.where(row >= least, row, -np.inf) + CHOICE.temperature * noise[book]
        scores.append(row)
    return scores


@pytest.mark.parametrize("num_candidates", [1, 4])
@pytest.mark.parametrize("num_depths", [2, 5])
@pytest.mark.parametrize("form", [PAPER, OURS, dataclasses.replace(OURS, ranking="probability", num_positions=1)])
def test_candidates_follow_the_formula(form: Form, num_depths: int, num_candidates: int):
    drafter, rng = random_drafter(form), np.random.default_rng(0)
    decoder, w = model().multi_code_decoder, {name: np.array(value) for name, value in drafter.weights.items()}
    D, W = decoder.lm_head.weight.shape[2], decoder.model.codec_embedding.weight.shape[1]
    state, hidden, first = (rng.normal(size=(3, n)).astype(np.float32) for n in (D, W, W))
    noise, slots = rng.gumbel(size=(3, 15, 64)).astype(np.float32), [1, 6, 13]
    newest, tables = np.array([5, 0, 63], dtype=np.int32), np.array(decoder.model.codec_embedding.weight)
    K = min(num_depths, form.num_depths)  # a tree may be less deep than its drafter
    proposer = drafters.OffsetProposer(drafter, decoder, CHOICE.form, K, K if form.first_size else 0, num_candidates)
    following = mx.array(np.array(slots, dtype=np.int32)[:, None] + 1)
    books = books_from(following, K, mx.array(noise))
    args = [mx.array(x)[:, None] for x in (state, newest)]
    found = np.array(proposer.propose(*args, following, books, CHOICE.knobs))
    assert found.shape == (3, K, num_candidates)
    offsets = np.broadcast_to(w["hidden_offset"], (15, form.num_depths, D))
    for row, slot in enumerate(slots):
        drafts = state[row] * (w["hidden_scale"][:K, None] if form.is_scaled else 1) + offsets[slot - 1, :K]
        embedding = tables[(slot - 1) * 64 + newest[row]]
        for depth in range(min(K, form.memory_depths)):
            drafts[depth] += w["memory_out"] @ (w["memory_in"][depth] @ embedding)
        expected = scores_by_formula(form, drafts, slot, noise[row])
        for depth in range(min(K, 15 - slot)):
            assert found[row, depth].tolist() == np.argsort(-expected[depth])[:num_candidates].tolist()
    if form.first_size:
        books = books_from(mx.ones((3, 1), dtype=mx.int32), K, mx.array(noise))
        inputs = mx.array(np.stack([hidden, first], axis=1))
        found = np.array(proposer.propose_first(inputs, books, CHOICE.knobs))
        for row in range(3):
            inner = w["first_in"] @ np.concatenate([hidden[row], first[row]])
            drafts = w["first_out"] @ (inner / (1 + np.exp(-inner))) + w["first_offset"][:K]
            expected = scores_by_formula(form, drafts, 0, noise[row])
            assert [x.tolist() for x in found[row]] == [np.argsort(-x)[:num_candidates].tolist() for x in expected]


@pytest.mark.parametrize("form", [PAPER, OURS])
def test_frames_are_those_of_plain_decoding(form: Form):
    decoder, drafter = model().multi_code_decoder, random_drafter(form)
    keys = mx.random.split(mx.random.key(1), 2)
    hidden = mx.random.normal((4, 64), key=keys[0])
    code0 = mx.array([0, 1, 2, 63])
    first = model().code_decoder.embed_codes(code0[:, None])[:, 0]
    noise = mx.random.gumbel((4, 15, 64), key=keys[1])
    proposer = drafter.proposer(decoder, CHOICE.form, *drafter.trees[8])
    rounds = Rounds(decoder, proposer, *drafter.trees[8], CHOICE.form, wrap=lambda function: function)
    state = in_bursts(rounds, hidden, code0, first, noise, CHOICE.knobs)
    plain = decoder.decode_frame(hidden, first, noise, CHOICE.form, CHOICE.knobs)
    assert mx.array_equal(state.codes[:, 1:], plain)


@pytest.mark.parametrize("tree", [TREE, Tree(((0,), (0, 0), (0, 0, 0)))])
def test_what_stays_the_same_is_not_computed_in_every_round(tree: Tree):
    """A table that is still a graph when a call is compiled becomes a launch of it."""
    decoder, drafter = model().multi_code_decoder, random_drafter(OURS)
    proposer = drafter.proposer(decoder, CHOICE.form, tree, tree)
    rounds = Rounds(decoder, proposer, tree, tree, CHOICE.form)
    for part in (proposer, rounds, rounds.rows, rounds.first_rows):
        for name, value in vars(part).items():
            assert not isinstance(value, mx.array) or primitives(value) == [], name


def test_a_file_gives_back_the_drafter(tmp_path):
    drafter, path = random_drafter(OURS), tmp_path / "new" / "d.safetensors"
    drafters.save(drafter, path)
    back = drafters.load(path, model().multi_code_decoder, model().fingerprints)
    assert back.form == drafter.form and back.trees == drafter.trees and back.facts == drafter.facts
    assert all(mx.array_equal(back.weights[name], value) for name, value in drafter.weights.items())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def rewritten(path, **changes):
    """The file with some of its facts replaced."""
    weights, texts = mx.load(str(path), return_metadata=True)
    about = json.loads(texts["drafter"]) | changes
    mx.save_safetensors(str(path), dict(weights), metadata={"drafter": json.dumps(about)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "asks for .*mlx-tts fit"),
        (lambda path: path.write_bytes(b"{}"), "truncated or no safetensors .*mlx-tts fit"),
        (lambda path: path.unlink(), "missing .*mlx-tts fit"),
        (lambda path: mx.save_safetensors(str(path), {"x": mx.zeros(1)}), "cannot be read as a drafter"),
        (lambda path: rewritten(path, version=99), "version 99"),
        (lambda path: rewritten(path, fingerprint="f" * 64), "fitted for a tiny model"),
        (lambda path: rewritten(path, form=dataclasses.asdict(PAPER)), "holds the tensors"),
        (lambda path: rewritten(path, form={"num_depths": 3}), "cannot be read as a drafter"),
        (lambda path: rewritten(path, form=dataclasses.asdict(OURS) | {"ranking": "luck"}), "impossible drafter"),
        (lambda path: rewritten(path, trees=[[{"version": 1}, {}]]), "cannot be read as a drafter"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, damage, message):
    path = tmp_path / "d.safetensors"
    drafters.save(random_drafter(OURS), path)
    damage(path)
    with pytest.raises(ModelError, match=message):
        drafters.load(path, model().multi_code_decoder, model().fingerprints)


def test_the_users_own_drafter_comes_before_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    folder, decoder, mark = tmp_path / "model", model().multi_code_decoder, model().fingerprints

    def found(drafter=None):
        result = drafters.find(folder, decoder, mark, drafter)
        return result and result.model_name

    assert found() is None
    for path, name in (
        (folder / drafters.FILE, "shipped"),
        (drafters.cache_folder() / mark[0] / drafters.FILE, "own"),
        (tmp_path / "given.safetensors", "given"),
    ):
        drafters.save(dataclasses.replace(random_drafter(PAPER), model_name=name), path)
        assert found() == ("own" if name == "given" else name)
    assert found(tmp_path / "given.safetensors") == "given" and found("none") is None
    with pytest.raises(ModelError, match="nowhere.safetensors is missing"):
        found("nowhere.safetensors")


def test_rows_are_the_measured_ones_or_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    drafter, device = random_drafter(PAPER), drafters.device_name(str(mx.float32), True)
    assert rows_for(drafter, device) == 8
    path = drafters.rows_file(drafter.fingerprint)
    path.parent.mkdir(parents=True)
    measured = {"gb_per_s": 40.0, "code_0_ms": 8.0, "codes_ms": 15, "round_ms": {}, "sound_ms": {}, "chunk_frames": 4}
    other_trees, too_old = measured | {"num_nodes": 7}, {"num_nodes": 1}
    odd = [measured | {"num_nodes": 1} | change for change in ({"codes_ms": 10**400}, {"gb_per_s": math.nan})]
    odd += [measured | {"num_nodes": number} for number in (1.0, True, 0, None)]
    for text in ("", "[]", *(json.dumps({device: entry}) for entry in (other_trees, too_old, *odd))):
        path.write_text(text)
        assert rows_for(drafter, device) == 8
    drafter = dataclasses.replace(drafter, trees={**drafter.trees, 1: (Tree(()), Tree(()))})
    path.write_text(json.dumps({device: measured | {"num_nodes": 1}}))
    assert rows_for(drafter, device) == 1
    assert rows_for(drafter, drafters.device_name(str(mx.float32), False)) == 8
