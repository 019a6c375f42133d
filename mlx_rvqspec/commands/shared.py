"""What the commands of mlx-tts share: exit codes, faults, messages and options."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..config import ModelError

Tell = Callable[[str], None]
USAGE, FILES, GENERATION, CANCELLED, PIPE_CLOSED = 2, 3, 4, 130, 141


class Fault(Exception):
    """What to tell the user in one line, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def usage_faults() -> Iterator[None]:
    """Inside, a ValueError is the user's mistake."""
    try:
        yield
    except ModelError:
        raise
    except ValueError as error:
        raise Fault(USAGE, str(error)) from error


def check_new(path: Path, force: bool) -> None:
    """Raises ValueError where a file cannot be written, or would be replaced unasked."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder or device; name a file with -o")
    if path.exists() and not force:
        raise ValueError(f"{path} exists; --force replaces it")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}; create it first")


def check_writable(folder: Path) -> None:
    """Make the folder if need be. Raises OSError where nothing can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def say(message: str) -> None:
    with suppress(OSError):  # a full disk or a closed pipe behind stderr is no reason to stop speaking
        print(message, file=sys.stderr)


def silent(message: str) -> None:
    pass


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


Quiet = Annotated[bool, option("Output", "Only faults on stderr.", "--quiet", "-q")]
Json = Annotated[bool, option("Output", "One JSON object on stdout; with -o - on stderr.", "--json")]
Model = Annotated[str | None, option("Voice", "Model folder or hub id; else the built-in voice.", metavar="NAME")]
Local = Annotated[bool, option("Voice", "Never download: the model must be here.", "--local-files-only")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"] | None, option("Decoding", "Precision of the weights.")]


@contextmanager
def progress(wanted: bool) -> Iterator[Tell]:
    """A function that shows a message on the terminal, if there is one, until the block ends."""
    if not (wanted and sys.stderr.isatty()):
        yield silent
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("loading") as status:
        yield lambda message: status.update(escape(message))  # a file may be called [b].wav
