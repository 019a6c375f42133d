"""Drafters: guesses for the next codes of a frame, from its newest state and the model's own frozen heads.

The draft for the code ``depth`` places after slot q is head ``q + depth`` on

    state(q) + hidden_offset[q, depth] + memory_out @ sum over lag of memory_in[lag] @ e(code q + depth - lag)

where the codes after the newest one are this draft's own best guesses, or in rounds of few rows left out. With one
offset per depth for all slots, no memory, and candidates ranked by probability, this is the paper's method. Ranked by
``noise``, a candidate's score is the verifier's: the filtered logits plus temperature times the very noise row that
will choose the code, so a good draft is right at any temperature. No drafter changes a code; a bad one wastes rows.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..config import ModelError
from ..multi_code_decoder import MultiCodeDecoder
from ..names import nearest_path
from ..sampling import keep_likely
from ..tensor_file import read_tensors, write_tensors
from ..whole_file import unfinished
from .tree import Tree

VERSION = 1
FILE = "drafter.safetensors"
RANKINGS = ("probability", "noise")
# Rounds of so few rows remember the newest code alone: following their own guesses, a step after the other, makes them
# an eighth longer, and four rows of the built-in voice 2 % better.
FEW_NODES = 4
MAX_NODES, MAX_FORM = 1024, 1 << 16  # of a file that is believed


@dataclass(frozen=True)
class Form:
    """What a drafter computes; the paper's method is Form(3, 1, 0, 0, 0, "probability")."""

    num_depths: int
    num_positions: int  # 1: every slot has the same offsets; 15: each its own
    num_lags: int  # codes before the drafted one that are remembered
    memory_size: int  # 0: the codes are not looked at
    first_size: int  # width of the map that drafts a frame's first codes; 0: they are not drafted
    ranking: str

    def shapes(self, width: int, input_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors, for a MultiCodeDecoder's width and that of its embeddings."""
        shapes: dict[str, tuple[int, ...]] = {"hidden_offset": (self.num_positions, self.num_depths, width)}
        if self.memory_size:
            shapes |= {"memory_in": (self.num_lags, self.memory_size, input_size)}
            shapes |= {"memory_out": (width, self.memory_size)}
        if self.first_size:
            shapes |= {"first_offset": (self.num_depths, width)}
            shapes |= {"first_in": (self.first_size, 2 * input_size), "first_out": (width, self.first_size)}
        return shapes


@dataclass(frozen=True)
class Drafter:
    """A fitted drafter: the tensors of ``form.shapes`` and, by rows per round, the trees of ``rounds.Rounds``.

    trees: the tree, and that of a frame's first round, which drafts nothing where ``form.first_size`` is 0.
    facts: what it was fitted on and what it reached, for people and for the choice of a tree.
    """

    form: Form
    weights: Mapping[str, mx.array]
    trees: Mapping[int, tuple[Tree, Tree]]
    model_name: str
    fingerprint: str
    facts: Mapping[str, Any]

    @property
    def num_parameters(self) -> int:
        return sum(weight.size for weight in self.weights.values())

    def proposer(
        self, decoder: MultiCodeDecoder, sampling_form: tuple[int, bool], tree: Tree, first_tree: Tree
    ) -> "OffsetProposer":
        """What proposes the candidates of these trees when codes are sampled in this form."""
        num_candidates = max((*tree.num_candidates, *first_tree.num_candidates), default=1)
        depths, few = (tree.num_depths, first_tree.num_depths), max(tree.num_nodes, first_tree.num_nodes) <= FEW_NODES
        return OffsetProposer(self, decoder, sampling_form, *depths, num_candidates, follows_guesses=not few)


class OffsetProposer:
    """The ``rounds.Proposer`` of a drafter. Pure; everything that does not change is folded into tables here.

    follows_guesses: whether a draft remembers the guesses before it, or only the newest code.
    """

    def __init__(
        self,
        drafter: Drafter,
        decoder: MultiCodeDecoder,
        sampling_form: tuple[int, bool],
        num_depths: int,
        num_first_depths: int,
        num_candidates: int,
        *,
        follows_guesses: bool = True,
    ) -> None:
        self.follows_guesses = follows_guesses
        self.form, self.sampling_form, self.num_candidates = drafter.form, sampling_form, num_candidates
        self.lm_head, heads = decoder.lm_head, decoder.lm_head.numbers()
        weights = {name: weight.astype(heads.dtype) for name, weight in drafter.weights.items()}
        num_codes, V, _ = heads.shape
        self.num_codes, self.num_entries = num_codes, V
        self.offsets = weights["hidden_offset"][:, :num_depths]
        self.depths = mx.arange(max(num_depths, num_first_depths))
        if self.form.memory_size:
            table = decoder.model.codec_embedding(mx.arange(num_codes * V))
            memory = table @ weights["memory_in"].reshape(-1, table.shape[-1]).T
            self.memory = memory.reshape(num_codes, V, -1)  # [15, V, lags x size]
            if not follows_guesses:  # [15, V, K x size], what the newest code adds at each depth
                extra = (num_depths - self.form.num_lags) * self.form.memory_size
                kept = self.memory[..., : num_depths * self.form.memory_size]
                self.memory = mx.pad(kept, [(0, 0), (0, 0), (0, max(0, extra))])
            self.memory_heads = (heads @ weights["memory_out"]).swapaxes(-1, -2)
        if self.form.first_size:
            self.first_in, self.first_out = weights["first_in"].T, weights["first_out"].T
            self.first_offset = weights["first_offset"][:num_first_depths]
        # a table that is still a graph would be computed again in every compiled call that captures it
        mx.eval([value for value in vars(self).values() if isinstance(value, mx.array)])

    def propose(self, state: mx.array, newest: mx.array, slot: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """Candidates [B, K, M] int32 for codebooks slot+1..slot+K, best first; see ``rounds.Proposer``."""
        offsets = self.offsets if self.form.num_positions == 1 else self.offsets[slot[:, 0] - 1]
        known = [self.memory[slot - 1, newest]] if self.form.memory_size else []
        return self._candidates(state + offsets, known, slot, noise, knobs)

    def propose_first(self, hidden: mx.array, first: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """Candidates [B, K, M] for codebooks 1..K from the inputs of slots 0 and 1."""
        inner = nn.silu(mx.concatenate([hidden, first], axis=-1) @ self.first_in)
        base = (inner @ self.first_out)[:, None] + self.first_offset
        return self._candidates(base, [], mx.array(np.zeros((len(base), 1), dtype=np.int32)), noise, knobs)

    def _candidates(
        self, base: mx.array, known: list[mx.array], slot: mx.array, noise: mx.array, knobs: mx.array
    ) -> mx.array:
        """base: [B, K, D] draft states without memory; known: memory [B, 1, lags x size] of codes before the drafts.

        Shapes keep their ones: every change of shape is a step of its own in a graph of many small ones.
        """
        K = base.shape[1]
        # the heads of codebooks slot+1.., the last one where there are no more
        books = mx.minimum(slot + self.depths[:K], self.num_codes - 1).astype(mx.uint32)
        logits = self.lm_head(base[:, :, None], books).astype(mx.float32)
        rows = mx.take_along_axis(noise, books[..., None], axis=1)[:, :, None]
        scores = self._scores(logits, rows, knobs)  # [B, K, 1, V]
        if not self.form.memory_size or not (known or self.follows_guesses):
            return self._best(scores)
        if not self.follows_guesses:
            recalled, heads = known[0].reshape(-1, K, 1, self.form.memory_size), self.memory_heads[books]
            return self._best(
                scores + recalled @ heads if scores.dtype != heads.dtype else mx.addmm(scores, recalled, heads)
            )
        # All but what is remembered is done for all depths at once, the filter included. What is left is a chain.
        parts = [mx.split(x, K, axis=1) for x in (scores, self.memory_heads[books], books[..., None])]
        memory, guesses, rows = [self._lags(row[:, None]) for row in known], [], []
        for depth, (row, heads, book) in enumerate(zip(*parts)):
            if memory:
                recalled = reduce(
                    mx.add, (past[lag] for lag, past in enumerate(memory[: -self.form.num_lags - 1 : -1]))
                )
                row = mx.addmm(row, recalled, heads) if row.dtype == heads.dtype else row + recalled @ heads
            rows.append(row)
            if depth + 1 < K or self.num_candidates == 1:
                guesses.append(mx.argmax(row, axis=-1))
            if depth + 1 < K:
                memory.append(self._lags(self.memory[book, guesses[-1]]))
        if self.num_candidates == 1:
            return mx.concatenate(guesses, axis=1).astype(mx.int32)
        return self._best(mx.concatenate(rows, axis=1))

    def _lags(self, past: mx.array) -> list[mx.array]:
        """What a code adds to the drafts behind it, of a row [B, 1, 1, lags x size], by how far: [B, 1, 1, size]."""
        return list(mx.split(past, self.form.num_lags, axis=-1))

    def _scores(self, logits: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        if self.form.ranking == "probability":
            return logits
        return keep_likely(logits, self.sampling_form, knobs) + knobs[0] * noise

    def _best(self, scores: mx.array) -> mx.array:
        """[B, K, M] of scores [B, K, 1, V]."""
        if self.num_candidates == 1:
            return mx.argmax(scores, axis=-1).astype(mx.int32)
        return mx.argsort(-scores[:, :, 0], axis=-1)[..., : self.num_candidates].astype(mx.int32)


def save(drafter: Drafter, path: Path) -> None:
    """Write a drafter file, whole or not at all: safetensors, with everything else as JSON in its metadata."""
    about = {
        "version": VERSION,
        "form": asdict(drafter.form),
        "trees": [[tree.to_json(), first.to_json()] for tree, first in drafter.trees.values()],
        "model_name": drafter.model_name,
        "fingerprint": drafter.fingerprint,
        "facts": dict(drafter.facts),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(path.with_name(f".{os.getpid()}.{path.name}")) as part:  # mx.save_safetensors insists on the suffix
        write_tensors(part, dict(drafter.weights), {"drafter": json.dumps(about)})
        os.replace(part, path)


def load(path: Path, decoder: MultiCodeDecoder, fingerprints: tuple[str, ...]) -> Drafter:
    """The drafter in a file, for the model with these fingerprints: its own, and that of the model it is a copy of.

    Raises ModelError for a file that is missing, damaged, of another version, or fitted for another model.
    """
    weights, texts = read_tensors(path, remedy="run mlx-tts fit to make one")
    try:
        about = json.loads(texts["drafter"])
        if about["version"] != VERSION:
            raise ModelError(f"{path} is a drafter of version {about['version']}, expected {VERSION}; run mlx-tts fit")
        form = Form(**about["form"])
        pairs = [(Tree.from_json(tree), Tree.from_json(first)) for tree, first in about["trees"]]
        trees = {tree.num_nodes: (tree, first) for tree, first in pairs}
        drafter = Drafter(form, weights, trees, about["model_name"], about["fingerprint"], about["facts"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} cannot be read as a drafter ({error!r:.200}); run mlx-tts fit to make one") from None
    if not _well_formed(drafter):
        raise ModelError(f"{path} is no drafter: its metadata is not as expected; run mlx-tts fit to make one")
    if drafter.fingerprint not in fingerprints:
        raise ModelError(
            f"{path} was fitted for {drafter.model_name} ({drafter.fingerprint[:12]}), not for this model "
            f"({fingerprints[0][:12]}); run mlx-tts fit, or choose drafter 'none'"
        )
    _check(drafter, decoder, path)
    return drafter


def _well_formed(drafter: Drafter) -> bool:
    """Whether what came from JSON has the types and sizes relied on; a tree of N rows makes masks of N x N."""
    sizes = [value for name, value in asdict(drafter.form).items() if name != "ranking"]
    names = (drafter.form.ranking, drafter.model_name, drafter.fingerprint)
    return (
        all(type(size) is int and 0 <= size <= MAX_FORM for size in sizes)
        and all(isinstance(name, str) for name in names)
        and isinstance(drafter.facts, dict)
        and type(drafter.facts.get("num_nodes")) is int
        and drafter.facts["num_nodes"] in drafter.trees
        and all(tree.num_nodes <= MAX_NODES for pair in drafter.trees.values() for tree in pair)
    )


def _check(drafter: Drafter, decoder: MultiCodeDecoder, path: Path) -> None:
    form = drafter.form
    expected = form.shapes(decoder.width, decoder.input_size)
    found = {name: weight.shape for name, weight in drafter.weights.items()}
    deepest = max((tree.num_depths for pair in drafter.trees.values() for tree in pair), default=0)
    drafts_first = any(first.num_depths for _, first in drafter.trees.values())
    if found != expected:
        raise ModelError(f"{path} holds the tensors {found}, expected {expected}; run mlx-tts fit")
    widest = max((max(tree.num_candidates, default=0) for pair in drafter.trees.values() for tree in pair), default=0)
    legal = form.ranking in RANKINGS and form.num_positions in (1, decoder.num_codes) and deepest <= form.num_depths
    if not legal or widest > decoder.num_entries or drafts_first and not form.first_size:
        what = f"{form} with {deepest} depths and {widest} candidates"
        raise ModelError(f"{path} describes an impossible drafter, {what}; run mlx-tts fit")


def find(
    folder: Path, decoder: MultiCodeDecoder, fingerprints: tuple[str, ...], drafter: str | Path | None
) -> Drafter | None:
    """The drafter for a model in ``folder``: the given file; "none"; or when None, the user's own or the shipped one.

    fingerprints: see ``Qwen3TTS.fingerprints``; a quantised copy drafts as the model it was made from where nobody
    has fitted a drafter for it.
    Raises ModelError for a file that cannot be used: speech never becomes slower without a word.
    """
    if drafter is not None:
        given = Path(os.path.expanduser(drafter))
        if drafter != "none" and not given.is_file():
            raise ModelError(f"{given} is missing or no file; expected a drafter, or none{nearest_path(given)}")
        return None if drafter == "none" else load(given, decoder, fingerprints)
    path = place(folder, fingerprints)
    return load(path, decoder, fingerprints) if path else None


def place(folder: Path, fingerprints: tuple[str, ...]) -> Path | None:
    """Where the drafter is that ``find`` takes when it is given none."""
    own, *source = (cache_folder() / fingerprint / FILE for fingerprint in fingerprints)
    return next((path for path in (own, folder / FILE, *source) if path.is_file()), None)


def cache_folder() -> Path:
    """Where fitted drafters and measured costs are kept for this user."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():  # a user without a home
        home = Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "mlx-rvqspec"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "mlx-rvqspec"


def rows_file(fingerprint: str) -> Path:
    """Where ``fit.device`` notes how many rows a round of this model should have, by device."""
    return cache_folder() / fingerprint / "rows.json"


def device_name(precision: str, compiled: bool) -> str:
    """What the time of a round depends on, besides the model; precision: see ``Qwen3TTS.precision``."""
    device, how = mx.default_device(), "compiled" if compiled else "uncompiled"
    return f"{platform.machine()} {device} {precision} {how} mlx {metadata.version('mlx')}"
