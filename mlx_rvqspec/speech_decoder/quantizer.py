"""The code books of the SpeechDecoder: 16 codes of a frame to one latent vector."""

import re

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


def fold_codebooks(weights: dict[str, mx.array], pattern: re.Pattern[str]) -> None:
    """Stack the entries of each group, ordered by codebook, as one [Q, V, D] tensor; changes ``weights``.

    pattern: matches the names of the sums of a codebook's entries; its groups are the group of codebooks and the
    number in it. Beside each sum lies ``cluster_usage``, what it is divided by.
    Raises KeyError naming a tensor that is missing.
    """
    groups: dict[str, dict[int, mx.array]] = {}
    for match in filter(None, map(pattern.fullmatch, list(weights))):
        usage = weights.pop(f"{match[0].rpartition('.')[0]}.cluster_usage")
        entries = weights.pop(match[0]) / mx.maximum(usage, 1e-5)[:, None]
        groups.setdefault(match[1], {})[int(match[2])] = entries
    for group, books in groups.items():
        weights[f"{group}.codebook"] = mx.stack([books[i] for i in sorted(books)])
