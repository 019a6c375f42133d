"""Drafters: guesses for the next codes of a frame, from its newest state and the model's own frozen heads.

The draft for the code ``depth`` places after slot q is head ``q + depth`` on

    hidden_scale[depth] * state(q) + hidden_offset[q, depth] + memory_out @ memory_in[depth] @ e(code q)

where code q is the newest, chosen from that state. The scale makes a draft the less sure the further ahead it is. With
one offset per depth for all slots, no scale, no memory, and candidates ranked by probability, this is the paper's
method. Ranked by ``noise``, a candidate's score is the verifier's: the filtered logits plus temperature times the very
noise row that will choose the code, so a good draft is right at any temperature. No drafter changes a code; a bad one
wastes rows.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..config import ModelError
from ..multi_code_decoder import Books, MultiCodeDecoder
from ..names import nearest_path
from ..sampling import keep_likely
from ..tensor_file import read_tensors, write_tensors
from ..whole_file import unfinished
from .tree import Tree

VERSION = 2
FILE = "drafter.safetensors"
RANKINGS = ("probability", "noise")
MAX_NODES, MAX_FORM = 1024, 1 << 16  # of a file that is believed
UNUSED = 2  # slots of tables by slot: the first code that is newest in ``propose`` is code 1, and its slot is 2


@dataclass(frozen=True)
class Form:
    """What a drafter computes; the paper's method is Form(3, 1, False, 0, 0, 0, "probability")."""

    num_depths: int
    num_positions: int  # 1: every slot has the same offsets; 15: each its own
    is_scaled: bool
    memory_depths: int  # drafts up to this depth remember the newest code
    memory_size: int  # 0: none does
    first_size: int  # width of the map that drafts a frame's first codes; 0: they are not drafted
    ranking: str

    def shapes(self, width: int, input_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors, for a MultiCodeDecoder's width and that of its embeddings."""
        shapes: dict[str, tuple[int, ...]] = {"hidden_offset": (self.num_positions, self.num_depths, width)}
        if self.is_scaled:
            shapes |= {"hidden_scale": (self.num_depths,)}
        if self.memory_size:
            shapes |= {"memory_in": (self.memory_depths, self.memory_size, input_size)}
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
        return OffsetProposer(self, decoder, sampling_form, tree.num_depths, first_tree.num_depths, num_candidates)


class OffsetProposer:
    """The ``rounds.Proposer`` of a drafter. Pure; everything that does not change is folded into tables here."""

    def __init__(
        self,
        drafter: Drafter,
        decoder: MultiCodeDecoder,
        sampling_form: tuple[int, bool],
        num_depths: int,
        num_first_depths: int,
        num_candidates: int,
    ) -> None:
        self.form, self.sampling_form, self.num_candidates = drafter.form, sampling_form, num_candidates
        self.lm_head, heads = decoder.lm_head, decoder.lm_head.numbers()
        weights = {name: weight.astype(heads.dtype) for name, weight in drafter.weights.items()}
        self.num_codes, V, _ = heads.shape
        self.offsets = weights["hidden_offset"][:, :num_depths]
        if self.form.num_positions > 1:
            self.offsets = mx.pad(self.offsets, [(UNUSED, 0), (0, 0), (0, 0)])  # by slot
        if self.form.is_scaled:
            self.scale = weights["hidden_scale"][:num_depths, None]
        if self.form.memory_size:  # [17, V, K x size], what the newest code, number ``slot`` - 1, adds at each depth
            table = decoder.model.codec_embedding(mx.arange(self.num_codes * V))
            memory = table @ weights["memory_in"][:num_depths].reshape(-1, table.shape[-1]).T
            without = max(0, num_depths - self.form.memory_depths) * self.form.memory_size
            self.memory = mx.pad(memory, [(UNUSED * V, 0), (0, without)]).reshape(UNUSED + self.num_codes, V, -1)
            self.memory_out = weights["memory_out"].T
        if self.form.first_size:
            self.first_in, self.first_out = weights["first_in"].T, weights["first_out"].T
            self.first_offset = weights["first_offset"][:num_first_depths]
        # a table that is still a graph would be computed again in every compiled call that captures it
        mx.eval([value for value in vars(self).values() if isinstance(value, mx.array)])

    def propose(self, state: mx.array, newest: mx.array, slot: mx.array, books: Books, knobs: mx.array) -> mx.array:
        """Candidates [B, K, M] int32 for codebooks slot..slot+K-1, best first; see ``rounds.Proposer``."""
        offsets = self.offsets if self.form.num_positions == 1 else self.offsets[slot[:, 0]]
        drafts = (self.scale * state if self.form.is_scaled else state) + offsets
        if self.form.memory_size:
            recalled = self.memory[slot, newest].reshape(*drafts.shape[:2], self.form.memory_size)
            drafts = mx.addmm(drafts, recalled, self.memory_out)
        return self._candidates(drafts, books, knobs)

    def propose_first(self, inputs: mx.array, books: Books, knobs: mx.array) -> mx.array:
        """Candidates [B, K, M] for codebooks 1..K from the inputs of slots 0 and 1; see ``rounds.Proposer``."""
        inner = nn.silu(inputs.reshape(len(inputs), -1) @ self.first_in)
        drafts = (inner @ self.first_out)[:, None] + self.first_offset
        return self._candidates(drafts, books, knobs)

    def _candidates(self, drafts: mx.array, books: Books, knobs: mx.array) -> mx.array:
        """[B, K, M] of draft states [B, K, D].

        Shapes keep their ones: every change of shape is a step of its own in a graph of many small ones.
        """
        heads, noise = (part[:, : drafts.shape[1]] for part in books)
        logits = self.lm_head(drafts[:, :, None], heads).astype(mx.float32)
        return self._best(self._scores(logits, noise[:, :, None], knobs))

    def _scores(self, logits: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        if self.form.ranking == "probability":
            return logits
        return keep_likely(logits, self.sampling_form, knobs) + knobs[0] * noise

    def _best(self, scores: mx.array) -> mx.array:
        """[B, K, M] of scores [B, K, 1, V]."""
        if self.num_candidates == 1:
            return mx.argmax(scores, axis=-1).view(mx.int32)  # the same bits: not a step, as a cast would be
        return mx.argsort(-scores, axis=-1)[:, :, 0, : self.num_candidates].view(mx.int32)


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
    sizes = [value for name, value in asdict(drafter.form).items() if name not in ("ranking", "is_scaled")]
    names = (drafter.form.ranking, drafter.model_name, drafter.fingerprint)
    return (
        all(type(size) is int and 0 <= size <= MAX_FORM for size in sizes)
        and type(drafter.form.is_scaled) is bool
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


def is_gpu(device: str) -> bool:
    """Of a name from ``device_name``."""
    return str(mx.Device(mx.gpu)) in device


def device_name(precision: str, compiled: bool) -> str:
    """What the time of a round depends on, besides the model; precision: see ``Qwen3TTS.precision``."""
    device, how = mx.default_device(), "compiled" if compiled else "uncompiled"
    return f"{platform.machine()} {device} {precision} {how} mlx {metadata.version('mlx')}"
