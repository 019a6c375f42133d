"""Recorded speech coming in: files and arrays, checked and brought to a model's sample rate."""

import re
from pathlib import Path
from typing import BinaryIO

import numpy as np

LOWEST_RATE_HZ, HIGHEST_RATE_HZ = 4_000, 384_000
LONGEST_S = 120.0  # the encoder's work grows with the square of it
SHORTEST_REFERENCE_S = 1.0
SILENCE = 1e-3  # root mean square: -60 dB
LOUDEST = 2.0  # beyond the 1.0 of full scale only by what decoders of compressed files overshoot


def read_recording(path: str | Path | BinaryIO, *, longest_s: float = LONGEST_S) -> tuple[np.ndarray, int]:
    """The samples of a sound file as ``check_recording`` wants them, and their rate: WAV, FLAC, MP3, Ogg and others.

    path: of a file, or an open one. Raises OSError for a file that cannot be opened, ValueError for one that is no
    sound file, has several channels, or is too long.
    """
    if not isinstance(path, (str, Path)):
        return _read(path, "the recording", longest_s)
    if re.match("(https?|ftp|data):", str(path)):
        raise ValueError(f"{str(path)[:40]} is an address; download it and name the file")
    with open(path, "rb") as file:
        return _read(file, str(path), longest_s)


def _read(file: BinaryIO, name: str, longest_s: float) -> tuple[np.ndarray, int]:
    import soundfile  # not needed to speak

    try:
        with soundfile.SoundFile(file) as sound:
            if sound.channels != 1:
                remedy = "mix them first, with ffmpeg -i IN -ac 1 OUT"
                raise ValueError(f"{name} has {sound.channels} channels; expected one; {remedy}")
            _check_rate(sound.samplerate)
            # a header may promise more than is there, so the promise is judged before memory is asked for
            _check_length(sound.frames / sound.samplerate, longest_s)
            audio, sample_rate = sound.read(dtype="float32"), sound.samplerate
    except soundfile.SoundFileError as error:
        raise ValueError(f"{name} cannot be read as sound ({error}); convert it to WAV or FLAC") from None
    return check_recording(audio, sample_rate, longest_s=longest_s), sample_rate


def check_recording(audio: np.ndarray, sample_rate: int, *, longest_s: float = LONGEST_S) -> np.ndarray:
    """audio as [S] float32. Raises ValueError for what no recording in mono, -1..1, can be."""
    audio = np.asarray(audio)
    if audio.ndim != 1:
        raise ValueError(f"audio has shape {audio.shape}; expected one channel, [samples]; mix stereo with a mean")
    if audio.dtype.kind != "f":
        raise ValueError(f"audio is {audio.dtype}; expected floats from -1 to 1, such as int16 samples / 32768")
    _check_rate(sample_rate)
    _check_length(len(audio) / sample_rate, longest_s)
    if not np.isfinite(audio).all():
        raise ValueError(f"audio has {np.count_nonzero(~np.isfinite(audio))} samples that are not finite")
    if np.abs(audio).max() > LOUDEST:
        raise ValueError(f"audio reaches {np.abs(audio).max():g}; expected samples from -1 to 1")
    return audio.astype(np.float32)


def check_reference(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """The same for a recording that shall lend its voice, which must be long and loud enough."""
    audio = check_recording(audio, sample_rate)
    length_s, level = len(audio) / sample_rate, float(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))
    if length_s < SHORTEST_REFERENCE_S:
        raise ValueError(f"the recording is {length_s:.2f} s long; expected 3 to 30 s of one person speaking")
    if level < SILENCE:
        raise ValueError(f"the recording is silent (level {level:.1g}); expected 3 to 30 s of one person speaking")
    return audio


def _check_rate(sample_rate: int) -> None:
    if not LOWEST_RATE_HZ <= sample_rate <= HIGHEST_RATE_HZ:
        raise ValueError(f"sample rate is {sample_rate} Hz; expected {LOWEST_RATE_HZ} to {HIGHEST_RATE_HZ}")


def _check_length(length_s: float, longest_s: float) -> None:
    if not 0 < length_s <= longest_s:
        raise ValueError(f"the recording is {length_s:.2f} s long; expected more than 0 and at most {longest_s:.0f} s")


def resample(audio: np.ndarray, sample_rate: int, wanted: int) -> np.ndarray:
    """audio [S] float32 at ``wanted`` Hz, ceil(S * wanted / sample_rate) samples: as upstream, librosa's "soxr_hq"."""
    if sample_rate == wanted:
        return audio
    import soxr  # not needed to speak

    length = -(-len(audio) * wanted // sample_rate)
    resampled = soxr.resample(audio, sample_rate, wanted, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled)))
