"""Arrays that took long to work out, kept in memory and on disk. Losing them costs time and nothing else."""

import hashlib
import os
from collections import OrderedDict
from pathlib import Path

import mlx.core as mx
import numpy as np

from .config import ModelError
from .tensor_file import read_tensors, write_tensors

Arrays = dict[str, mx.array]
MEMORY_BYTES, DISK_BYTES = 256 << 20, 1 << 30


class Kept:
    """Arrays by key, the ones used last: at most memory_bytes here and disk_bytes in folder, None for no files.

    A file appears whole or not at all. One that is damaged, or of another key, is as good as none.
    """

    def __init__(self, folder: Path | None, *, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self._folder, self._memory_bytes, self._disk_bytes = folder, memory_bytes, disk_bytes
        self._arrays: OrderedDict[str, Arrays] = OrderedDict()

    def get(self, key: str) -> Arrays | None:
        """The arrays put under this key, or None."""
        arrays = self._arrays.get(key)
        if arrays is None and self._folder is not None:
            arrays = _read(self._folder / f"{key}.safetensors", key)
        if arrays is not None:
            self._remember(key, arrays)
        return arrays

    def put(self, key: str, arrays: Arrays, *, on_disk: bool) -> None:
        """Keep evaluated arrays; a disk that is full or cannot be written is left alone."""
        self._remember(key, arrays)
        if on_disk and self._folder is not None and _size(arrays) <= self._disk_bytes:
            try:
                _write(self._folder / f"{key}.safetensors", key, arrays)
                _make_room(self._folder, self._disk_bytes)
            except OSError:
                pass

    def _remember(self, key: str, arrays: Arrays) -> None:
        self._arrays[key] = arrays
        self._arrays.move_to_end(key)
        while sum(map(_size, self._arrays.values())) > self._memory_bytes:
            self._arrays.popitem(last=False)


def _size(arrays: Arrays) -> int:
    return sum(value.nbytes for value in arrays.values())


def _digest(key: str, arrays: Arrays) -> str:
    """Over all numbers: a file's header tells damage from without, not a changed byte."""
    found = hashlib.sha256(key.encode())
    for name, value in sorted(arrays.items()):
        found.update(f"{name} {value.dtype} {value.shape}".encode())
        # waits: they are on their way to or from the disk
        found.update(np.array(value.reshape(-1).view(mx.uint8)).tobytes())
    return found.hexdigest()


def _read(path: Path, key: str) -> Arrays | None:
    try:
        if not path.is_file():
            return None
        arrays, texts = read_tensors(path)
        mx.eval(arrays)  # read from the disk now, or what is wrong with the file would show while speaking
        if texts.get("digest") != _digest(key, arrays):
            return None
        os.utime(path)  # it was used now
    except (ModelError, OSError, RuntimeError, ValueError):
        return None
    return arrays


def _write(path: Path, key: str, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.{path.name}")  # mx.save_safetensors insists on the suffix
    try:
        write_tensors(part, arrays, {"digest": _digest(key, arrays)})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _make_room(folder: Path, num_bytes: int) -> None:
    """Remove the files used longest ago."""
    files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob("[!.]*.safetensors"))
    total = sum(size for _, size, _ in files)
    for _, size, path in files[:-1]:
        if total <= num_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
