"""What ``speak`` has to do with long texts: where they come from, how they are divided, how long they take."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..delivery import MOST_CARRIED
from ..passages import MAX_PAUSE_S, split
from ..spec_decode.stats import Stats
from ..text import read_bytes, speakable
from .shared import Tell, option

Text = Annotated[
    str | None, typer.Argument(metavar="TEXT|-", help="What to say; - reads it from stdin.", show_default=False)
]
File = Annotated[Path | None, option("Text", "Read the text from a file, a book for instance.", "--file", "-f")]
Clean = Annotated[bool, option("Text", "Leave out markdown, emoji and web addresses.", "--clean")]
DryRun = Annotated[bool, option("Text", "Print the passages the text is read in, and end.", "--dry-run")]
PassageS = Annotated[float, option("Text", "Longest passage in seconds, roughly (15).", min=1, metavar="S")]
PauseMs = Annotated[
    int, option("Text", "Pause between paragraphs (600).", min=0, max=round(1000 * MAX_PAUSE_S), metavar="MS")
]
Carry = Annotated[
    int, option("Text", "Passages before one that it goes on from (0: each stands alone).", min=0, max=MOST_CARRIED)
]
OnRunaway = Annotated[
    Literal["keep", "trim", "retry", "error"],
    option("Text", "When a passage does not end by itself: keep it, trim its silence, retry or fail (keep)."),
]


def read(text: str | None, file: Path | None) -> str:
    """The text given, from stdin or from a file; bytes that are no UTF-8 are left for ``prepare`` to refuse.

    Raises ValueError unless there is exactly one source, OSError for a file that cannot be read.
    """
    if (text is None) == (file is None):
        raise ValueError("give either a TEXT, - for stdin, or a file with --file")
    if file is None and text != "-":
        return text or ""
    if file is None and sys.stdin is None:
        raise ValueError("stdin is closed; give a TEXT, or a file with --file")
    if file is None:
        raw = read_bytes(sys.stdin.buffer)
    else:
        with file.open("rb") as opened:
            raw = read_bytes(opened)
    return raw.decode("utf-8", "surrogateescape")


def show_passages(text: str, pauses: dict[str, Any], as_json: bool, tell: Tell) -> None:
    """The passages on stdout, one a line, with an empty line between paragraphs; how long they take on stderr.

    pauses: options of ``passages.split``.
    """
    passages = split(text, **pauses)
    spoken = [passage for passage in passages if speakable(passage.text)]
    total_s = sum(passage.ordinary_s + passage.pause_s for passage in spoken)
    if as_json:
        rows = [{"begin": p.begin, "end": p.end, "text": p.text, "pause_s": p.pause_s} for p in passages]
        print(json.dumps({"passages": rows, "ordinary_s": round(total_s, 1)}))
        return
    end = 0
    for passage in passages:
        print("\n" * ("\n\n" in text[end : passage.begin]) + " ".join(passage.text.split()))
        end = passage.end
    tell(f"passages: {len(spoken)}, about {duration(total_s)} of speech")


def duration(seconds: float) -> str:
    """Seconds for people: 40 s, 3 min, 2 h 5 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def progress_of(stats: Stats) -> str:
    """How far a run is; for several passages also how much longer it takes."""
    line = f"{stats.audio_s:.1f} s of speech, RTF {stats.realtime_factor:.2f}"
    if stats.num_passages == 1:
        return line
    number = min(len({attempt.passage for attempt in stats.attempts}) + 1, stats.num_passages)
    left = stats.total_s * (1 - stats.share) / stats.share
    return f"{line}, passage {number} of {stats.num_passages}, {duration(left)} left"


def ended_well(reason: str | None, on_runaway: str) -> bool:
    """Whether speech ended as it should: by itself, or in silence that was asked to be trimmed."""
    return reason == "stop" or on_runaway == "trim" and reason == "silence"


def runaways(stats: Stats) -> list[str]:
    """A line for each attempt that did not end by itself, for people."""
    return [
        f"passage {attempt.passage + 1} with seed {attempt.seed} ended by {attempt.finish_reason} "
        f"after {attempt.frames} frames"
        for attempt in stats.attempts
        if attempt.finish_reason != "stop"
    ]
