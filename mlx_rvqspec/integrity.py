"""Whether the files of a model are whole, without loading them: contents, headers, and hashes where they are known.

The hub's cache names each file's contents by their hash: 64 digits are a SHA-256, 40 a git blob's SHA-1.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .config import ModelConfig, ModelError, read_config, read_json
from .load import NEEDED_FILES, weight_files
from .tensor_file import read_header
from .tokenizer import load_tokenizer

BLOCK_BYTES = 1 << 20
PART = "*.incomplete"  # what an interrupted download leaves in the hub's cache


@dataclass(frozen=True)
class Finding:
    """A file of a model, by its name in the folder; fault: what is wrong with it, in a line; empty if nothing is.

    hashed: whether its contents were compared with a known hash.
    """

    name: str
    fault: str
    hashed: bool


def examine(folder: Path, show: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """A finding for every file that loading needs; show is told which one is being read."""
    for name in sorted({*NEEDED_FILES, "generation_config.json", *_weights(folder)}):
        show(name)
        path = folder / name
        fault, hashed = _fault(path), False
        if not fault and (known := known_hash(path)):
            hashed = True
            if hash_of(path, known) != known:
                fault = f"{path} does not have the contents the hub has: its hash is not {known}"
        yield Finding(name, fault, hashed)
    yield from _together(folder)


def _weights(folder: Path) -> list[str]:
    """The names of the weight files; where an index cannot be read, its own."""
    names = []
    for part in (folder, folder / "speech_tokenizer"):
        try:
            names += [path.relative_to(folder).as_posix() for path in weight_files(part)]
        except ModelError:
            names.append((part / "model.safetensors.index.json").relative_to(folder).as_posix())
    return names


def _fault(path: Path) -> str:
    try:
        if path.suffix == ".safetensors":
            read_header(path)
        elif path.suffix == ".json":
            read_json(path)
        elif not path.is_file():
            return f"{path} is missing"
    except ModelError as error:
        return str(error)
    return ""


def _together(folder: Path) -> Iterator[Finding]:
    """What is wrong between files that are whole each by itself."""
    try:
        config: ModelConfig = read_config(folder)
        load_tokenizer(folder, config)
        for part in (folder, folder / "speech_tokenizer"):
            paths, index = weight_files(part), part / "model.safetensors.index.json"
            named = read_json(index)["weight_map"] if index.exists() else {}
            for path in paths:
                lacking = {name for name, file in named.items() if file == path.name} - read_header(path)[0].keys()
                if lacking:
                    raise ModelError(f"{path} lacks the tensor {min(lacking)}, which {index.name} says it holds")
    except ModelError as error:
        yield Finding("all together", str(error), False)


def known_hash(path: Path) -> str:
    """The hash of a file of the hub's cache, which is the name of what its link points to; else ""."""
    name = path.resolve().name if path.is_symlink() else ""
    return name if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", name) else ""


def hash_of(path: Path, known: str) -> str:
    """The hash of a file's contents of the kind that ``known`` is of."""
    digest = hashlib.sha256() if len(known) == 64 else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remove(folder: Path, findings: list[Finding]) -> None:
    """Take faulty files out of a hub cache, links and contents, and what interrupted downloads have left there."""
    for finding in findings:
        path = folder / finding.name
        if finding.fault and (path.is_symlink() or path.is_file()):
            contents = path.resolve()
            path.unlink()
            if contents.parent.name == "blobs":
                contents.unlink(missing_ok=True)
    for part in (folder.parents[1] / "blobs").glob(PART):
        part.unlink(missing_ok=True)
