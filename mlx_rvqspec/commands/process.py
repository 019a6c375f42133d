"""mlx-tts as a process: how signals end it, and the three streams it is given."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from ..whole_file import remove_unfinished
from .shared import CANCELLED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_CURSOR = "\x1b[?25h"  # which a progress line hides

_interrupted: list[int] = []


def open_closed_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr was closed.

    Else the first file that is opened would get its number, and be written what is meant for the stream.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # print(file=None) would print on stdout
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # no locale's letters are missed so badly that a run should fail
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]


def heed_signals() -> None:
    """The first signal is a KeyboardInterrupt, so that the run tidies up; a second one ends it at once.

    What was ignored when the process began, by nohup or a shell's &, stays so.
    """
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    report = sys.unraisablehook

    def lost(raised: Any) -> None:
        """Python drops an exception raised in a callback of its own; a signal that came just then still counts."""
        if issubclass(raised.exc_type, KeyboardInterrupt):
            leave(CANCELLED)
        report(raised)

    sys.unraisablehook = lost


def _interrupt(number: int, frame: Any) -> None:
    if _interrupted:
        leave(CANCELLED)
    _interrupted.append(number)
    raise KeyboardInterrupt


def end(code: int) -> NoReturn:
    """End the process with this exit code, whatever signal comes now."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # nobody reads it; Python would try once more and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code:  # a run that ends early may leave a model at work
        leave(code)
    sys.exit(code)


def leave(code: int) -> NoReturn:
    """End the process at once, without waiting for what the model is at.

    Ending as usual would take the interpreter away from a thread inside of MLX, which aborts (exit code -6).
    """
    remove_unfinished()
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            os.write(2, SHOW_CURSOR.encode())
    os._exit(code)
