"""Speculation against plain decoding on the built-in voice, over many frames, and in half precision."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_rounds import CHAIN, ROOT, Told, always_right, always_wrong, count_rounds, sometimes_right, uncompiled, walk
from test_tree import grown

from mlx_rvqspec.fit.collect import Frames, collect, noise_of, observe, read_texts
from mlx_rvqspec.load import load_model, resolve
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.sampling import Choice
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree

TEXTS = Path(__file__).parents[1] / "bench" / "texts" / "evaluation.txt"
SIZES = (2, 4, 8, 16, 32, 64)
AT_ONCE = 128
CHOICES = [
    Choice(temperature, top_k, top_p)
    for temperature in (0.0, 0.3, 0.9, 1.2)
    for top_k, top_p in ((1, 1.0), (5, 0.8), (50, 1.0), (50, 0.8), (0, 1.0), (0, 0.8))
    if temperature or top_k == 1
]


@cache
def voice() -> tuple[Qwen3TTS, drafters.Drafter]:
    model = load_model()
    drafter = drafters.find(resolve(None), model.multi_code_decoder, model.fingerprints, None)
    assert drafter
    return model, drafter


@cache
def spoken(num_frames: int) -> Frames:
    return collect(voice()[0], [line.split("\t")[-1] for line in read_texts(TEXTS)], num_frames, seed=11)


def plain_codes(model: Qwen3TTS, frames: Frames, choice: Choice) -> mx.array:
    decoder = model.multi_code_decoder
    rest = decoder.decode_frame(
        frames.hidden, frames.embedded[:, 0], noise_of(model, frames.keys), choice.form, choice.knobs
    )
    return mx.concatenate([frames.codes[:, :1], rest], axis=1)


def check(frames: Frames, num_nodes: int, choice: Choice) -> int:
    """Frames compared: each with the shipped drafter and with ones that are right, wrong and right by chance."""
    model, drafter = voice()
    tree = grown(num_nodes, 5, 6, num_nodes)
    for batch in frames.batches(AT_ONCE):
        codes, noise = plain_codes(model, batch, choice), noise_of(model, batch.keys)
        inputs = batch.hidden, codes[:, 0], batch.embedded[:, 0], noise, choice.knobs
        pair = drafter.trees[num_nodes]
        proposer = drafter.proposer(model.multi_code_decoder, choice.form, *pair)
        rounds = Rounds(model.multi_code_decoder, proposer, *pair, choice.form, wrap=uncompiled)
        np.testing.assert_array_equal(np.array(in_bursts(rounds, *inputs).codes), np.array(codes))
        for kind in (always_right, always_wrong, sometimes_right):
            table, first_tree = kind(codes), (ROOT, tree, CHAIN)[num_nodes % 3]
            rounds = Rounds(model.multi_code_decoder, Told(table), tree, first_tree, choice.form, wrap=uncompiled)
            state = in_bursts(rounds, *inputs)
            np.testing.assert_array_equal(np.array(state.codes), np.array(codes))
            expected = [len(walk(*row, tree, first_tree)) for row in zip(np.array(codes), table)]
            assert count_rounds(rounds, state).tolist() == expected
    return len(frames)


def test_codes_of_the_voice_equal_plain():
    assert check(spoken(60).take(slice(0, 24)), 8, voice()[0].sampling.rest) == 24


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", SIZES)
def test_codes_of_2000_frames_equal_plain(num_nodes: int):
    assert check(spoken(2000), num_nodes, voice()[0].sampling.rest) >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_codes_equal_plain_in_every_setting_of_the_voice(choice: Choice):
    for num_nodes in SIZES:
        assert check(spoken(2000).take(slice(0, 120)), num_nodes, choice) == 120


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_codes_differ_only_between_near_ties(dtype: str):
    """A product of several rows may round otherwise than one row alone; what follows another code is another frame."""
    model, choice = load_model(dtype=dtype), Choice(0.9, 50, 1.0)
    exact = spoken(60)
    plain = plain_codes(model, exact, choice)
    frames = observe(model, exact.hidden.astype(model.dtype), plain, exact.keys)
    plain, noise = plain_codes(model, frames, choice), noise_of(model, frames.keys)
    tree = Tree(((0,), (1,), (0, 0), (0, 0, 0)))
    rounds = Rounds(model.multi_code_decoder, Told(sometimes_right(plain)), tree, tree, choice.form, wrap=uncompiled)
    spec = np.array(in_bursts(rounds, frames.hidden, plain[:, 0], frames.embedded[:, 0], noise, choice.knobs).codes)
    wrong = np.array(plain) != spec
    num_differing = int(wrong.any(axis=1).sum())
    for frame in np.flatnonzero(wrong.any(axis=1)):
        book = int(np.argmax(wrong[frame]))
        states = frames.states[frame, book : book + 1][None]
        scores = model.multi_code_decoder.lm_head(states, mx.array([book - 1]))[0, 0].astype(mx.float32)
        scores = np.array(scores + choice.temperature * noise[frame, book - 1])
        assert abs(scores[int(plain[frame, book])] - scores[spec[frame, book]]) < 0.05, (frame, book)
    print(f"{dtype}: {num_differing} of {len(frames)} frames differ, each first at a near tie")
    assert num_differing < 0.2 * len(frames)
