"""What a run of speech leaves behind to be looked at: sound, codes, how each came about, and when."""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..audio import to_pcm16
from ..delivery import Chunk
from ..recording import read_recording
from ..whole_file import replacing

VERSION = 1
LONGEST_S = 3600.0
MAX_BYTES = 1 << 30  # of all arrays of a file: an hour of samples has a sixth of it
# what zipfile, numpy and json raise for a damaged file
UNREADABLE = (ArithmeticError, EOFError, LookupError, NotImplementedError, OSError, RecursionError, RuntimeError)
UNREADABLE += (SyntaxError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class Record:
    """A piece of sound, and where it is known, the codes it was made from.

    audio: [S] float32, -1..1; codes, depths: [T, 16] int32, as in ``delivery.Chunk``, with T = 0 for mere sound;
    starts: [T] int64, the sample at which each frame begins. stages: [n, 4] float64 seconds since the text was there,
    a row per chunk: its codes were begun, then they were there, its sound was there, and the audio it brought.
    facts: what else is to be told, JSON-ready.
    """

    audio: np.ndarray
    sample_rate: int
    codes: np.ndarray
    depths: np.ndarray
    starts: np.ndarray
    stages: np.ndarray
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def audio_s(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def rounds(self) -> np.ndarray:
        """[T] rounds that each frame took: one for every code of the decoder's own, and one that ends in a draft."""
        rest = self.depths[:, 1:]
        return (rest == 0).sum(axis=1) + (rest[:, -1:] > 0).sum(axis=1)

    def save(self, path: Path) -> None:
        """Write an .npz that ``load`` reads, whole or not at all."""
        arrays: dict[str, Any] = {
            "codes": self.codes,
            "depths": self.depths,
            "starts": self.starts,
            "stages": self.stages,
        }
        about = {"version": VERSION, "sample_rate": self.sample_rate, "facts": dict(self.facts)}
        with replacing(path) as file:
            np.savez_compressed(file, audio=to_pcm16(self.audio), about=json.dumps(about), **arrays)


class Recorder:
    """Collects the chunks of a stream."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def watch(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same chunks, each noted when it passes."""
        for chunk in chunks:
            self._chunks.append(chunk)
            yield chunk

    def record(self, sample_rate: int, facts: Mapping[str, Any]) -> Record:
        """What there is so far, at least one chunk; facts: what its Stats do not say."""
        starts, stages, done, begin_s, speech_s = [], [], 0, 0.0, 0.0
        for chunk in self._chunks:
            step = int(sample_rate / chunk.stats.frame_rate_hz)
            starts.append(done + step * np.arange(len(chunk.codes)))
            end_s, worked_s = chunk.stats.total_s, chunk.stats.speech_s - speech_s
            stages.append((begin_s, end_s - worked_s, end_s, len(chunk.audio) / sample_rate))
            done, begin_s, speech_s = done + len(chunk.audio), end_s, chunk.stats.speech_s
        audio, codes, depths = (
            np.concatenate([getattr(chunk, name) for chunk in self._chunks]) for name in ("audio", "codes", "depths")
        )
        last = self._chunks[-1]
        names = ("seed", "decode", "realtime_factor", "time_to_first_audio_s")
        facts = {"finish_reason": last.finish_reason} | {name: getattr(last.stats, name) for name in names} | {**facts}
        return Record(audio, sample_rate, codes, depths, np.concatenate(starts), np.array(stages), facts)


def read_record(path: Path) -> Record:
    """The record in an .npz, or a sound file as a record without codes.

    Raises OSError for a file that cannot be opened, ValueError for one that is neither.
    """
    if path.suffix == ".npz":
        return _read_npz(path)
    audio, sample_rate = read_recording(path, longest_s=LONGEST_S)
    nothing = np.zeros((0, 16), np.int32)
    return Record(audio, sample_rate, nothing, nothing, np.zeros(0, np.int64), np.zeros((0, 4)), _comment(path))


def _comment(path: Path) -> dict[str, str]:
    import soundfile  # not needed to speak

    with soundfile.SoundFile(path) as sound:
        return {"comment": sound.comment} if sound.comment else {}


def _read_npz(path: Path) -> Record:
    with path.open("rb") as file:
        try:
            return _unpack(file)
        except UNREADABLE as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path} is no record of speech ({reason:.200}); speak --report makes one") from None


def _unpack(file: BinaryIO) -> Record:
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
            raise ValueError("it is too large")
        names = ("audio", "codes", "depths", "starts", "stages", "about")
        audio, codes, depths, starts, stages, about = (_read_array(archive, name) for name in names)
    said = json.loads(str(about))
    if said["version"] != VERSION:
        raise ValueError(f"it is of version {said['version']}, expected {VERSION}")
    record = Record(audio / np.float32(32767), said["sample_rate"], codes, depths, starts, stages, said["facts"])
    _check(record)
    return record


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array whose header fits its size. Raises ValueError for another, and for one that would need pickle."""
    file = io.BytesIO(archive.read(f"{name}.npy"))
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"array {name} has another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or int(np.prod(shape, dtype=object)) * dtype.itemsize != len(file.getbuffer()) - file.tell():
        raise ValueError(f"array {name} does not hold what it says")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check(record: Record) -> None:
    T, num_chunks = len(record.starts), len(record.stages)
    kinds = [(record.audio, 1, "f"), (record.codes, 2, "i"), (record.depths, 2, "i"), (record.starts, 1, "i")]
    if any(array.ndim != ndim or array.dtype.kind != kind for array, ndim, kind in [*kinds, (record.stages, 2, "f")]):
        raise ValueError("an array has another type")
    if type(record.sample_rate) is not int or not 0 < record.sample_rate < 1_000_000 or not len(record.audio):
        raise ValueError("there is no sound in it")
    if record.codes.shape != record.depths.shape or len(record.codes) != T or not 2 <= record.codes.shape[1] <= 64:
        raise ValueError("codes, depths and starts differ in length")
    if record.stages.shape != (num_chunks, 4) or not np.isfinite(record.stages).all():
        raise ValueError("the times are no times")
    if T and not (0 <= record.starts.min() and record.starts.max() < len(record.audio)):
        raise ValueError("a frame lies outside the sound")
    if T and (min(record.codes.min(), record.depths.min()) < 0 or record.depths.max() > record.codes.shape[1]):
        raise ValueError("a code or depth is impossible")
    if not isinstance(record.facts, dict):
        raise ValueError("facts is no object")
