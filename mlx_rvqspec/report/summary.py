"""A record in a few lines of text, for a terminal."""

import numpy as np

from .page import told
from .record import Record

BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
NUM_COLUMNS = 64
SILENCE_DB = -50.0  # below the loudest tenth of a second


def summary(record: Record, name: str, *, plain: bool = False) -> str:
    """What ``render`` shows in pictures, in about ten lines. plain: only ASCII."""
    blocks = PLAIN_BLOCKS if plain else BLOCKS
    levels = _levels(record)
    heard = np.flatnonzero(levels > SILENCE_DB)
    lead_s, tail_s = (0.1 * heard[0], 0.1 * (len(levels) - 1 - heard[-1])) if len(heard) else (record.audio_s, 0.0)
    peak = 20 * np.log10(max(float(np.abs(record.audio).max()), 1e-5))
    lines = [name, *(f"  {key:18} {value}" for key, value in told(record))]
    lines.append(f"  {'peak':18} {peak:.1f} dB; silent for {lead_s:.1f} s at the start, {tail_s:.1f} s at the end")
    lines.append(f"  {'level':18} {_strip(np.clip(1 + levels / 60, 0, 1), blocks)}")
    if len(record.codes):
        rounds, most = record.rounds, record.codes.shape[1] - 1
        lines.append(f"  {'rounds per frame':18} {_strip(rounds / most, blocks)}")
        spread = f"{rounds.min()} to {rounds.max()}, half of them at most {np.median(rounds):.0f}"
        lines.append(f"  {'':18} {spread}; {most} without speculation")
        shares = (record.depths[:, 1:] > 0).mean(axis=0)
        books = " ".join(f"{100 * share:.0f}" for share in shares)
        lines.append(f"  {'drafted right':18} {books} % of codebook 1 to {most}")
    return "\n".join(lines)


def _levels(record: Record) -> np.ndarray:
    """Levels of tenths of a second in dB below the loudest."""
    step = max(1, record.sample_rate // 10)
    squares = np.square(record.audio, dtype=np.float64)
    power = np.add.reduceat(squares, np.arange(0, len(squares), step)) / step
    return 10 * np.log10(np.maximum(power, 1e-12) / max(float(power.max()), 1e-12))


def _strip(shares: np.ndarray, blocks: str) -> str:
    """Values 0..1 as at most NUM_COLUMNS characters, of each part the largest."""
    edges = np.linspace(0, len(shares), min(NUM_COLUMNS, len(shares)), endpoint=False).astype(int)
    return "".join(
        blocks[min(int(share * len(blocks)), len(blocks) - 1)] for share in np.maximum.reduceat(shares, edges)
    )
