"""Safetensors files, checked before a byte is allocated for them: what a header claims must be what the file holds."""

import json
import os
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from .config import AGAIN, ModelError

MAX_HEADER_BYTES = 100 << 20  # the format's own limit
MAX_DIMENSION = 2**31 - 1  # MLX counts in 32 bits
NUM_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2},
    **{"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8},
}


class Span(NamedTuple):
    """A tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


def read_header(path: Path, *, remedy: str = AGAIN) -> tuple[dict[str, Span], dict[str, str]]:
    """The tensors of a safetensors file by name, and the texts of its ``__metadata__``.

    remedy: what an error tells the user to do. Raises ModelError for a missing file, a git-lfs pointer, a truncated
    or a malformed one.
    """
    try:
        size = path.stat().st_size if path.is_file() else -1
        if size < 0:
            raise ModelError(f"{path} is missing or no file; {remedy}")
        with path.open("rb") as file:
            start = file.read(8)
            if start == b"version ":
                raise ModelError(f"{path} is a git-lfs pointer, not the weights; run git lfs pull in its folder")
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{path} is truncated or no safetensors file ({size} bytes); {remedy}")
            header = json.loads(file.read(length))
        texts = header.pop("__metadata__", None) or {}
        if not all(isinstance(text, str) for text in dict(texts).values()):
            raise TypeError("__metadata__ holds what is no text")
        spans = {name: _span(entry, 8 + length) for name, entry in header.items()}
    except ModelError:
        raise
    except (OSError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {remedy}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} has a malformed safetensors header ({error!r:.80}); {remedy}") from None
    _check_layout(path, spans, 8 + length, size, remedy)
    return spans, dict(texts)


def _span(entry: dict[str, Any], start: int) -> Span:
    """An entry of the header. Raises what Python does for one that is not as the format says."""
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    for number in (*shape, begin, end):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r:.20} is no size")
    if max(shape, default=0) > MAX_DIMENSION or end - begin != prod(shape) * NUM_BYTES[dtype]:
        raise ValueError(f"{dtype} of shape {shape} in {end - begin} bytes")
    return Span(dtype, shape, start + begin, start + end)


def _check_layout(path: Path, spans: dict[str, Span], start: int, size: int, remedy: str) -> None:
    """The tensors lie side by side and end where the file does."""
    for name, span in sorted(spans.items(), key=lambda item: item[1].begin):
        if span.begin != start and span.begin != span.end:
            raise ModelError(f"{path}: tensor {name:.80} overlaps another or leaves a gap; {remedy}")
        start = max(start, span.end)
    if size != start:
        raise ModelError(f"{path} has {size} bytes, its header asks for {start}; {remedy}")


def read_tensors(path: Path, *, remedy: str = AGAIN) -> tuple[dict[str, mx.array], dict[str, str]]:
    """The tensors of a file, not yet read from disk, and its texts; checked as by ``read_header``."""
    _, texts = read_header(path, remedy=remedy)
    try:
        tensors = mx.load(str(path))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {remedy}") from None
    assert isinstance(tensors, dict)
    return tensors, texts


def write_tensors(path: Path, tensors: dict[str, mx.array], texts: dict[str, str]) -> None:
    """Write a safetensors file and wait until it is on the disk. Raises OSError, for a full disk too."""
    try:
        mx.save_safetensors(str(path), tensors, metadata=texts)
    except RuntimeError as error:
        raise OSError(f"{path} cannot be written ({error}); is the disk full?") from None
    with path.open("rb") as file:
        os.fsync(file.fileno())  # else a power cut could keep the name and lose the tensors
