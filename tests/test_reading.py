"""Texts of several passages: each as if spoken alone, with pauses between, in one exact stream."""

import numpy as np
import pytest
from conftest import TINY

from mlx_rvqspec.delivery import SEAM_S
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.passages import PARAGRAPH_PAUSE_S
from mlx_rvqspec.sampling import Sampling

TEXT = "Hello.\n\nWell, yes.\n\n* * *\n\nCome in."  # 7, 9 and 7 frames
PAUSE = round(PARAGRAPH_PAUSE_S * 24000)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


def test_passages_are_spoken_one_after_another_as_if_alone(engine: Engine):
    whole = engine.speak(TEXT, speaker="ryan", seed=3, chunk_frames=4)
    parts = [
        engine.speak(text, speaker="ryan", seed=3, chunk_frames=4)
        for text in TEXT.replace("* * *\n\n", "").split("\n\n")
    ]
    np.testing.assert_array_equal(whole.codes, np.concatenate([part.codes for part in parts]))
    pauses = [PAUSE, 2 * PAUSE, 0]
    assert len(whole.audio) == sum(len(part.audio) for part in parts) + sum(pauses)
    at, ramp = 0, round(SEAM_S * 24000)
    for part, pause in zip(parts, pauses):
        here = whole.audio[at : at + len(part.audio)]
        np.testing.assert_array_equal(here[ramp:-ramp], part.audio[ramp:-ramp])
        assert not pause or abs(here[-1]) <= 1e-3 * abs(part.audio[-1])
        assert not whole.audio[at + len(here) : at + len(here) + pause].any()
        at += len(here) + pause
    assert [(a.passage, a.seed) for a in whole.stats.attempts] == [(0, 3), (1, 3), (2, 3)]
    assert (whole.stats.num_passages, whole.stats.share) == (3, 1) and whole.stats.frames == len(whole.codes)
    assert whole.stats.audio_s == len(whole.audio) / 24000
    assert whole.finish_reason == ("stop" if all(p.finish_reason == "stop" for p in parts) else "length")


def test_a_stream_of_passages_is_the_whole_in_chunks(engine: Engine):
    whole = engine.speak("Hello.\n\nWell, yes.", speaker="ryan", seed=3)
    chunks = list(engine.stream("Hello.\n\nWell, yes.", speaker="ryan", seed=3, chunk_frames=3))
    np.testing.assert_array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    audio = np.concatenate([chunk.audio for chunk in chunks])
    assert audio.shape == whole.audio.shape and np.abs(audio - whole.audio).max() < 1e-3
    assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    shares = [chunk.stats.share for chunk in chunks]
    assert shares == sorted(shares) and 0 < shares[0] < 1 and shares[-1] == 1


@pytest.mark.parametrize("max_frames", [2, 9])
def test_a_limit_counts_over_all_passages(engine: Engine, max_frames: int):
    speech = engine.speak(TEXT, speaker="ryan", seed=3, sampling=Sampling(max_frames=max_frames))
    assert (len(speech.codes), speech.finish_reason) == (max_frames, "length")
    chunks = list(engine.stream(TEXT, speaker="ryan", seed=3, sampling=Sampling(max_frames=max_frames)))
    assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("options", [{"passage_s": 0.5}, {"passage_s": float("nan")}, {"paragraph_pause_s": -1}])
def test_lengths_are_checked_at_the_call(engine: Engine, options: dict):
    with pytest.raises(ValueError, match="expected 1 or more, and 0 to 600"):
        engine.stream(TEXT, speaker="ryan", **options)
