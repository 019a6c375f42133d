"""mlx-tts convert: a quantised copy of a model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..conversion import convert as write_copy
from ..load import resolve
from ..quantisation import level
from .shared import Json, progress, say, usage_faults

FEW_BITS = 4  # from here down the codes change much: bench/results/quantisation.json


def convert(
    bits: Annotated[int, typer.Option("--quantize", "-q", help="Bits of a weight: 8, 6 or 4.", metavar="BITS")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder.", metavar="DIR")],
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id; else the built-in voice.")] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="Those bits for the bulk, finer ones for the rest.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only faults on stderr.")] = False,  # -q is the bits
    as_json: Json = False,
) -> None:
    """Make a quantised copy of a model: smaller, and faster where reading weights takes the time.

    mlx-tts convert Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice -q 8 -o qwen-8bit
    """
    with usage_faults():
        level(bits)
        folder = resolve(model)
        with progress(not quiet) as show:
            show("quantising")
            write_copy(folder, output, bits=bits, mixed=mixed)
    if as_json:
        print(json.dumps({"model": str(output), "source": str(folder), "bits": bits, "mixed": mixed}))
        return
    if bits <= FEW_BITS and not mixed and not quiet:
        say("4 bits change what is said and how; listen to it, or take -q 8, or --mixed")
    print(output)
