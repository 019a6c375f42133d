"""What a batch has to make, row by row, and the record of what it has made, from which a run goes on that was killed.

A row's file counts as made if the record names it with the same key, which stands for everything that decides its
samples, and its contents still have the recorded SHA-256. A record is written when the file has its name.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .names import nearest
from .sampling import check_seed

NAME = "manifest"


@dataclass(frozen=True)
class Row:
    """One line of a batch file: what to say, how, and the name of the file to make."""

    text: str
    file: str
    speaker: str | None
    voice: str | None
    language: str
    instruct: str | None
    seed: int


def read_rows(lines: Iterable[str], suffix: str, defaults: dict[str, Any]) -> list[Row]:
    """The rows of a batch file, JSON objects one a line; empty lines are skipped. defaults: for what a row leaves out.

    Without ``file`` the number of the row names it: 00001.wav. Raises ValueError that names the line.
    """
    rows: list[Row] = []
    names: set[str] = set()
    known = {field.name: field.type for field in fields(Row)}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError('expected an object such as {"text": "Hello."}')
            values = {"file": f"{len(rows) + 1:05d}.{suffix}"} | defaults | values
            for name, value in values.items():
                _check(name, value, known)
            _check_name(values["file"], suffix)
            row = Row(**{"text": "", **values})  # pyright: ignore[reportArgumentType]  checked above
            if row.file.casefold() in names:
                raise ValueError(f"file {row.file!r} is named twice")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        names.add(row.file.casefold())
        rows.append(row)
    if not rows:
        raise ValueError("the batch has no rows")
    return rows


def _check(name: str, value: Any, known: dict[str, Any]) -> None:
    if name not in known:
        raise ValueError(f"unknown key {name!r}; known are {', '.join(known)}{nearest(name, known)}")
    if name == "seed":
        check_seed(value)
    elif not (isinstance(value, str) or value is None and "None" in str(known[name])):
        raise ValueError(f"{name} is {value!r}; expected text in quotes")


def _check_name(name: str, suffix: str) -> None:
    """Refuse a name that leads out of the folder, or hides, or clashes with the record."""
    plain = name == Path(name).name and not set(name) & set('/\\:\0<>"|?*') and name.isprintable()
    if not plain or name.startswith((".", NAME)) or not name.lower().endswith(f".{suffix}") or len(name.encode()) > 200:
        raise ValueError(f"file {name!r} is no plain name that ends in .{suffix}")


def key_of(row: Row, settings: dict[str, Any]) -> str:
    """Stands for all that decides the samples: the settings, and the row with its voice's contents but not its name."""
    facts = asdict(row) | settings
    del facts["file"]
    if row.voice:
        facts["voice"] = sha256_of(Path(row.voice))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def groups_of(lengths: Sequence[float], size: int) -> list[list[int]]:
    """Row numbers in groups to be spoken together, rows of like length in one; the same for every shard and run."""
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


class Record:
    """The record of a folder: reads what every shard wrote, adds to its own file. label: of the shard, or ""."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder = folder
        self._path = folder / f"{NAME}{label}.jsonl"
        self._made: dict[tuple[str, str], dict[str, Any]] = {}
        for path in sorted(folder.glob(f"{NAME}*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    self._made[entry["key"], entry["file"]] = entry
                except (ValueError, KeyError, TypeError):
                    continue  # the line that a killed run was writing

    def made(self, row: Row, key: str) -> dict[str, Any] | None:
        """What the record says of a row whose file is there and intact."""
        entry, path = self._made.get((key, row.file)), self.folder / row.file
        if entry and path.is_file() and sha256_of(path) == entry.get("sha256"):
            return entry
        return None

    def add(self, row: Row, key: str, facts: dict[str, Any]) -> None:
        """Record a file that has just got its name; on disk when this returns."""
        entry = {"file": row.file, "key": key, "sha256": sha256_of(self.folder / row.file), **facts}
        with self._path.open("a+b") as file:
            file.seek(0, os.SEEK_END)
            torn = b""
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = b"" if file.read(1) == b"\n" else b"\n"
            file.write(torn + json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
