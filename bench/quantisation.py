"""What quantisation changes: the codes' distributions against full precision, teacher-forced, and the bytes.

    python bench/quantisation.py [MODEL] [--texts 16] [--seed 0] [--levels 8 6 4 mixed]

The model in its own precision speaks the texts; every level then sees the same codes and the same texts, and its
distributions are compared at temperature 1: divergence KL(full || level) in nats, how often the likeliest code is
the same, and how often the sampler, fed the same noise, draws the same code. Where the model has a drafter, some
frames are decoded again to see whether it still guesses. The last line is JSON.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
import numpy as np
from harness import finish
from mlx.utils import tree_flatten

from mlx_rvqspec.bench.harness import environment
from mlx_rvqspec.fit import collect
from mlx_rvqspec.load import load_model, resolve
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.prompt import Prompt, build_prompt, embed_prompt
from mlx_rvqspec.sampling import choose, first_code_scores, frame_noise
from mlx_rvqspec.spec_decode import drafter as drafters
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.utterance import Line, Steps, speak_line

TEXTS = Path(__file__).parent / "texts" / "evaluation.txt"
MAX_FRAMES = 120  # of a text: what does not end by itself must not outweigh the rest
ROUND_FRAMES, NUM_NODES = 48, 8


@dataclass(frozen=True)
class Spoken:
    """One text as the full model spoke it: what every level is asked about."""

    prompt: Prompt
    seed: int
    codes: mx.array  # [T, 16] int32


@dataclass(frozen=True)
class Seen:
    """What a level makes of one text: hidden [T, W], logits [T, V0] of codebook 0 and [T, 15, V] of the others."""

    hidden: mx.array
    first: mx.array
    rest: mx.array


def speak(model: Qwen3TTS, text: str, voice: Any, seed: int) -> Spoken:
    prompt = build_prompt(model.config, model.tokenizer, text, voice, model.text_feed)
    steps = Steps(model, model.sampling, wrap=lambda function: function)
    line = Line(*embed_prompt(prompt, model), seed, MAX_FRAMES)
    rows = [frame.codes for frame in speak_line(steps, line, model.sampling)]
    return Spoken(prompt, seed, mx.array(np.stack(rows)))


def look(model: Qwen3TTS, spoken: Spoken) -> Seen:
    """The model's own states and logits along the given codes, one pass over all frames."""
    prefill, trailing = embed_prompt(spoken.prompt, model)
    num_frames = len(spoken.codes)
    rows = mx.minimum(mx.arange(num_frames - 1), len(trailing) - 1)
    x = mx.concatenate([prefill, (model.embed_frame(spoken.codes[:-1]) + trailing[rows])[None]], axis=1)
    cache = model.code_decoder.new_cache(1, x.shape[1], x.dtype)
    hidden = model.code_decoder(x, cache, mx.zeros((1,), dtype=mx.int32))[0][0, -num_frames:]
    frames = collect.observe(model, hidden, spoken.codes, mx.zeros((num_frames, 2), dtype=mx.uint32))
    decoder = model.multi_code_decoder
    heads = mx.broadcast_to(mx.arange(decoder.num_codes), (num_frames, decoder.num_codes))
    rest = decoder.lm_head(frames.states[:, 1:, None], heads)[:, :, 0]
    seen = Seen(hidden, model.code_decoder.codec_head(hidden).astype(mx.float32), rest.astype(mx.float32))
    mx.eval(seen.hidden, seen.first, seen.rest)  # one text at a time
    return seen


def allowed(model: Qwen3TTS) -> mx.array:
    ids = model.config.code_decoder
    index = mx.arange(ids.vocab_size)
    return (index < ids.num_codes) | (index == ids.codec_eos_token_id)


def draws(model: Qwen3TTS, spoken: Spoken, seen: Seen) -> tuple[mx.array, mx.array]:
    """The codes [T] and [T, 15] that the sampler draws from these logits with the noise of the run."""
    num_frames, ids, settings = len(spoken.codes), model.config.code_decoder, model.sampling
    shape = (model.multi_code_decoder.num_codes, model.multi_code_decoder.num_entries)
    seed = mx.array(spoken.seed, dtype=mx.uint32)
    noise = [frame_noise(seed, mx.array(t, dtype=mx.uint32), ids.vocab_size, shape) for t in range(num_frames)]
    before = mx.arange(num_frames)[:, None] > mx.arange(num_frames)  # what each frame has heard of codebook 0
    onehot = spoken.codes[:, :1] == mx.arange(ids.vocab_size)
    heard = (before.astype(mx.float32) @ onehot.astype(mx.float32)) > 0
    scores = first_code_scores(
        seen.first,
        heard,
        mx.arange(num_frames)[:, None],
        allowed(model),
        ids.codec_eos_token_id,
        mx.array(settings.repetition_penalty),
    )
    first = choose(scores, mx.stack([row[0] for row in noise]), settings.first.form, settings.first.knobs)
    rest = choose(seen.rest, mx.stack([row[1] for row in noise]), settings.rest.form, settings.rest.knobs)
    return first, rest


def divergence(full: mx.array, level: mx.array) -> mx.array:
    """KL in nats over the last axis."""
    log_p, log_q = (logits - mx.logsumexp(logits, axis=-1, keepdims=True) for logits in (full, level))
    return (mx.exp(log_p) * mx.where(mx.exp(log_p) > 0, log_p - log_q, 0)).sum(axis=-1)


def compare(model: Qwen3TTS, spoken: list[Spoken], full: list[Seen], found: list[Seen]) -> dict[str, Any]:
    mask = allowed(model)
    parts: dict[str, list[mx.array]] = {name: [] for name in ("kl", "likeliest", "drawn")}
    for text, a, b in zip(spoken, full, found):
        pairs = [(mx.where(mask, a.first, -1e9)[:, None], mx.where(mask, b.first, -1e9)[:, None]), (a.rest, b.rest)]
        parts["kl"].append(mx.concatenate([divergence(*pair) for pair in pairs], axis=1))
        same = [mx.argmax(x, axis=-1) == mx.argmax(y, axis=-1) for x, y in pairs]
        parts["likeliest"].append(mx.concatenate(same, axis=1))
        drawn = [draws(model, text, seen) for seen in (a, b)]
        parts["drawn"].append(mx.concatenate([drawn[0][i].reshape(len(a.hidden), -1) == drawn[1][i].reshape(
            len(a.hidden), -1) for i in (0, 1)], axis=1))  # fmt: skip
    by_book = {name: np.array(mx.concatenate(rows)).astype(np.float64).mean(axis=0) for name, rows in parts.items()}
    return {
        "kl_nats": {"code_0": float(by_book["kl"][0]), "codes_1_to_15": float(by_book["kl"][1:].mean())},
        "likeliest_same": {
            "code_0": float(by_book["likeliest"][0]),
            "codes_1_to_15": float(by_book["likeliest"][1:].mean()),
        },
        "drawn_same": {"code_0": float(by_book["drawn"][0]), "codes_1_to_15": float(by_book["drawn"][1:].mean())},
        "kl_nats_by_codebook": by_book["kl"].round(6).tolist(),
    }


def codes_per_round(model: Qwen3TTS, drafter: drafters.Drafter, spoken: list[Spoken], seen: list[Seen]) -> float:
    """Frames of this model decoded in rounds, from its own hidden states."""
    choice, pair = model.sampling.rest, drafter.trees[NUM_NODES]
    proposer = drafter.proposer(model.multi_code_decoder, choice.form, *pair)
    rounds = Rounds(model.multi_code_decoder, proposer, *pair, choice.form, wrap=lambda function: function)
    hidden = mx.concatenate([part.hidden for part in seen])
    codes = mx.concatenate([text.codes for text in spoken])
    step = max(1, len(hidden) // ROUND_FRAMES)
    hidden, code0 = hidden[::step], codes[::step, 0]
    keys = mx.stack([mx.full(code0.shape, 7), mx.arange(len(code0))], axis=1).astype(mx.uint32)
    noise = collect.noise_of(model, keys)
    state = in_bursts(rounds, hidden, code0, model.code_decoder.embed_codes(code0), noise, choice.knobs)
    depth = rounds.depth[np.array(state.origin)[:, 1:]]
    return float(depth.size / ((depth == 0).sum() + (depth[:, -1] > 0).sum()))


def num_bytes(model: Qwen3TTS) -> dict[str, int]:
    """Of the weights in memory, as they are stored where packed."""
    parts = {"code_decoder": model.code_decoder, "multi_code_decoder": model.multi_code_decoder}
    return {name: sum(v.nbytes for _, v in tree_flatten(part.parameters())) for name, part in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or hub id; else the built-in voice")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--levels", nargs="+", default=["8", "6", "4", "mixed"])
    args = parser.parse_args()
    folder = resolve(args.model)
    full = load_model(folder)
    texts, voices = collect.read_texts(TEXTS), collect.all_voices(full.config)
    texts = texts[:: max(1, len(texts) // args.texts)][: args.texts]  # of every kind
    spoken = [speak(full, text, voices[n % len(voices)], args.seed + n) for n, text in enumerate(texts)]
    reference = [look(full, text) for text in spoken]
    drafter = drafters.find(folder, full.multi_code_decoder, full.fingerprints, None)
    levels = {}
    for name in ("full", *args.levels):
        model = full if name == "full" else load_model(folder, quantize=name if name == "mixed" else int(name))
        seen = reference if name == "full" else [look(model, text) for text in spoken]
        levels[name] = compare(full, spoken, reference, seen) | {"bytes": num_bytes(model)}
        if drafter:
            levels[name]["codes_per_round"] = codes_per_round(model, drafter, spoken, seen)
        kl, same = levels[name]["kl_nats"], levels[name]["likeliest_same"]
        print(
            f"{name:6} KL {kl['code_0']:.5f} {kl['codes_1_to_15']:.5f} nats, likeliest code the same "
            f"{100 * same['code_0']:.1f} {100 * same['codes_1_to_15']:.1f} %, {levels[name]['bytes']}",
            file=sys.stderr,
            flush=True,
        )
    finish(
        "quantisation",
        {
            "environment": environment(),
            "model": full.fingerprint,
            "precision": full.precision,
            "seed": args.seed,
            "num_texts": len(texts),
            "num_frames": sum(len(text.codes) for text in spoken),
            "num_nodes": NUM_NODES,
            "levels": levels,
        },
    )


if __name__ == "__main__":
    main()
