"""Files that appear under their name when they are complete, and not before."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MAX_STEM_BYTES = 230  # names may have 255, and it gets a longer one first

_unfinished: set[Path] = set()


@contextmanager
def unfinished(part: Path) -> Iterator[Path]:
    """While the block runs, `part` is a file or folder in the making; what is left of it at the end is removed."""
    _unfinished.add(part)
    try:
        yield part
    finally:
        _remove(part)
        _unfinished.discard(part)


def remove_unfinished() -> None:
    """Remove what is in the making, for a process that ends without leaving its blocks."""
    for part in list(_unfinished):
        _remove(part)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` when the block ends, and vanishes if that is by an exception.

    A link stays, and what it points to is replaced.
    """
    path = Path(os.path.realpath(path))
    stem = path.name if len(os.fsencode(path.name)) < MAX_STEM_BYTES else path.name[:50]
    with unfinished(path.with_name(f"{stem}.{os.getpid()}.part")) as part:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut could keep the name and lose the contents
        os.replace(part, path)
