"""Runaways: speech that does not end by itself. A watch that notices silence, and what is done about it.

A model that misses its end of speech says its text and then nothing, or never begins. No sampling setting helps: only
stopping and a new seed do. The watch listens to the samples, so plain and speculative decoding stop at the same frame.
"""

from typing import NamedTuple

import numpy as np

from .utterance import GenerationError

POLICIES = ("keep", "trim", "retry", "error")
PATIENCE_S = 3.0  # a frame this deep in silence is the last; slow, solemn readings pause for two seconds
SILENT_RMS = 1e-3  # 60 dB below full scale
QUIET = 0.01  # of the loudest frame so far: 40 dB below it
NUM_ATTEMPTS = 3  # a model that runs away once in 200 texts does so three times in 8 million
STRIDE = 2654435769  # 2**32 / golden ratio: the seeds of a text's attempts are far from those of its neighbours'
NUM_QUIET_KEPT = 4  # frames of silence that ``trimmed`` leaves behind the speech


class Piece(NamedTuple):
    """Some frames of one passage: codes and origins [T, 16], audio [S], why they end; speech_s: its making"""

    codes: np.ndarray
    origin: np.ndarray
    audio: np.ndarray
    reason: str | None
    speech_s: float

    def part(self, begin: int, end: int, reason: str | None) -> "Piece":
        """Frames begin..end-1, ended by ``reason``."""
        size = len(self.audio) // len(self.codes)
        frames, samples = slice(begin, end), slice(begin * size, end * size)
        return Piece(self.codes[frames], self.origin[frames], self.audio[samples], reason, self.speech_s)

    def plus(self, other: "Piece") -> "Piece":
        """These frames and then the other's."""
        codes, origin, audio = (np.concatenate(pair) for pair in zip(self[:3], other[:3]))
        return Piece(codes, origin, audio, other.reason, self.speech_s + other.speech_s)


class SilenceWatch:
    """Listens to one passage. num_quiet: frames of near-silence at its end so far; heard: whether there was a sound."""

    def __init__(self, frame_rate_hz: float) -> None:
        self.patience = round(PATIENCE_S * frame_rate_hz)
        self.num_quiet, self._loudest = 0, 0.0

    @property
    def heard(self) -> bool:
        return self._loudest >= SILENT_RMS

    def judge(self, piece: Piece) -> Piece:
        """The piece, ended by "silence" at the frame where the patience is used up, or if no sound was in all of it."""
        for number, frame in enumerate(piece.audio.reshape(len(piece.codes), -1), 1):
            rms = float(np.sqrt(np.square(frame, dtype=np.float64).mean()))
            self._loudest = max(self._loudest, rms)
            self.num_quiet = self.num_quiet + 1 if rms < max(SILENT_RMS, QUIET * self._loudest) else 0
            is_end = number == len(piece.codes) and piece.reason
            if self.num_quiet == self.patience and not is_end:
                return piece.part(0, number, "silence")
        return piece._replace(reason="silence") if piece.reason == "stop" and not self.heard else piece


def attempt_seed(seed: int, attempt: int) -> int:
    """The seed of attempt 0 (the seed itself), 1, 2... at the same text."""
    return (seed + attempt * STRIDE) % 2**32


class Trimmer:
    """Takes the pieces that a watch has judged, gives them back without the silence that ended them.

    NUM_QUIET_KEPT frames of it stay.
    """

    def __init__(self, watch: SilenceWatch) -> None:
        self._watch, self._held = watch, None

    def take(self, piece: Piece) -> Piece | None:
        """What can be heard by now; the rest is held back until it is known whether speech follows.

        Raises GenerationError where nothing was heard at all.
        """
        piece = self._held.plus(piece) if self._held else piece
        if piece.reason == "silence" and not self._watch.heard:
            raise GenerationError("the model gave nothing but silence; try another seed")
        num_frames = len(piece.codes)
        num_said = num_frames - max(0, min(num_frames, self._watch.num_quiet - NUM_QUIET_KEPT + 1))
        if piece.reason:  # one frame of those held back goes along, so that the last piece is never empty
            return piece.part(0, num_said + 1, "silence") if piece.reason == "silence" else piece
        self._held = piece.part(num_said, num_frames, None) if num_said < num_frames else None
        return piece.part(0, num_said, None) if num_said else None
