"""Sound going out: files that appear whole or not at all, pipes, and the loudspeaker."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .names import nearest
from .whole_file import replacing

# Name, which is also the file suffix -> container and encoding of libsndfile; None is written here.
FORMATS = {
    "wav": None,
    "pcm": None,
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
}
PIPE_FORMATS = ("wav", "pcm")
UNKNOWN_SIZE = 0xFFFFFFFF  # readers of a WAV stream take it for "until the end"

Write = Callable[[np.ndarray], None]  # takes the next samples: [S] float, -1..1


def to_pcm16(audio: np.ndarray) -> np.ndarray:
    """audio [S] float, -1..1 (beyond is clipped), as little-endian int16."""
    return np.rint(np.clip(audio, -1, 1) * 32767).astype("<i2")


def wav_header(sample_rate: int, num_bytes: int = UNKNOWN_SIZE, num_bytes_behind: int = 0) -> bytes:
    """The 44 bytes in front of the samples of a mono 16-bit WAV; without sizes it heads a stream."""
    riff_size = UNKNOWN_SIZE if num_bytes == UNKNOWN_SIZE else 36 + num_bytes + num_bytes_behind
    form = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return b"RIFF" + struct.pack("<I", riff_size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", num_bytes)


def choose_format(target: str, format: str | None = None) -> str:
    """The format for `target`, a path or "-" for a pipe: the one asked for, else its suffix, else WAV.

    Raises ValueError for an unknown format, one that the suffix contradicts, or one that cannot be piped.
    """
    known = ", ".join(FORMATS)
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {known}{nearest(format, FORMATS)}")
    if target == "-":
        if format not in (None, *PIPE_FORMATS):
            raise ValueError(f"{format} cannot be piped; pipe wav or pcm, or write a file")
        return format or "wav"
    suffix = Path(target).suffix[1:].lower()
    if suffix in FORMATS and format not in (None, suffix):
        raise ValueError(f"the name {target!r} says {suffix}, the format asked for is {format}; drop one")
    if suffix not in FORMATS and format is None:
        near = nearest(suffix, FORMATS)
        raise ValueError(f"the name {target!r} ends in no known format; end it in one of {known}, or say which{near}")
    return format or suffix


def pipe_writer(stream: BinaryIO, sample_rate: int, format: str = "wav") -> Write:
    """A function that sends samples down `stream` as they come, for "wav" behind a header without sizes."""
    if format == "wav":
        stream.write(wav_header(sample_rate))

    def write(audio: np.ndarray) -> None:
        stream.write(to_pcm16(audio).tobytes())
        stream.flush()

    return write


def finish_wav(file: BinaryIO, sample_rate: int, comment: str) -> None:
    """Put the sizes into the header, and `comment` behind the samples, out of the way of simple readers."""
    num_bytes = file.tell() - len(wav_header(sample_rate))
    text = comment.encode() + b"\0"
    text += b"\0" * (len(text) % 2)
    note = b"LIST" + struct.pack("<I", 12 + len(text)) + b"INFOICMT" + struct.pack("<I", len(text)) + text
    file.write(note)
    file.seek(0)
    file.write(wav_header(sample_rate, num_bytes, len(note)))


@contextmanager
def encoder(file: BinaryIO | int, sample_rate: int, codec: tuple[str, str], comment: str) -> Iterator[Write]:
    """A function that writes samples through libsndfile; `codec` is a container and its encoding.

    file: a descriptor, or an object with write, seek and tell.
    """
    import soundfile

    container, encoding = codec
    try:
        with soundfile.SoundFile(file, "w", sample_rate, 1, encoding, format=container, closefd=False) as sound:
            if comment:  # libsndfile refuses an empty one
                sound.comment = comment
            yield lambda audio: sound.write(to_pcm16(audio))
    except soundfile.SoundFileError as error:
        raise OSError(f"cannot write {container}: {error}; is the disk full?") from error


@contextmanager
def open_file(path: str | Path, sample_rate: int, *, format: str | None = None, comment: str = "") -> Iterator[Write]:
    """A function that writes samples to a file which appears, whole, when the block ends without an error.

    An existing file is replaced. Raises ValueError as choose_format does and for a folder or device, OSError
    when `path` cannot be written.
    """
    path = Path(path)
    format = choose_format(str(path), format)
    if path.exists() and not path.is_file():  # replacing it would remove a device such as /dev/null
        raise ValueError(f"{path} is not a file; give the name of one, or - for a pipe")
    with replacing(path) as file:
        codec = FORMATS[format]
        if codec:
            with encoder(file.fileno(), sample_rate, codec, comment) as write:
                yield write
        else:
            yield pipe_writer(file, sample_rate, format)
            if format == "wav":
                finish_wav(file, sample_rate, comment)


class Player:
    """The loudspeaker, through sounddevice (the `play` extra).

    Raises RuntimeError when sounddevice or a sound device is missing.
    """

    def __init__(self, sample_rate: int) -> None:
        try:
            import sounddevice  # pyright: ignore[reportMissingImports]
        except (ImportError, OSError) as error:  # OSError: the package is there, PortAudio is not
            raise RuntimeError(f"cannot play ({error}); pip install sounddevice") from error
        try:
            self.stream = sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32")
        except sounddevice.PortAudioError as error:
            raise RuntimeError(f"cannot play ({error}); is there a sound device?") from error
        self.wake_up = np.zeros(sample_rate // 10, np.float32)  # devices swallow their first 50 to 100 ms

    def write(self, audio: np.ndarray) -> None:
        """Hand over audio [S]; returns once the device's buffer has taken it."""
        if len(self.wake_up):
            self.stream.start()
            audio, self.wake_up = np.concatenate([self.wake_up, audio]), self.wake_up[:0]
        self.stream.write(np.ascontiguousarray(audio, np.float32))

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.stream.stop()  # after what is still to be heard
        else:
            self.stream.abort()
        self.stream.close()
