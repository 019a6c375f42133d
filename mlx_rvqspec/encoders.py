"""From recorded speech to codes and voices, with the encoders that Base checkpoints ship."""

from functools import cached_property
from pathlib import Path

import mlx.core as mx
import numpy as np

from .cloned_voice import ClonedVoice
from .config import ModelConfig
from .load import fingerprints, load_speaker_encoder, load_speech_encoder
from .recording import check_recording, check_reference, resample
from .speech_encoder.encoder import SpeechEncoder
from .speech_encoder.speaker import SpeakerEncoder
from .text import prepare


class Encoders:
    """The encoders of a model folder, each loaded when it is first used: speaking needs neither.

    Belongs to the thread that uses it first.
    """

    def __init__(self, config: ModelConfig, folder: Path) -> None:
        self.config, self.folder = config, folder

    @cached_property
    def speech(self) -> SpeechEncoder:
        return load_speech_encoder(self.config, self.folder)

    @cached_property
    def speaker(self) -> SpeakerEncoder:
        return load_speaker_encoder(self.config, self.folder)

    def encode(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Codes [T, 16] int32 of audio [S] float, -1..1: a frame for every 80 ms that were begun.

        Raises ValueError for audio that is no recording in mono, ModelError when the checkpoint has no encoder.
        """
        audio = resample(check_recording(audio, sample_rate), sample_rate, self.config.sample_rate)
        return np.array(self.speech(mx.array(audio)[None])[0]).astype(np.int32)  # waits: the caller wants codes

    def make_voice(
        self, audio: np.ndarray, sample_rate: int, text: str | None = None, *, pause_s: float = 0.0
    ) -> ClonedVoice:
        """The voice of a recording; text: its exact words, without which only the speaker is taken on.

        pause_s: silence to put behind a recording that ends in a word, whose end could be heard in what follows.
        Raises ValueError for a recording that is too short, silent or otherwise unfit, ModelError as ``encode``.
        """
        audio = check_reference(audio, sample_rate)
        text = None if text is None else prepare(text)
        heard = mx.array(resample(audio, sample_rate, self.config.sample_rate))[None]
        return ClonedVoice(
            speaker_vector=np.array(self.speaker(heard)[0]),  # waits, like encode
            codes=None if text is None else self.encode(np.pad(audio, (0, round(pause_s * sample_rate))), sample_rate),
            text=text,
            model_name=self.config.name,
            fingerprint=fingerprints(self.folder)[-1],  # a copy's encoders are those of its source
        )
