"""What a request leaves in memory: nothing, however many there are and however long each is."""

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY

from mlx_rvqspec.bench.harness import resident_bytes
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.sampling import Sampling

WARM_UP = 8  # first uses of each shape are compiled and kept


def levels(engine: Engine, num_requests: int, most_frames: int) -> np.ndarray:
    """MB [n, 2] that MLX holds, and that are resident, after each of many requests of different lengths."""
    rows = []
    for number in range(num_requests):
        sampling = Sampling(max_frames=1 + number % most_frames)
        engine.speak("Hi " * (1 + number % 17), speaker="ryan", seed=number, sampling=sampling)
        rows.append(((mx.get_active_memory() + mx.get_cache_memory()) / 2**20, resident_bytes() / 2**20))
    return np.array(rows)


def slopes(rows: np.ndarray) -> np.ndarray:
    """MB a request, once warm."""
    rows = rows[WARM_UP:]
    return np.polyfit(np.arange(len(rows)), rows, 1)[0]


def test_memory_is_flat_over_requests_of_different_lengths():
    held, _ = slopes(levels(load(TINY, compile=False), WARM_UP + 12, 3))
    assert held < 0.02


def test_memory_is_flat_over_the_passages_of_a_long_text():
    """What is held while a book is read does not grow with what has been read."""
    engine, held = load(TINY, compile=False), []
    text = "\n\n".join(["Hello."] * (WARM_UP + 24))
    for chunk in engine.stream(text, speaker="ryan", seed=3, chunk_frames=4, paragraph_pause_s=0.1):
        if len(chunk.stats.attempts) == len(held) + 1:  # a passage has ended
            held.append(mx.get_active_memory() / 2**20)
    assert len(held) == WARM_UP + 24 and slopes(np.array(held)[:, None])[0] < 0.01


@pytest.mark.slow
def test_memory_is_flat_over_two_hundred_requests():
    held, resident = slopes(levels(load(TINY, compile=False), 200, 23))
    assert held < 0.005 and resident < 1.0
