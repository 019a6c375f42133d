"""The code books of the SpeechDecoder: 16 codes of a frame to one latent vector."""

import mlx.core as mx
import mlx.nn as nn

from ..config import SpeechDecoderConfig


class CodebookSum(nn.Module):
    """Sum of one entry per codebook, projected; codebook: [Q, V, D]."""

    def __init__(self, num_codebooks: int, config: SpeechDecoderConfig):
        super().__init__()
        width = config.codebook_dim // 2
        self.codebook = mx.random.normal((num_codebooks, config.codebook_size, width))
        self.output_proj = nn.Linear(width, config.codebook_dim, bias=False)

    def __call__(self, codes: mx.array) -> mx.array:
        """codes: [B, T, Q] integers -> [B, T, codebook_dim]."""
        entries = self.codebook[mx.arange(codes.shape[-1]), codes]
        return self.output_proj(entries.sum(axis=2))


class Quantizer(nn.Module):
    """The semantic codebooks (one) and the acoustic rest are projected apart, then added."""

    def __init__(self, config: SpeechDecoderConfig):
        super().__init__()
        self.num_semantic = config.num_semantic_quantizers
        self.rvq_first = CodebookSum(self.num_semantic, config)
        self.rvq_rest = CodebookSum(config.num_quantizers - self.num_semantic, config)

    def __call__(self, codes: mx.array) -> mx.array:
        """codes: [B, T, 16] integers -> [B, T, codebook_dim] float32."""
        n = self.num_semantic
        return self.rvq_first(codes[..., :n]) + self.rvq_rest(codes[..., n:])
