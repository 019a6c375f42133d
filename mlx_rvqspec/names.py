"""Names that people type: the one they may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

PUBLISHED = tuple(  # on the hub, of the kind that can be loaded
    f"Qwen/Qwen3-TTS-12Hz-{name}"
    for name in ("0.6B-Base", "0.6B-CustomVoice", "1.7B-Base", "1.7B-CustomVoice", "1.7B-VoiceDesign")
)


def nearest(wanted: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean NAME?", or nothing where none is near."""
    near = _near(wanted, names)
    return f"; did you mean {near}?" if near else ""


def nearest_path(path: Path) -> str:
    """The same for a path that does not exist, among what lies in its folder."""
    try:
        near = _near(path.name, [entry.name for entry in path.parent.iterdir()])
    except (OSError, ValueError):  # no folder, or no path at all
        near = ""
    return f"; did you mean {path.with_name(near)}?" if near else ""


def _near(wanted: str, names: Iterable[str]) -> str:
    by_key = {name.casefold(): name for name in names}
    return next((by_key[key] for key in get_close_matches(wanted.casefold(), by_key, 1)), "")
