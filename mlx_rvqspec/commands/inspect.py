"""mlx-tts inspect: pictures of a piece of speech, and the pages that speak --report writes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..report.page import render
from ..report.record import Record, read_record
from ..report.summary import BLOCKS, summary
from ..whole_file import replacing
from .shared import Json, Quiet, check_new, say, silent, usage_faults

PAGE, CODES = "report.html", "codes.npz"


def inspect(
    file: Annotated[Path, typer.Argument(help="A sound file, or the codes.npz of speak --report.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write; else the file's name with .html.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show a sound file or a run in pictures: one page for a browser, and a summary here.

    mlx-tts inspect hello.wav
    """
    page = output or file.with_suffix(".html")
    with usage_faults():
        check_new(page, force)
        record = read_record(file)
    write_page(record, file.name, page)
    if as_json:
        facts = {"page": str(page), "audio_s": record.audio_s, "frames": len(record.codes)}
        print(json.dumps(facts | {"rounds": record.rounds.tolist()}))
        return
    (silent if quiet else say)(summary(record, file.name, plain=not _can_show(BLOCKS)))
    print(page)


def check_folder(folder: Path, force: bool) -> None:
    """Raises ValueError where ``write_report`` would fail, or replace files unasked."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the report")
    for path in (folder / PAGE, folder / CODES):
        if folder.exists():
            check_new(path, force)
    if not folder.parent.is_dir():
        raise ValueError(f"there is no folder {folder.parent}; create it first")


def write_report(record: Record, name: str, folder: Path) -> Path:
    """The page and the codes of a run in a folder, which is made; the page's path."""
    folder.mkdir(exist_ok=True)
    record.save(folder / CODES)
    write_page(record, name, folder / PAGE)
    return folder / PAGE


def write_page(record: Record, name: str, path: Path) -> None:
    with replacing(path) as file:
        file.write(render(record, name).encode())


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
