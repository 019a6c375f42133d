"""From a model to its drafter: speak, fit, calibrate. What ``mlx-tts fit`` does."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..model import Qwen3TTS
from ..multi_code_decoder import MultiCodeDecoder
from ..quantisation import WORD
from ..spec_decode.drafter import Drafter, Form, OffsetProposer
from .collect import Frames, collect, read_texts
from .grow_tree import MAX_RANK, grow_trees, ranks_of
from .offsets import as_constants, cross_entropy, fit, initial_weights, missed_overlap, offset_drafts

TEXTS = Path(__file__).parent / "texts"
MAX_SHARE = 0.01  # of the MultiCodeDecoder's parameters
NUM_DEPTHS, MEMORY_DEPTHS, MAX_SIZE = 5, 3, 64
DEFAULT_NODES = 4  # rows a round where nobody has measured: the fastest on CPUs (bench/results/frame.json)
OWN_SPEECH = "codes the model spoke itself, decoded plainly"
RECORDED_SPEECH = "codes the model chose in the context of recorded speech, decoded plainly"
CALIBRATION_SEEDS = 1_000_000  # far from the seeds of the fitted texts


def texts_for(path: Path | None) -> tuple[list[str], list[str]]:
    """Texts to fit on and texts to calibrate on: the package's own, or every other line of a file each."""
    if path is None:
        return read_texts(TEXTS / "fit.txt"), read_texts(TEXTS / "calibration.txt")
    texts = read_texts(path)
    if len(texts) < 2:
        raise ValueError(f"{path} has {len(texts)} texts; expected at least two, one a line")
    return texts[0::2], texts[1::2]


def num_parameters(decoder: MultiCodeDecoder) -> int:
    """Numbers of the decoder; those of a packed matrix count one by one."""
    total = 0
    for _, leaf in cast(Any, tree_flatten(decoder.leaf_modules(), is_leaf=nn.Module.is_module)):
        sizes = {name: value.size for name, value in cast(Any, tree_flatten(leaf.parameters()))}
        if "scales" in sizes:
            sizes |= {"weight": sizes["weight"] * WORD // leaf.bits, "scales": 0, "biases": 0}
        total += sum(sizes.values())
    return total


def default_form(decoder: MultiCodeDecoder) -> Form:
    """The widest form of our own method that stays below MAX_SHARE of the decoder."""
    num_depths = min(NUM_DEPTHS, decoder.num_codes - 1)
    form = Form(num_depths, 1, True, min(MEMORY_DEPTHS, num_depths), 1, 1, "noise")
    while True:
        wider = replace(form, memory_size=form.memory_size + 1, first_size=form.first_size + 1)
        if wider.memory_size > MAX_SIZE or size_of(wider, decoder) >= MAX_SHARE * num_parameters(decoder):
            return form
        form = wider


def size_of(form: Form, decoder: MultiCodeDecoder) -> int:
    """Parameters of a drafter for this decoder."""
    return sum(prod(shape) for shape in form.shapes(decoder.width, decoder.input_size).values())


def fit_drafter(
    model: Qwen3TTS,
    frames: Frames,
    form: Form,
    *,
    seed: int,
    num_steps: int,
    progress: Callable[[int, mx.array], None] = lambda step, loss: None,
) -> Drafter:
    """A drafter without trees, fitted on ``frames``."""
    decoder = model.multi_code_decoder
    weights = fit(
        decoder,
        frames,
        initial_weights(form, decoder, mx.random.key(seed)),
        lambda weights, batch: offset_drafts(form, weights, batch),
        model.sampling.rest,
        missed_overlap if form.ranking == "noise" else cross_entropy,
        seed=seed,
        num_steps=num_steps,
        progress=progress,
    )
    return Drafter(form, as_constants(weights), {}, model.config.name, model.fingerprint, {})


def calibrate(model: Qwen3TTS, drafter: Drafter, frames: Frames) -> Drafter:
    """The drafter with trees grown on ``frames``, which it was not fitted on."""
    return replace(drafter, trees=grow_trees(drafter_ranks(model, drafter, frames)))


def drafter_ranks(model: Qwen3TTS, drafter: Drafter, frames: Frames) -> np.ndarray:
    """Ranks of the true codes, see ``grow_tree.ranks_of``, for all depths of a drafter."""
    form, choice = drafter.form, model.sampling.rest
    drafts_first = form.first_size > 0
    num_candidates = min(MAX_RANK, model.multi_code_decoder.num_entries)
    depths = form.num_depths, form.num_depths * drafts_first
    proposer = OffsetProposer(drafter, model.multi_code_decoder, choice.form, *depths, num_candidates)
    return ranks_of(model, proposer, choice, frames, drafts_first=drafts_first)


def make_drafter(
    model: Qwen3TTS,
    texts: tuple[Sequence[Any], Sequence[Any]],
    *,
    gather: Callable[..., Frames] = collect,
    num_frames: int,
    seed: int,
    num_steps: int = 1000,
    form: Form | None = None,
    show: Callable[[str], None] = lambda message: None,
) -> tuple[Drafter, Frames]:
    """A drafter for ``model`` with its trees, and the frames they were grown on: gathered, fitted, calibrated.

    texts: to fit on and to calibrate on; gather: makes frames of them: ``collect``, or ``recordings.listen`` where
    they are recordings; num_frames to fit on, a quarter of it to calibrate on; show is told what
    goes on. Raises AssertionError when the drafter would not be small.
    """
    form = form or default_form(model.multi_code_decoder)
    size, whole = size_of(form, model.multi_code_decoder), num_parameters(model.multi_code_decoder)
    assert size < MAX_SHARE * whole, f"{form} has {size} parameters, the decoder {whole}"
    spoken = []
    for part, number, first_seed in zip(texts, (num_frames, num_frames // 4), (seed, seed + CALIBRATION_SEEDS)):
        show(f"{'speaking' if gather is collect else 'listening to'} {number} frames")
        spoken.append(gather(model, part, number, seed=first_seed))
    fit_frames, calibration_frames = spoken
    drafter = fit_drafter(
        model,
        fit_frames,
        form,
        seed=seed,
        num_steps=num_steps,
        progress=lambda step, loss: show(f"fitted {step} of {num_steps} steps, loss {loss.item():.3f}"),
    )
    show("growing trees")
    drafter = calibrate(model, drafter, calibration_frames)
    facts = {
        # few frames make few paths, and not all sizes of trees; 1 would draft nothing
        "num_nodes": min(drafter.trees, key=lambda size: (size == 1, abs(size - DEFAULT_NODES))),
        "source": OWN_SPEECH if gather is collect else RECORDED_SPEECH,
        "num_texts": [len(part) for part in texts],
        "num_frames": [len(fit_frames), len(calibration_frames)],
        "seed": seed,
        "num_steps": num_steps,
        "sampling": asdict(model.sampling),
        "num_parameters": size,
        "share": size / whole,
        "licence": "as the model it was fitted for",
    }
    return replace(drafter, facts=facts), calibration_frames
