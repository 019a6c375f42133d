"""Qwen3TTS: the three decoders of one checkpoint with its tokenizer, configuration and default settings."""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tokenizers import Tokenizer

from .code_decoder import CodeDecoder
from .config import ModelConfig
from .multi_code_decoder import MultiCodeDecoder
from .sampling import Sampling
from .speech_decoder.decoder import SpeechDecoder


@dataclass(frozen=True)
class Qwen3TTS:
    config: ModelConfig
    code_decoder: CodeDecoder
    multi_code_decoder: MultiCodeDecoder
    speech_decoder: SpeechDecoder
    tokenizer: Tokenizer
    sampling: Sampling
    max_frames: int
    text_feed: str
    dtype: mx.Dtype
    quantised: str  # see quantisation.label
    fingerprint: str
    source_fingerprint: str  # of the model that this is a quantised copy of; empty where there is none
    folder: Path

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the models whose drafters this one may use, its own first."""
        return tuple(filter(None, (self.fingerprint, self.source_fingerprint)))

    @property
    def precision(self) -> str:
        """What the time of a call depends on, such as "mlx.core.float32 q8"."""
        return f"{self.dtype} {self.quantised}".strip()

    def embed_frame(self, codes: mx.array) -> mx.array:
        """Sum of the 16 code embeddings of a frame: codes [B, 16] -> [B, D], the CodeDecoder's next input."""
        first = self.code_decoder.embed_codes(codes[:, 0])
        return first + self.multi_code_decoder.embed_frame(codes[:, 1:])
