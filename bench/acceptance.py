"""Codes per round: the paper's drafter, Medusa heads and ours, fitted and measured on the same frames of one model.

    python bench/acceptance.py [MODEL] [--fit-frames 6000] [--frames 1200] [--seed 0]

Drafters are fitted on frames of mlx_rvqspec/fit/texts/fit.txt, trees grown on those of calibration.txt, and all is
measured on those of bench/texts/evaluation.txt, four kinds of text and every speaker. Rounds follow from the ranks
of the true codes; the real engine decodes some of the frames again to confirm them. The last line is JSON.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from harness import finish
from plot import save_lines

from mlx_rvqspec.bench.harness import environment
from mlx_rvqspec.fit import collect, grow_tree, offsets, run
from mlx_rvqspec.load import load_model
from mlx_rvqspec.model import Qwen3TTS
from mlx_rvqspec.multi_code_decoder import Books
from mlx_rvqspec.sampling import keep_likely
from mlx_rvqspec.spec_decode.drafter import Drafter, Form, OffsetProposer
from mlx_rvqspec.spec_decode.frames import in_bursts
from mlx_rvqspec.spec_decode.rounds import Rounds
from mlx_rvqspec.spec_decode.tree import Tree

TEXTS = Path(__file__).parent / "texts" / "evaluation.txt"
NUM_DEPTHS = 3  # the paper's
CONFIRMED, CONFIRMED_FRAMES = (4, 8, 32), 64
PAPER = Form(NUM_DEPTHS, 1, False, 0, 0, 0, "probability")


def read_kinds(path: Path) -> dict[str, list[str]]:
    """The texts of a file by the kind that a line such as "# news" gives to those below it."""
    kinds: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and len(line.split()) == 2:
            texts = kinds.setdefault(line.split()[1], [])
        elif line and not line.startswith("#"):
            texts.append(line)
    return kinds


class MedusaProposer(OffsetProposer):
    """One residual block per depth in front of the frozen heads (Medusa-1); weights: [K, D, D] and [K, D]."""

    def __init__(self, weights: offsets.Weights, model: Qwen3TTS, ranking: str) -> None:
        form = replace(PAPER, ranking=ranking)
        blank = offsets.initial_weights(form, model.multi_code_decoder, mx.random.key(0))
        drafter = Drafter(form, blank, {}, "", "", {})
        candidates = min(grow_tree.MAX_RANK, model.multi_code_decoder.num_entries)
        super().__init__(drafter, model.multi_code_decoder, model.sampling.rest.form, NUM_DEPTHS, 0, candidates)
        self.blocks = weights

    def propose(self, state: mx.array, newest: mx.array, slot: mx.array, books: Books, knobs: mx.array) -> mx.array:
        inner = mx.einsum("bd,ked->bke", state[:, 0], self.blocks["linear"]) + self.blocks["bias"]
        return self._candidates(state + nn.silu(inner), books, knobs)


def medusa_drafts(weights: offsets.Weights, frames: collect.Frames) -> Iterator[tuple[int, mx.array]]:
    num_codes = frames.codes.shape[1] - 1
    for depth in range(1, NUM_DEPTHS + 1):
        states = frames.states[:, 1 : num_codes - depth + 1]
        inner = states @ weights["linear"][depth - 1].T + weights["bias"][depth - 1]
        yield 1 + depth, states + nn.silu(inner)


def fit_medusa(model: Qwen3TTS, frames: collect.Frames, seed: int, num_steps: int) -> offsets.Weights:
    D = model.multi_code_decoder.width
    weights = {"linear": mx.zeros((NUM_DEPTHS, D, D)), "bias": mx.zeros((NUM_DEPTHS, D))}
    return offsets.fit(
        model.multi_code_decoder,
        frames,
        weights,
        medusa_drafts,
        model.sampling.rest,
        offsets.cross_entropy,
        seed=seed,
        num_steps=num_steps,
    )


def entropies(model: Qwen3TTS, frames: collect.Frames) -> list[float]:
    """Mean entropy in nats of the distribution each codebook 1..15 is sampled from."""
    choice = model.sampling.rest
    heads = model.multi_code_decoder.lm_head.numbers().swapaxes(-1, -2)
    logits = keep_likely((frames.states[:, 1:].swapaxes(0, 1) @ heads).astype(mx.float32), choice.form, choice.knobs)
    probs = mx.softmax(logits / max(choice.temperature, 1e-3), axis=-1)
    return np.array(-(probs * mx.log(mx.maximum(probs, 1e-30))).sum(axis=-1).mean(axis=1)).tolist()


def measure(
    name: str,
    size: int,
    ranks: Callable[[collect.Frames], np.ndarray],
    calibration: collect.Frames,
    evaluation: dict[str, collect.Frames],
) -> tuple[dict[str, Any], dict[int, tuple[Tree, Tree]]]:
    """What a drafter reaches with trees grown on the calibration frames, and these trees.

    ranks: of the codes of some frames.
    """
    result: dict[str, Any] = {"num_parameters": size, "codes_per_round": {}, "acceptance": {}, "by_kind": {}}
    trees = grow_tree.grow_trees(ranks(calibration))
    kinds = {kind: ranks(frames) for kind, frames in evaluation.items()}
    whole = np.concatenate(list(kinds.values()))
    for num_nodes, pair in trees.items():
        rounds, drafted = grow_tree.rounds_of(whole, *pair)
        result["codes_per_round"][num_nodes] = drafted.size / int(rounds.sum())
        result["acceptance"][num_nodes] = drafted.mean(axis=0).round(4).tolist()
        by_kind = {kind: grow_tree.codes_per_round(part, *pair) for kind, part in kinds.items()}
        result["by_kind"][num_nodes] = by_kind
    result["best_candidate_right"] = [
        float((whole[:, 1 : 15 - depth, depth] == 0).mean()) for depth in range(whole.shape[2])
    ]
    curve = " ".join(f"{n}:{value:.2f}" for n, value in result["codes_per_round"].items())
    print(f"{name:34} {size:8d} parameters  {curve}", file=sys.stderr, flush=True)
    return result, trees


def confirm(
    model: Qwen3TTS, drafter: Drafter, trees: dict[int, tuple[Tree, Tree]], frames: collect.Frames
) -> dict[int, dict[str, Any]]:
    """The frames decoded by the engine: whether the codes are plain decoding's, and rounds found and expected."""
    choice, decoder = model.sampling.rest, model.multi_code_decoder
    frames = frames.take(slice(0, CONFIRMED_FRAMES))
    noise, ranks, results = collect.noise_of(model, frames.keys), run.drafter_ranks(model, drafter, frames), {}
    for num_nodes in CONFIRMED:
        pair = trees[num_nodes]
        rounds = Rounds(
            decoder, drafter.proposer(decoder, choice.form, *pair), *pair, choice.form, wrap=lambda function: function
        )
        state = in_bursts(rounds, frames.hidden, frames.codes[:, 0], frames.embedded[:, 0], noise, choice.knobs)
        depth = rounds.depth[np.array(state.origin)[:, 1:]]
        results[num_nodes] = {
            "num_frames": len(frames),
            "different_codes": int((state.codes != frames.codes).sum()),
            "num_rounds": int((depth == 0).sum() + (depth[:, -1] > 0).sum()),
            "expected_rounds": int(grow_tree.rounds_of(ranks, *pair)[0].sum()),
        }
    return results


def our_forms(ours: Form) -> dict[str, Form]:
    """The way from the paper's method to ours, one change at a time."""
    noise = replace(PAPER, ranking="noise")
    deep = replace(noise, num_depths=ours.num_depths)
    scaled = replace(deep, is_scaled=True)
    return {
        "paper, ranked by noise": noise,
        "+ more depths": deep,
        "+ offsets by position": replace(deep, num_positions=15),
        "+ scale": scaled,
        "+ memory of the newest code": replace(ours, first_size=0),
        "+ first round (ours)": ours,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or hub id; else the built-in voice")
    parser.add_argument("--fit-frames", type=int, default=6000)
    parser.add_argument("--frames", type=int, default=1200, help="to measure on; as many to grow trees on")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = load_model(args.model)
    decoder = model.multi_code_decoder
    fit_texts, calibration_texts = run.texts_for(None)
    frames = collect.collect(model, fit_texts, args.fit_frames, seed=args.seed)
    calibration = collect.collect(model, calibration_texts, args.frames, seed=args.seed + 1_000_000)
    evaluation = {
        kind: collect.collect(model, texts, args.frames // 4, seed=args.seed + 2_000_000)
        for kind, texts in read_kinds(TEXTS).items()
    }
    print(f"{len(frames)} + {len(calibration)} + {sum(map(len, evaluation.values()))} frames", file=sys.stderr)

    def fitted(form: Form, num_steps: int = args.steps) -> Drafter:
        return run.fit_drafter(model, frames, form, seed=args.seed, num_steps=num_steps)

    def of_drafter(name: str, drafter: Drafter) -> tuple[dict[str, Any], dict[int, tuple[Tree, Tree]]]:
        ranks = lambda part: run.drafter_ranks(model, drafter, part)  # noqa: E731
        return measure(name, drafter.num_parameters, ranks, calibration, evaluation)

    results = {"zero offsets": of_drafter("zero offsets", fitted(PAPER, 0))[0]}
    results["paper"] = of_drafter("paper", fitted(PAPER))[0]
    medusa = fit_medusa(model, frames, args.seed, args.steps)
    for ranking in ("probability", "noise"):
        proposer, name = MedusaProposer(medusa, model, ranking), f"Medusa heads, ranked by {ranking}"
        ranks = lambda part, proposer=proposer: grow_tree.ranks_of(  # noqa: E731
            model, proposer, model.sampling.rest, part, drafts_first=False
        )
        results[name] = measure(name, sum(w.size for w in medusa.values()), ranks, calibration, evaluation)[0]
    for name, form in our_forms(run.default_form(decoder)).items():
        drafter = fitted(form)
        results[name], trees = of_drafter(name, drafter)
    confirmed = confirm(model, drafter, trees, next(iter(evaluation.values())))
    print("engine", confirmed, file=sys.stderr)
    ours, paper = (results[name]["codes_per_round"] for name in ("+ first round (ours)", "paper"))
    save_lines(
        "acceptance",
        "Codes per round against rows per round",
        {name: result["codes_per_round"] for name, result in results.items()},
    )
    finish(
        "acceptance",
        {
            "environment": environment(),
            "model": model.fingerprint,
            "seed": args.seed,
            "sampling": asdict(model.sampling),
            "num_frames": {"fit": len(frames), "calibration": len(calibration)}
            | {kind: len(part) for kind, part in evaluation.items()},
            "decoder_parameters": run.num_parameters(decoder),
            "entropy_nats": entropies(model, evaluation["news"]),
            "drafters": results,
            "engine": confirmed,
            "ours_to_paper": {num_nodes: ours[num_nodes] / paper[num_nodes] for num_nodes in paper},
        },
    )


if __name__ == "__main__":
    main()
