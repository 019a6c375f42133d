"""Files that appear under their name when they are complete, and not before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` when the block ends, and vanishes if that is by an exception."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut could keep the name and lose the contents
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
