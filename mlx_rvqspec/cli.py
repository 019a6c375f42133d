"""The command line, mlx-tts. Results go to stdout, everything for people to stderr.

What can be checked without the weights is checked before they are loaded. Exit codes: 0 ok, 2 usage, 3 model or
files, 4 generation, 130 cancelled (SIGINT or SIGTERM), 141 when the reader of a pipe has gone.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from .audio import FORMATS, Player, Write, choose_format, open_file, pipe_writer
from .commands.batch import batch
from .commands.bench import bench
from .commands.convert import convert
from .commands.fit import fit
from .commands.info import info
from .commands.inspect import check_folder, inspect, write_report
from .commands.models import download, verify
from .commands.overview import Overview
from .commands.passages import (
    Carry,
    Clean,
    DryRun,
    File,
    OnRunaway,
    PassageS,
    PauseMs,
    Text,
    ended_well,
    progress_of,
    read,
    runaways,
    show_passages,
)
from .commands.process import end, heed_signals, open_closed_streams
from .commands.serve import serve
from .commands.shared import (
    CANCELLED,
    FILES,
    GENERATION,
    PIPE_CLOSED,
    USAGE,
    Dtype,
    Fault,
    Json,
    Local,
    Model,
    Quiet,
    Tell,
    check_new,
    option,
    progress,
    say,
    silent,
    usage_faults,
)
from .commands.speaker import Instruct, Language, Speaker, VoiceFile, check_voice
from .commands.voices import app as voices_app
from .config import ModelError, read_config
from .delivery import MAX_CHUNK_FRAMES, Chunk
from .generate import choose_seed, load
from .load import resolve
from .names import nearest_path
from .passages import PASSAGE_S, check_pauses
from .report.record import Recorder
from .sampling import MAX_SEED, Sampling
from .text import clean as clean_text
from .text import prepare
from .utterance import GenerationError
from .version import __version__

app = typer.Typer(pretty_exceptions_enable=False, cls=Overview)

Output = Annotated[
    str | None, option("Output", "File, or - for stdout; else play, or speech.wav.", "--output", "-o", metavar="FILE|-")
]
Format = Annotated[
    str | None, option("Output", f"One of {', '.join(FORMATS)}; else the file's suffix.", metavar="NAME")
]
Force = Annotated[bool, option("Output", "Replace an existing file.", "--force")]
KeepPartial = Annotated[bool, option("Output", "Keep what was spoken when interrupted.", "--keep-partial")]
Play = Annotated[bool, option("Output", "Play while speaking, also with -o.", "--play")]
Report = Annotated[
    Path | None, option("Output", "Folder for pictures of the run: report.html, codes.npz.", "--report", metavar="DIR")
]
ChunkFrames = Annotated[
    int | None,
    option("Output", "Frames of 80 ms in a chunk; else as measured.", min=1, max=MAX_CHUNK_FRAMES, metavar="N"),
]
Decode = Annotated[Literal["auto", "plain", "spec"], option("Decoding", "Speculative or not; the codes are the same.")]
Drafter = Annotated[str | None, option("Decoding", "Drafter file, or none; else the model's own.", metavar="FILE")]
TextFeed = Annotated[Literal["full", "stream"] | None, option("Decoding", "Text at once, or a token per frame.")]
Seed = Annotated[
    int | None, option("Decoding", "The same seed gives the same speech.", min=0, max=MAX_SEED, metavar="N")
]
Frames = Annotated[int | None, option("Decoding", "Stop after this many frames of 80 ms.", metavar="N")]
Greedy = Annotated[bool, option("Decoding", "The likeliest code each time, no sampling.", "--greedy")]
First = Annotated[float | None, option("Decoding", "For the first code of a frame.", metavar="X")]
FirstTopK = Annotated[int | None, option("Decoding", "For the first code of a frame; 0 is off.", metavar="N")]
Rest = Annotated[float | None, option("Decoding", "For the other 15 codes.", metavar="X")]
RestTopK = Annotated[int | None, option("Decoding", "For the other 15 codes; 0 is off.", metavar="N")]


@app.command()
def speak(
    text: Text = None,
    file: File = None,
    clean: Clean = False,
    dry_run: DryRun = False,
    passage_s: PassageS = PASSAGE_S,
    paragraph_pause_ms: PauseMs = 600,
    on_runaway: OnRunaway = "keep",
    carry: Carry = 0,
    output: Output = None,
    format: Format = None,
    force: Force = False,
    keep_partial: KeepPartial = False,
    play: Play = False,
    pictures: Report = None,
    chunk_frames: ChunkFrames = None,
    quiet: Quiet = False,
    as_json: Json = False,
    model: Model = None,
    local_files_only: Local = False,
    speaker: Speaker = None,
    voice: VoiceFile = None,
    language: Language = "auto",
    instruct: Instruct = None,
    dtype: Dtype = None,
    decode: Decode = "auto",
    drafter: Drafter = None,
    text_feed: TextFeed = None,
    seed: Seed = None,
    max_frames: Frames = None,
    greedy: Greedy = False,
    temperature: First = None,
    top_k: FirstTopK = None,
    top_p: First = None,
    repetition_penalty: First = None,
    subtalker_temperature: Rest = None,
    subtalker_top_k: RestTopK = None,
    subtalker_top_p: Rest = None,
) -> None:
    """Say TEXT, of any length, into a file, a pipe or the loudspeaker.

    mlx-tts speak "Hello." -o hello.wav

    echo "Hello." | mlx-tts speak - -o - | aplay
    """
    settings = {"max_frames": max_frames, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    settings |= {"repetition_penalty": repetition_penalty, "subtalker_temperature": subtalker_temperature}
    settings |= {"subtalker_top_k": subtalker_top_k, "subtalker_top_p": subtalker_top_p}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= {"do_sample": False, "subtalker_do_sample": False} if greedy else {}
    how: dict[str, Any] = {"speaker": speaker, "language": language, "instruct": instruct, "text_feed": text_feed}
    how |= {"decode": None if decode == "auto" else decode, "chunk_frames": chunk_frames}
    pauses: dict[str, Any] = {"passage_s": passage_s, "paragraph_pause_s": paragraph_pause_ms / 1000}
    how["seed"] = choose_seed(seed)
    tell = silent if quiet or as_json else say
    with usage_faults():
        format = check_output(output, format, force)
        if pictures:
            check_folder(pictures, force)
        check_pauses(**pauses)
        words = read(text, file)
        words = prepare(clean_text(words) if clean else words)
        Sampling(**settings)
        folder = resolve(model, local_files_only=local_files_only)
        config = read_config(folder)
        chosen = check_voice(config, folder, speaker, voice, language, instruct)
        how["voice"] = chosen.clone
    if dry_run:
        return show_passages(words, pauses, as_json, tell)
    hint(words, chosen.language, tell)
    with ExitStack() as stack:
        writes, where = open_outputs(stack, output, format, play, config.sample_rate, how["seed"], tell)
        show = stack.enter_context(progress(not quiet))
        engine = load(folder, dtype=dtype, drafter=drafter)
        with usage_faults():
            how |= {"sampling": replace(engine.sampling, **settings), "on_runaway": on_runaway, "carry": carry}
            chunks = engine.stream(words, **how, **pauses)
        recorder = Recorder()
        last = drain(recorder.watch(chunks) if pictures else chunks, writes, show, keep_partial)
    if pictures:
        told = {"text": words, "model": str(model or "built-in voice"), **chosen.facts()}
        tell(f"pictures: {write_report(recorder.record(config.sample_rate, told), where, pictures)}")
    facts = {"output": where, **chosen.facts(), "voice": voice, "why_plain": engine.why_plain}
    report(last, facts, on_runaway, as_json, tell)


def hint(text: str, language: str, tell: Tell) -> None:
    if language == "auto" and not any(map(str.isalpha, text)):
        tell("no letters in the text to tell its language by; --language says how to read it")


def check_output(output: str | None, format: str | None, force: bool) -> str:
    """The format for `output`. Raises ValueError where ``open_outputs`` would fail, or overwrite unasked."""
    if output == "-":
        if sys.stdout is None or sys.stdout.isatty():
            raise ValueError("stdout is a terminal or closed; pipe it into a program, or name a file with -o")
    elif output is not None:
        if output.endswith("/"):
            raise ValueError(f"{output} names a folder; name a file with -o")
        check_new(Path(output), force)
    return choose_format(output or f"speech.{format or 'wav'}", format)


def open_outputs(
    stack: ExitStack, output: str | None, format: str, play: bool, sample_rate: int, seed: int, tell: Tell
) -> tuple[list[Write], str]:
    """Where the samples go, and its name: `output`, or else the loudspeaker, or else speech.wav (speech2.wav...).

    Files are entered last, so that they are complete before the last sound is waited for.
    """
    writes, where = [], "loudspeaker"
    if play or output is None:
        try:
            writes.append(stack.enter_context(Player(sample_rate)).write)
        except RuntimeError as error:
            if play:
                raise Fault(USAGE, str(error)) from error
            names = (f"speech{number}.{format}" for number in chain([""], count(2)))
            output = next(name for name in names if not Path(name).exists())
            tell(f"{error}; writing {output}")
    if output == "-":
        writes.append(pipe_writer(sys.stdout.buffer, sample_rate, format))
        where = "stdout"
    elif output is not None:
        writes.append(
            stack.enter_context(open_file(output, sample_rate, format=format, comment=f"mlx-tts seed {seed}"))
        )
        where = output
    return writes, where


def drain(chunks: Iterator[Chunk], writes: list[Write], show: Tell, keep_partial: bool) -> Chunk:
    """The last chunk, after every chunk's audio went to every writer; keep_partial: an interrupt makes it the last."""
    last = None
    try:
        for last in chunks:
            for write in writes:
                write(last.audio)
            show(progress_of(last.stats))
    except KeyboardInterrupt:
        if last is None or not keep_partial:
            raise
        return replace(last, is_final=True, finish_reason="cancelled")
    assert last is not None and last.is_final
    return last


def report(last: Chunk, facts: dict[str, Any], on_runaway: str, as_json: bool, tell: Tell) -> None:
    """The line, or object, that sums a run up; exits with GENERATION if the speech did not end as it should."""
    stats = last.stats
    if as_json:
        facts |= {"finish_reason": last.finish_reason}
        names = ("audio_s", "realtime_factor", "codes_per_round", "acceptance", "acceptance_by_depth")
        measured = {name: getattr(stats, name) for name in names}
        print(json.dumps(facts | asdict(stats) | measured), file=sys.stderr if facts["output"] == "stdout" else None)
    else:
        tell(
            f"{facts['output']}: {stats.frames} frames, {stats.audio_s:.2f} s of speech in {stats.total_s:.2f} s, "
            f"RTF {stats.realtime_factor:.2f}, first sound after {stats.time_to_first_audio_s:.2f} s, "
            f"{stats.codes_per_round:.2f} codes per round ({stats.decode}), seed {stats.seed}"
        )
    for line in runaways(stats):
        tell(line)
    if last.finish_reason == "cancelled":
        raise typer.Exit(CANCELLED)
    if not ended_well(last.finish_reason, on_runaway):
        what = f"ended by {last.finish_reason} after {stats.frames} frames, before the text did"
        raise Fault(GENERATION, f"{what}; the sound was kept; try another --seed, --on-runaway or --max-frames")


app.command(short_help="Show a model, and what would run here.")(info)
app.command(short_help="Say many texts into files, resumably.")(batch)
app.command(short_help="Answer requests over HTTP, as OpenAI's API.")(serve)
app.command(short_help="Make a model's drafter, and measure what it brings here.")(fit)
app.add_typer(voices_app, name="voices", short_help="List a model's speakers; voices make clones one.")
app.command(short_help="Bring a model from the hub to this machine, or repair it.")(download)
app.command(short_help="Check the files of a model without loading it.")(verify)
app.command(short_help="Make a quantised copy of a model.")(convert)
app.command(short_help="Show a sound file or a run in pictures.")(inspect)
app.command(short_help="Measure a model on this machine.")(bench)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Text to speech with Qwen3-TTS on MLX. Try: mlx-tts speak "Hello." -o hello.wav"""
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run() -> int:
    """Run the command line; its exit code. A fault is one line on stderr."""
    try:
        code = app(standalone_mode=False, prog_name="mlx-tts") or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here a full disk or a reader that has gone can still be told
        return code
    except typer.Abort:  # a KeyboardInterrupt, in older versions of typer
        return CANCELLED
    except BrokenPipeError:
        return PIPE_CLOSED
    except Fault as error:
        code, fault = error.code, str(error)
    except GenerationError as error:
        code, fault = GENERATION, str(error)
    except FileNotFoundError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename else None
        code, fault = FILES, f"{path} does not exist{nearest_path(path)}" if path else str(error)
    except (ModelError, OSError) as error:
        code, fault = FILES, str(error)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer's own exceptions have: it is the command line
            raise
        code, fault = USAGE, error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    line = " ".join(fault.split())
    say(json.dumps({"error": line, "exit_code": code}) if "--json" in sys.argv else f"mlx-tts: {line}")
    return code


def main() -> NoReturn:
    """mlx-tts as a process: ``run``, and an end by signals as designed."""
    open_closed_streams()
    heed_signals()
    try:
        code = run()
    except KeyboardInterrupt:
        code = CANCELLED
    end(code)
