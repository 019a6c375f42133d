"""Does a voice hold steady, and are words lost, where passages go on from those before (``carry``).

    python bench/carry.py --asr DIR [MODEL] [--texts weights/recipe/heldout.tsv] [--num 12] [--passages 4] [--seed 0]
                          [--carry 0 1 2]

Each text is some sentences of the file, a paragraph each, so each a passage. For every value of carry: word errors by
the recogniser of ``quality.py``, how passages ended, and how far the passages of a text are apart: standard deviation
of pitch (semitones), level (dB) and speed (per cent), the mean over the texts. The last line is JSON.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import finish
from quality import word_errors

import mlx_rvqspec as tts
from mlx_rvqspec.bench.harness import environment

PITCHES_HZ = 70, 400


def pitch(audio: np.ndarray, rate: int) -> float:
    """Median pitch in semitones above 1 Hz, by autocorrelation of the 50 ms that are loud and clearly periodic."""
    size, found = rate // 20, []
    low, high = rate // PITCHES_HZ[1], rate // PITCHES_HZ[0]
    for part in audio[: len(audio) // size * size].reshape(-1, size):
        spectrum = np.fft.rfft(part * np.hanning(size), 2 * size)
        correlation = np.fft.irfft(np.abs(spectrum) ** 2)[:size]
        lag = low + int(np.argmax(correlation[low:high]))
        if np.sqrt(np.mean(part**2)) > 0.02 and correlation[lag] > 0.4 * correlation[0]:
            found.append(12 * np.log2(rate / lag))
    return float(np.median(found)) if found else float("nan")


def spoken(engine: tts.Engine, text: str, seed: int, carry: int) -> tuple[np.ndarray, list[str], np.ndarray]:
    """The sound of a text, how its passages ended, and pitch, level in dB and log speed [passages, 3]."""
    speech = engine.speak(text, seed=seed, carry=carry, paragraph_pause_s=0.6)
    facts, codes = [], speech.codes
    for attempt, words in zip(speech.stats.attempts, text.split("\n\n")):
        audio, codes = engine.decode(codes[: attempt.frames]), codes[attempt.frames :]
        level = 20 * np.log10(np.sqrt(np.mean(audio**2)))
        facts.append([pitch(audio, engine.sample_rate), level, 100 * np.log(len(words) / attempt.frames)])
    return speech.audio, [attempt.finish_reason for attempt in speech.stats.attempts], np.array(facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--asr", required=True)
    parser.add_argument("--texts", default=str(Path(__file__).parents[1] / "weights" / "recipe" / "heldout.tsv"))
    parser.add_argument("--num", type=int, default=12)
    parser.add_argument("--passages", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--carry", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    from faster_whisper import WhisperModel

    asr = WhisperModel(options.asr, device="cpu", compute_type="int8", cpu_threads=1)
    sentences = [line.rstrip("\n").split("\t", 1)[1] for line in open(options.texts, encoding="utf8")]
    size = options.passages
    texts = {str(n): "\n\n".join(sentences[n * size : (n + 1) * size]) for n in range(options.num)}
    engine, result = tts.load(options.model), {}
    for carry in options.carry:
        begin, audio, reasons, spreads = time.perf_counter(), {}, [], []
        for name, text in texts.items():
            audio[name], ended, facts = spoken(engine, text, options.seed, carry)
            reasons += ended
            spreads.append(np.nanstd(facts, axis=0))
        spread = dict(zip(("pitch_semitones", "level_db", "speed_percent"), np.round(np.nanmean(spreads, axis=0), 2)))
        work_s = time.perf_counter() - begin
        entry: dict[str, Any] = {**word_errors(asr, texts, audio), "spread": {k: float(v) for k, v in spread.items()}}
        result[str(carry)] = {**entry, "ended": {r: reasons.count(r) for r in set(reasons)}, "work_s": round(work_s, 1)}
        print(carry, {k: v for k, v in result[str(carry)].items() if k != "heard"}, flush=True)
    facts = {"model": options.model or "built-in voice", "seed": options.seed, "num_texts": len(texts)}
    finish("carry", {"environment": environment(), **facts, "passages_per_text": size, "by_carry": result})


if __name__ == "__main__":
    main()
