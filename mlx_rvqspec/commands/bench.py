"""mlx-tts bench: how fast a model is on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..config import read_config
from ..load import resolve
from ..names import nearest
from ..sampling import MAX_SEED
from ..whole_file import replacing
from .shared import Dtype, Json, Quiet, progress, usage_faults


def bench(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id; else the built-in voice.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file.", metavar="FILE")] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="Only these of speech, frame, scaling.", metavar="NAME")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats: a look, not figures to publish.")] = False,
    drafter: Annotated[str | None, typer.Option(help="Drafter file, or none.", metavar="FILE")] = None,
    seed: Annotated[int, typer.Option(help="Of the speech (0).", metavar="N", min=0, max=MAX_SEED // 2)] = 0,
    dtype: Dtype = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a model on this machine: Markdown on stdout, all the figures with --json or in a file with -o.

    mlx-tts bench -o mac.json > mac.md
    """
    from ..bench.markdown import report  # not needed to speak
    from ..bench.run import SUITES
    from ..bench.run import bench as measure
    from ..fit.collect import all_voices

    with usage_faults():
        for name in suite or ():
            if name not in SUITES:
                raise ValueError(f"there is no suite {name!r}; expected {', '.join(SUITES)}{nearest(name, SUITES)}")
        if output and not output.parent.is_dir():
            raise ValueError(f"there is no folder {output.parent}; create it first")
        if output and output.exists():
            raise ValueError(f"{output} exists; name a new file")
        folder = resolve(model)
        all_voices(read_config(folder))
    with progress(not quiet) as show:
        result = measure(
            folder, suites=suite or SUITES, dtype=dtype, drafter=drafter, quick=quick, seed=seed, show=show
        )
    if output:
        with replacing(output) as file:
            file.write(json.dumps(result, indent=1).encode() + b"\n")
    print(json.dumps(result) if as_json else report(result))
