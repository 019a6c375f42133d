"""mlx-tts voices: the speakers of a model, and voices taken from recordings."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..config import read_config
from ..encoders import Encoders
from ..load import resolve
from ..recording import check_reference, read_recording
from ..text import prepare
from .shared import Json, Model, Quiet, check_new, progress, say, silent, usage_faults

CLONES = "voices make clones a voice from a recording"

app = typer.Typer()


@app.callback(invoke_without_command=True)
def voices(context: typer.Context, model: Model = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """List the speakers of a model, one a line; voices make clones one from a recording."""
    if context.invoked_subcommand:
        return
    config = read_config(resolve(model))
    if as_json:
        print(json.dumps(config.speakers))
    elif config.speakers:
        print("\n".join(config.speakers))
    else:
        how = CLONES if config.tts_model_type == "base" else "--instruct describes the voice"
        (silent if quiet else say)(f"{config.name} has no speakers: {how}")


@app.command()
def make(
    recording: Annotated[Path, typer.Argument(help="3 to 30 s of one person speaking: WAV, FLAC, MP3.")],
    text: Annotated[
        str | None, typer.Option(help="Its exact words: then it is continued, which comes closest.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Voice file; else the recording's name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    pause: Annotated[float, typer.Option(help="Seconds of silence to add, where it ends in a word.", min=0, max=5)] = 0,
    model: Model = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Make a voice from a recording, for speak --voice with the same Base model.

    mlx-tts voices make ref.wav --text "The words of ref.wav." --model Qwen/Qwen3-TTS-12Hz-0.6B-Base -o me.voice
    """
    path = output or Path(recording.name).with_suffix(".voice")
    with usage_faults():
        check_new(path, force)
        text = None if text is None else prepare(text)
        audio, sample_rate = read_recording(recording)
        check_reference(audio, sample_rate)
        folder = resolve(model)
        config = read_config(folder)
    with progress(not quiet):
        voice = Encoders(config, folder).make_voice(audio, sample_rate, text, pause_s=pause)
    voice.save(path)
    length_s = len(audio) / sample_rate
    facts = {"voice": str(path), "recording_s": length_s, "text": text, "model": voice.model_name}
    if as_json:
        print(json.dumps(facts | {"frames": 0 if voice.codes is None else len(voice.codes)}))
        return
    how = "the speaker alone; with --text it would be continued" if text is None else "with its words"
    (silent if quiet else say)(f"{length_s:.1f} s of {recording}, {how}, for {voice.model_name}")
    print(path)
