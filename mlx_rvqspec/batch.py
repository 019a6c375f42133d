"""Several texts spoken side by side: every text's codes are those of a run of its own, the calls are shared.

The rows of the CodeDecoder and the MultiCodeDecoder are passages, padded on the left; the SpeechDecoder takes them one
by one, so equal codes are equal samples. What is spoken together depends on the jobs alone, never on the clock.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .cloned_voice import ClonedVoice
from .delivery import Account, Chunk, Job
from .guard import NUM_ATTEMPTS, Piece, Trimmer, attempt_seed
from .reading import Context, Reader, Row, runaway
from .utterance import GenerationError, Utterance


@dataclass(frozen=True)
class Input:
    """One text of a batch, and what is its own: see ``Engine.stream``. seed: None for the batch's."""

    text: str
    speaker: str | None = None
    voice: ClonedVoice | str | Path | None = None
    language: str = "auto"
    instruct: str | None = None
    seed: int | None = None


@dataclass
class Task:
    """One passage of one job: what has been made of it, and the attempts that were given up."""

    job: int
    passage: int
    max_frames: int | None = None
    attempt: int = 0
    failed: list[tuple[int, int, str]] = field(default_factory=list)  # seed, frames, reason
    piece: Piece | None = None


def read_batch(
    reader: Reader, jobs: Sequence[Job], batch_size: int
) -> Generator[tuple[int, list[Chunk] | GenerationError] | None, None, None]:
    """The number and the chunks of each job, or why there are none, as it is done; None while all are being read.

    All jobs have the same decode and sampling settings. At most batch_size passages are spoken at a time, the longest
    ones first, since a batch takes as long as its longest row.
    """
    start = time.perf_counter()
    limits = [job.how.sampling.max_frames for job in jobs]
    tasks = {
        number: [Task(number, n, limits[number]) for n in range(len(job.passages))] for number, job in enumerate(jobs)
    }
    ready = [task for several in tasks.values() for task in several if task.passage == 0 or not waits(jobs[task.job])]
    waiting = sorted(ready, key=lambda task: -jobs[task.job].passages[task.passage].ordinary_s)
    while waiting:
        together, waiting = waiting[:batch_size], waiting[batch_size:]
        errors: dict[int, GenerationError] = {}
        for _ in _speak(reader, jobs, tasks, together, errors):
            yield None
        waiting += [task for task in together if task.piece is None and task.job not in errors]
        waiting += [
            task for done in together if done.piece for task in _following(jobs[done.job], tasks[done.job], done)
        ]
        waiting = [task for task in waiting if task.job not in errors]
        for number in sorted({task.job for task in together} & tasks.keys()):
            if number in errors:
                yield number, errors[number]
                del tasks[number]
            elif all(task.piece for task in tasks[number]):
                yield number, _chunks(reader, jobs[number], tasks.pop(number), start)


def waits(job: Job) -> bool:
    """Whether a passage waits for the one before it: to hear it, or to know what it leaves of a limit for them all."""
    return job.how.carry > 0 or job.how.sampling.max_frames is not None


def _following(job: Job, tasks: list[Task], done: Task) -> list[Task]:
    """The next task of a text, if it has waited for the one that is done; without room for it, it and the rest go."""
    if not waits(job) or done.passage + 1 == len(tasks):
        return []
    assert done.piece
    if done.max_frames is not None:
        left = done.max_frames - len(done.piece.codes)
        if not left:
            del tasks[done.passage + 1 :]
            return []
        tasks[done.passage + 1].max_frames = left
    return [tasks[done.passage + 1]]


def _context(job: Job, tasks: Sequence[Task]) -> Context:
    """What the passage behind these is spoken in, all of which are done if there is any."""
    context = Context(job.how.carry)
    for task in tasks[max(0, len(tasks) - job.how.carry) :]:
        assert task.piece
        context.add(job.passages[task.passage], task.piece.codes, task.piece.reason)
    return context


def _speak(
    reader: Reader,
    jobs: Sequence[Job],
    of_jobs: dict[int, list[Task]],
    tasks: Sequence[Task],
    errors: dict[int, GenerationError],
) -> Iterator[None]:
    """Speak an attempt at each task, side by side; fills in their pieces, or errors by job."""
    rows: list[Row] = []
    for task in tasks:
        job = jobs[task.job]
        context = _context(job, of_jobs[task.job][: task.passage])
        rows.append(reader.row(job, task.passage, attempt_seed(job.seed, task.attempt), task.max_frames, context))
    made: list[list[Piece]] = [[] for _ in tasks]
    job = jobs[tasks[0].job]
    utterance = Utterance(
        reader.steps_for(job.how.sampling, job.how.decode), [row.line for row in rows], job.how.sampling
    )
    for frames in utterance.frames():
        for frame in frames:
            task = tasks[frame.line]
            try:
                if frame.error:
                    raise frame.error
                piece = rows[frame.line].add(frame)
            except GenerationError as error:
                errors.setdefault(task.job, error)
                utterance.end(frame.line)
                continue
            if piece:
                made[frame.line].append(piece)
                if piece.reason:
                    utterance.end(frame.line)
        yield
    for task, row, pieces in zip(tasks, rows, made):
        if task.job not in errors:
            try:
                _settle(jobs[task.job], task, row, pieces)
            except GenerationError as error:
                errors[task.job] = error


def _settle(job: Job, task: Task, row: Row, pieces: list[Piece]) -> None:
    """Take an attempt for the task's result, or count it as failed, by the job's rule for runaways."""
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole.plus(piece)
    if job.how.on_runaway == "trim":
        kept = Trimmer(row.watch).take(whole)
        assert kept
        whole = kept
    if whole.reason != "stop" and job.how.on_runaway == "error":
        raise GenerationError(f"{runaway(whole.reason, job.passages[task.passage].text)}; try another seed")
    if whole.reason != "stop" and job.how.on_runaway == "retry" and task.attempt + 1 < NUM_ATTEMPTS:
        task.failed.append((row.line.seed, len(whole.codes), whole.reason or ""))
        task.attempt += 1
        return
    task.piece = whole


def _chunks(reader: Reader, job: Job, tasks: Sequence[Task], start: float) -> list[Chunk]:
    """The chunks of a job whose passages have all been spoken, one for each."""

    def passage(
        job: Job, number: int, account: Account, context: Context, max_frames: int | None
    ) -> Iterator[tuple[int, Piece]]:
        task = tasks[number]
        for failed in task.failed:
            account.end(number, *failed)
        assert task.piece
        yield attempt_seed(job.seed, task.attempt), task.piece

    return [chunk for chunk in reader.read(job, passage, start) if chunk]
