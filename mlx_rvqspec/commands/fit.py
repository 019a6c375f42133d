"""mlx-tts fit: a drafter for a model, and the rows per round that pay on this machine."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import read_config
from ..device_profile import Profile
from ..load import load_model, resolve
from ..sampling import MAX_SEED
from ..spec_decode.drafter import FILE as DRAFTER_FILE
from ..spec_decode.drafter import Drafter, cache_folder, find, save
from .shared import FILES, Dtype, Fault, Quiet, Tell, check_writable, progress, say, silent, usage_faults

if TYPE_CHECKING:  # not needed to speak
    from ..fit.collect import Frames
    from ..fit.device import Cost


def fit_option(help: str, metavar: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, **more)


def fit(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id; else the built-in voice.")] = None,
    text: Annotated[Path | None, fit_option("Texts to speak, one a line; else the package's own.", "FILE")] = None,
    audio: Annotated[Path | None, fit_option("Recordings to fit on instead, NAME.wav and NAME.txt.", "DIR")] = None,
    output: Annotated[Path | None, fit_option("Else where speak looks for it.", "FILE", "--output", "-o")] = None,
    frames: Annotated[int, fit_option("Frames of 80 ms to fit on (6000).", "N", min=32)] = 6000,
    steps: Annotated[int, fit_option("Steps of the optimiser (1000).", "N", min=1)] = 1000,
    seed: Annotated[int, fit_option("Of the speech and of the fit (0).", "N", min=0, max=MAX_SEED // 2)] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the drafter there is: only measure this device.")] = False,
    dtype: Dtype = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Make a model's drafter, with which it decodes several codes at a time, and measure what that brings here."""
    from ..fit.device import measure_here  # not needed to speak
    from ..fit.run import make_drafter

    with usage_faults():
        if output and output.suffix != ".safetensors":
            raise ValueError(f"{output} does not end in .safetensors, as a drafter must")
        folder = resolve(model)
        texts, gather = sources(folder, text, audio)
    with progress(not quiet) as show:
        loaded = load_model(folder, dtype=dtype)
        check_writable(cache_folder() / loaded.fingerprint)
        if keep:
            drafter, path = find(folder, loaded.multi_code_decoder, loaded.fingerprints, None), None
            if drafter is None:
                raise Fault(FILES, "there is no drafter to keep; without --keep one is made")
            spoken = gather(loaded, texts[1], 4, seed=seed)
        else:
            path = output or cache_folder() / loaded.fingerprint / DRAFTER_FILE
            check_writable(path.parent)
            drafter, spoken = make_drafter(
                loaded, texts, gather=gather, num_frames=frames, seed=seed, num_steps=steps, show=show
            )
            save(drafter, path)
        show("measuring rounds")
        costs, profile = measure_here(loaded, drafter, spoken)
    report(costs, profile, drafter, path, as_json, silent if quiet else say)


def sources(
    folder: Path, text: Path | None, audio: Path | None
) -> tuple[tuple[list[Any], list[Any]], Callable[..., "Frames"]]:
    """Texts or recordings to fit on, and to measure with, and what makes frames of them.

    Raises ValueError for files that are none, and where the model cannot speak what it would be fitted on.
    """
    from ..fit.collect import collect
    from ..fit.recordings import find_recordings, listen
    from ..fit.run import texts_for

    if audio and text:
        raise ValueError("both --audio and --text given; a drafter is fitted on one of them")
    if audio:
        recordings = find_recordings(audio)
        return (recordings[0::2], recordings[1::2]), listen
    if read_config(folder).tts_model_type == "base":
        raise ValueError("this is a Base model, which has no voice of its own; --audio fits on recordings")
    return texts_for(text), collect


def report(
    costs: "list[Cost]", profile: Profile, drafter: Drafter, path: Path | None, as_json: bool, tell: Tell
) -> None:
    """What was made and measured, as an object or as lines and the name of the file; path: None if nothing was made."""
    from ..fit.device import told

    if as_json:
        facts = {
            "drafter": path and str(path),
            "num_nodes": profile.num_nodes,
            "profile": asdict(profile),
            "costs": [asdict(cost) for cost in costs],
        }
        print(json.dumps(facts | dict(drafter.facts)))
        return
    for line in told(costs, profile):
        tell(line)
    if path:
        print(path)
