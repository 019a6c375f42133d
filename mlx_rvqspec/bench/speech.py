"""Whole utterances: time to the first sound, real-time factor, memory, and whether a listener would hear gaps."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from ..generate import Engine

TEXTS = {
    "short": "Good morning.",
    "medium": "The quick brown fox jumps over the lazy dog, and the dog looks up for a moment.",
    "long": "The train left at nine. It was raining, and the windows were grey. Nobody in the carriage spoke until "
    "the hills came into sight, and then all of them spoke at once.",
}
AUDIBLE = 0.01  # of full scale
CHUNK_FRAMES = 4


def say(engine: Engine, text: str, *, seed: int, decode: str, speaker: str | None) -> dict[str, Any]:
    """One utterance as a listener has it: chunks arrive, playback begins with the first and must not run dry."""
    mx.reset_peak_memory()
    begin, arrivals, audible_s, samples = time.perf_counter(), [], None, 0
    for chunk in engine.stream(text, seed=seed, decode=decode, speaker=speaker, chunk_frames=CHUNK_FRAMES):
        now = time.perf_counter() - begin
        loud = np.flatnonzero(np.abs(chunk.audio) > AUDIBLE)
        if audible_s is None and len(loud):
            # played from the first chunk on, this sample is heard once it has come and its time is there
            start = max(now, (arrivals[0][0] if arrivals else now) + samples / engine.sample_rate)
            audible_s = start + int(loud[0]) / engine.sample_rate
        arrivals.append((now, len(chunk.audio) / engine.sample_rate))
        samples, stats, reason = samples + len(chunk.audio), chunk.stats, chunk.finish_reason
    return {
        "audio_s": stats.audio_s,
        "total_s": stats.total_s,
        "realtime_factor": stats.realtime_factor,
        "first_playable_s": arrivals[0][0],
        "first_audible_s": audible_s,
        "speech_decoder_s": stats.speech_s,
        "codes_per_round": stats.codes_per_round,
        "peak_bytes": mx.get_peak_memory(),
        "finish_reason": reason,
    } | underruns(arrivals)


def underruns(arrivals: list[tuple[float, float]]) -> dict[str, float]:
    """How often playback at 1x would wait for the next chunk, and how long: arrivals are (time, duration) in s."""
    ready, waited, number = arrivals[0][0], 0.0, 0
    for now, duration in arrivals:
        if now > ready:
            number, waited, ready = number + 1, waited + now - ready, now
        ready += duration
    return {"underruns": number, "waited_s": waited}


def speech_suite(
    engine: Engine,
    load_s: float,
    *,
    repeats: int,
    seed: int,
    texts: dict[str, str] = TEXTS,
    show: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Cold: the first utterance after loading. Warm: each text ``repeats`` times, ways of decoding in turns."""
    speaker = engine.speakers[0] if engine.speakers else None
    ways = ["plain"] if engine.why_plain else ["spec", "plain"]
    show("speaking, cold")
    result: dict[str, Any] = {
        "chunk_frames": CHUNK_FRAMES,
        "num_nodes": engine.num_nodes,
        "texts": texts,
        "load_s": load_s,
    }
    result["cold"] = say(engine, texts["short"], seed=seed, decode=ways[0], speaker=speaker)
    result["warm"] = {way: {} for way in ways}
    for name, text in texts.items():
        show(f"speaking, {name} text")
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for number in range(repeats):
            for way in ways:
                runs[way].append(say(engine, text, seed=seed + number, decode=way, speaker=speaker))
        for way in ways:
            result["warm"][way][name] = summary(runs[way])
    return result


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the numbers of some runs, with the extremes of the factor people look at."""
    numbers = [key for key, value in runs[0].items() if isinstance(value, (int, float))]
    result = {key: median([run[key] for run in runs if run[key] is not None]) for key in numbers}
    factors = [run["realtime_factor"] for run in runs]
    ends = [run["finish_reason"] for run in runs]
    return result | {"realtime_factor_range": [min(factors), max(factors)], "finish_reasons": ends}
