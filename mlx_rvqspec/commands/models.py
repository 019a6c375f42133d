"""mlx-tts download and verify: the files of a model, brought here and checked."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..hub import cached, fetch, is_id
from ..integrity import Finding, examine, remove
from ..load import resolve
from .shared import FILES, Fault, Json, Quiet, progress, say, silent, usage_faults


def download(
    model: Annotated[str, typer.Argument(help="Hub id, such as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice.")],
    repair: Annotated[bool, typer.Option("--repair", help="Fetch anew what is damaged here.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Bring a model from the hub to this machine, where speak finds it without a network.

    mlx-tts download Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice
    """
    with usage_faults():
        if not is_id(model):
            raise ValueError(f"{model} is no hub id such as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice")
    folder = cached(model) if repair else None
    tell = silent if quiet or as_json else say
    if folder:
        damaged = [finding for finding in look(folder, quiet) if finding.fault]
        remove(folder, damaged)
        for finding in damaged:
            tell(f"fetching {finding.name} anew: {finding.fault}")
    folder = fetch(model)
    report(look(folder, quiet), str(folder), as_json, quiet)
    if not as_json:
        print(folder)


def verify(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id; else the built-in voice.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check the files of a model without loading it: contents, headers, and hashes where the hub has given them.

    mlx-tts verify Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice
    """
    found = cached(model) if model and is_id(model) and not Path(model).is_dir() else None
    folder = found or resolve(model)
    report(look(folder, quiet), model or "the built-in voice", as_json, quiet)


def look(folder: Path, quiet: bool) -> list[Finding]:
    with progress(not quiet) as show:
        return list(examine(folder, show))


def report(findings: list[Finding], name: str, as_json: bool, quiet: bool) -> None:
    """Tell what was found; exits with FILES if a file is damaged."""
    damaged = [finding for finding in findings if finding.fault]
    if as_json:
        files = [{"name": f.name, "fault": f.fault, "hashed": f.hashed} for f in findings]
        print(json.dumps({"model": name, "whole": not damaged, "files": files}))
    for finding in findings if not (as_json or quiet) else ():
        say(f"{'DAMAGED' if finding.fault else 'whole':8} {finding.name}{', hash compared' if finding.hashed else ''}")
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise Fault(FILES, f"{damaged[0].fault}{more}; a hub id is mended by mlx-tts download --repair")
