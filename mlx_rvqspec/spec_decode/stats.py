"""What a run did and how long it took."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Counts and times of one utterance up to the chunk that carries them.

    Times are wall-clock seconds from the call; speech_s is the part spent in the SpeechDecoder.
    """

    seed: int
    decode: str
    frames: int
    frame_rate_hz: float
    total_s: float
    speech_s: float
    time_to_first_audio_s: float

    @property
    def audio_s(self) -> float:
        return self.frames / self.frame_rate_hz

    @property
    def realtime_factor(self) -> float:
        """Seconds of work per second of audio: lower is better."""
        return self.total_s / self.audio_s
