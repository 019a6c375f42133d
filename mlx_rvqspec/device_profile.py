"""What was measured of a model on this machine: written by ``fit.device``, read by ``load`` and ``mlx-tts info``."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from .spec_decode.drafter import Drafter, is_gpu, rows_file
from .whole_file import replacing

CHUNKS = (0, *range(1, 17))  # frames a chunk may have, 0 for none that can be played at once
FIGURES, MAX_FIGURE = ("gb_per_s", "code_0_ms", "codes_ms"), 1e9  # above it there is damage, not a machine
# Rows a round on a GPU where nobody has measured. While its weights are being read, 16 rows cost what one does
# (bench/cost_model.py, whose devices nobody here has); the published speed-ups are of 16 rows and more.
GPU_ROWS = 16
SHARE = 0.8  # of real time that making a chunk may take: the rest is for whatever else the machine does


@dataclass(frozen=True)
class Profile:
    """Times in milliseconds on one device, see ``drafter.device_name``.

    num_nodes: rows a round that are best here; round_ms: of a round by its rows, 1 is a code in plain decoding;
    code_0_ms, codes_ms: of a frame's code 0 and of its others; sound_ms: of a SpeechDecoder call by its frames;
    chunk_frames: the smallest chunk that playing at once cannot outrun; 0: there is none.
    """

    num_nodes: int
    round_ms: dict[str, float]
    gb_per_s: float
    code_0_ms: float
    codes_ms: float
    sound_ms: dict[str, float]
    chunk_frames: int


def smallest_chunk(code_ms: float, sound_ms: dict[str, float], frame_ms: float) -> int:
    """Frames in the smallest chunk that is made in ``SHARE`` of the time it plays; 0 where none is.

    code_ms: of all 16 codes of a frame; sound_ms: of a SpeechDecoder call by its frames; frame_ms: what a frame plays.
    """
    sizes = sorted((int(size), ms) for size, ms in sound_ms.items())
    return next((size for size, ms in sizes if size * code_ms + ms <= SHARE * size * frame_ms), 0)


def read_profiles(fingerprint: str) -> dict[str, Profile]:
    """Profiles by device of the model whose drafter has this fingerprint; damaged and older ones are left out."""
    names = [field.name for field in fields(Profile)]
    entries = _entries(fingerprint).items()
    return {device: Profile(**{name: entry[name] for name in names}) for device, entry in entries if _is_profile(entry)}


def _is_profile(entry: Any) -> bool:
    """Whether an entry of the file can be believed."""
    if not isinstance(entry, dict) or not {field.name for field in fields(Profile)} <= set(entry):
        return False
    counts, figures = (entry["num_nodes"], entry["chunk_frames"]), [entry[name] for name in FIGURES]
    return (
        all(type(count) is int for count in counts)
        and entry["num_nodes"] > 0
        and entry["chunk_frames"] in CHUNKS
        and all(type(figure) in (int, float) and 0 <= figure < MAX_FIGURE for figure in figures)
    )


def rows_for(drafter: Drafter, device: str) -> int:
    """Rows per round: the size measured to be best on this device where the drafter has it, else a default."""
    return best_rows(drafter.fingerprint, device, drafter.trees, drafter.facts["num_nodes"])


def best_rows(fingerprint: str, device: str, sizes: Iterable[int], cpu_rows: int) -> int:
    """The rows that were measured to be best, if that was done and a drafter with trees of these sizes has them.

    fingerprint: of the drafter's model; device: see ``drafter.device_name``; cpu_rows: the drafter's own default.
    """
    measured, sizes = read_profiles(fingerprint).get(device), set(sizes)
    if measured and (measured.num_nodes == 1 or measured.num_nodes in sizes):
        return measured.num_nodes
    drafting = sizes - {1}
    return min(drafting, key=lambda size: abs(size - GPU_ROWS)) if drafting and is_gpu(device) else cpu_rows


def write_profile(fingerprint: str, device: str, profile: Profile) -> None:
    """Note a profile, whole or not at all."""
    path = rows_file(fingerprint)
    known = _entries(fingerprint) | {device: asdict(profile)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps(known, indent=1).encode())


def _entries(fingerprint: str) -> dict[str, Any]:
    try:
        return dict(json.loads(rows_file(fingerprint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):  # none yet, or damaged: it is only a cache
        return {}


def describe(fingerprints: tuple[str, ...]) -> tuple[str, ...]:
    """A line for people per device measured, of a model and what it is a copy of."""
    lines = []
    for fingerprint in fingerprints:
        for device, found in read_profiles(fingerprint).items():
            rounds = f"{found.num_nodes} rows a round" if found.num_nodes > 1 else "plain decoding"
            chunk = f"chunks of {found.chunk_frames} frames" if found.chunk_frames else "slower than it plays"
            work = found.code_0_ms + found.codes_ms
            lines.append(f"{device}: {rounds}, {work:.1f} ms a frame's codes, {chunk}, {found.gb_per_s:.1f} GB/s")
    return tuple(lines)
