"""mlx-tts batch: many texts into a folder of files, again and again until all are there."""

import json
import re
import time
from dataclasses import asdict, dataclass, replace
from glob import escape
from pathlib import Path
from typing import Annotated, Any, Literal

import mlx.core as mx
import typer

from ..audio import open_file
from ..batch import Input
from ..config import ModelConfig, read_config
from ..generate import BATCH_SIZE, Engine, load
from ..load import fingerprint, resolve
from ..manifest import Record, Row, groups_of, key_of, read_rows
from ..passages import PASSAGE_S, check_pauses, ordinary_s
from ..sampling import MAX_SEED, Sampling
from ..text import prepare
from ..version import __version__
from .passages import Carry, OnRunaway, PassageS, PauseMs, duration, ended_well, read
from .shared import (
    GENERATION,
    Dtype,
    Fault,
    Json,
    Local,
    Model,
    Quiet,
    Tell,
    option,
    progress,
    say,
    silent,
    usage_faults,
)
from .speaker import Instruct, Language, Speaker, VoiceFile, check_voice

Rows = Annotated[str, typer.Argument(metavar="FILE.jsonl|-", help='One {"text": "..."} a line.', show_default=False)]
Folder = Annotated[Path, option("Output", "Folder for the files; made if need be.", "--output", "-o", metavar="DIR")]
Format = Annotated[Literal["wav", "flac", "pcm"], option("Output", "Of the files (wav).")]
Shard = Annotated[str | None, option("Batch", "Make part I of N only, as in 1/4.", metavar="I/N")]
Size = Annotated[int, option("Batch", f"Texts spoken side by side ({BATCH_SIZE}).", min=1, metavar="N")]
Seed = Annotated[int, option("Decoding", "Of rows that have none (0).", min=0, max=MAX_SEED, metavar="N")]
Frames = Annotated[int | None, option("Decoding", "Stop each text after as many frames of 80 ms.", metavar="N")]


@dataclass
class Counts:
    """What became of the rows of this run: files made, files there before, errors, and which ended unbidden."""

    rows: int
    made: int = 0
    kept: int = 0
    failed: int = 0
    runaways: int = 0


def batch(
    rows: Rows,
    output: Folder,
    format: Format = "wav",
    shard: Shard = None,
    batch_size: Size = BATCH_SIZE,
    model: Model = None,
    local_files_only: Local = False,
    speaker: Speaker = None,
    voice: VoiceFile = None,
    language: Language = "auto",
    instruct: Instruct = None,
    dtype: Dtype = None,
    seed: Seed = 0,
    max_frames: Frames = None,
    passage_s: PassageS = PASSAGE_S,
    paragraph_pause_ms: PauseMs = 600,
    on_runaway: OnRunaway = "keep",
    carry: Carry = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say every row of a JSON Lines file into a file of its own. Run again, it makes what is missing.

    A row has "text", and may have "file", "seed", "speaker", "voice", "language" and "instruct"; the options of these
    names are for rows that have none.

    mlx-tts batch texts.jsonl -o speech
    """
    tell = silent if quiet or as_json else say
    defaults = {"speaker": speaker, "voice": voice, "language": language, "instruct": instruct, "seed": seed}
    how: dict = {"passage_s": passage_s, "paragraph_pause_s": paragraph_pause_ms / 1000, "on_runaway": on_runaway}
    how["carry"] = carry
    with usage_faults():
        text = read(None if rows != "-" else rows, None if rows == "-" else Path(rows))
        wanted = read_rows(text.splitlines(), format, defaults)
        part, num_parts = shard_of(shard)
        Sampling(max_frames=max_frames)
        check_pauses(passage_s, paragraph_pause_ms / 1000)
        folder = resolve(model, local_files_only=local_files_only)
        config = read_config(folder)
        check_rows(wanted, config, folder)
    settings = {"model": fingerprint(folder), "dtype": dtype, "version": __version__, "format": format}
    settings |= {"max_frames": max_frames, "batch_size": batch_size, **how}
    output.mkdir(parents=True, exist_ok=True)
    record = Record(output, f"-{part}-of-{num_parts}" if num_parts > 1 else "")
    lengths = [ordinary_s(row.text) for row in wanted]
    groups = groups_of(lengths, batch_size)[part - 1 :: num_parts]
    counts, engine = Counts(sum(map(len, groups))), None
    start, done_s = time.perf_counter(), 0.0
    with progress(not quiet) as show:
        for group in groups:
            members = [wanted[number] for number in group]
            todo = [row for row in members if not keep(record, row, key_of(row, settings), counts, on_runaway)]
            if not todo:
                continue
            engine = engine or load(folder, dtype=dtype)
            options = how | {"sampling": replace(engine.sampling, max_frames=max_frames), "batch_size": batch_size}
            # all of the group, though some may be there: what is spoken together moves the last digit of a score
            make(engine, members, todo, options, record, settings, counts, tell)
            done_s += sum(lengths[number] for number in group)
            left_s = sum(lengths[n] for later in groups[groups.index(group) + 1 :] for n in later)
            left_s *= (time.perf_counter() - start) / done_s
            show(f"{counts.made + counts.kept + counts.failed} of {counts.rows} files, {duration(left_s)} left")
    summary(counts, output, as_json, tell)


def shard_of(shard: str | None) -> tuple[int, int]:
    """Part and number of parts: as given, or else by process under mlx.launch. Raises ValueError for anything else."""
    if shard is None:
        world = mx.distributed.init()  # alone where nothing was launched; no process waits for another one
        return world.rank() + 1, world.size()
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"shard is {shard!r}; expected I/N with I from 1 to N, such as 1/4")
    return int(match[1]), int(match[2])


def check_rows(rows: list[Row], config: ModelConfig, folder: Path) -> None:
    """Refuse the batch for the first row the model cannot speak: hours later would be a bad time to say so."""
    for row in rows:
        try:
            prepare(row.text)
            check_voice(config, folder, row.speaker, row.voice, row.language, row.instruct)
        except ValueError as error:
            raise ValueError(f"{row.file}: {error}") from error


def keep(record: Record, row: Row, key: str, counts: Counts, on_runaway: str) -> bool:
    """Whether the row's file is there and right; counts it."""
    entry = record.made(row, key)
    if entry:
        counts.kept += 1
        counts.runaways += not ended_well(entry.get("finish_reason"), on_runaway)
    return bool(entry)


def make(
    engine: Engine,
    members: list[Row],
    todo: list[Row],
    options: dict[str, Any],
    record: Record,
    settings: dict[str, Any],
    counts: Counts,
    tell: Tell,
) -> None:
    """Speak a group of rows and write the files of those in ``todo``; counts them."""
    for row in todo:
        for left_over in record.folder.glob(f"{escape(row.file)}.*.part"):  # of a run that was killed
            left_over.unlink(missing_ok=True)
    inputs = [Input(row.text, row.speaker, row.voice, row.language, row.instruct, row.seed) for row in members]
    for row, speech in zip(members, engine.speak_batch(inputs, **options)):
        if row not in todo:
            continue
        if isinstance(speech, Exception):
            counts.failed += 1
            tell(f"{row.file}: {speech}")
            continue
        with open_file(record.folder / row.file, speech.sample_rate, comment=f"mlx-tts seed {row.seed}") as write:
            write(speech.audio)
        facts = {"seed": row.seed, "frames": len(speech.codes), "finish_reason": speech.finish_reason}
        record.add(row, key_of(row, settings), facts | {"attempts": [asdict(a) for a in speech.stats.attempts]})
        counts.made += 1
        if not ended_well(speech.finish_reason, options["on_runaway"]):
            counts.runaways += 1
            tell(f"{row.file}: ended by {speech.finish_reason}, not by itself; the sound was kept")


def summary(counts: Counts, output: Path, as_json: bool, tell: Tell) -> None:
    """What was done, on stdout as JSON or on stderr; exits with GENERATION if something is missing or ran away."""
    if as_json:
        print(json.dumps(asdict(counts) | {"output": str(output)}))
    tell(f"{output}: {counts.made} files made, {counts.kept} there before, {counts.failed} failed")
    if counts.failed or counts.runaways:
        raise Fault(
            GENERATION, f"{counts.failed} of {counts.rows} rows failed, {counts.runaways} did not end by themselves"
        )
