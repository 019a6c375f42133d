"""Does memory stay flat: requests of different lengths, every tenth left early, then one long text.

    python bench/soak.py [MODEL] [--num 200] [--paragraphs 40] [--seed 0]

Resident memory after each request, its slope by least squares over the second half, and the same over the passages of
a long text. MODEL is the built-in voice unless given. The last line is JSON.
"""

import argparse
import random
import time

import numpy as np
from harness import finish

import mlx_rvqspec as tts
from mlx_rvqspec.bench.harness import environment, resident_bytes

WORDS = "one small dog ran over the old bridge while seven tall men stood in the rain and said nothing at all".split()


def sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words)).capitalize() + "."


def slope_mb(sizes: list[int]) -> float:
    """MB per step over the second half."""
    half = np.array(sizes[len(sizes) // 2 :]) / 1e6
    return float(np.polyfit(np.arange(len(half)), half, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--paragraphs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, engine = random.Random(options.seed), tts.load(options.model)
    speaker = engine.speakers[0] if engine.speakers else None
    begin, frames, reasons, requests = time.perf_counter(), 0, {}, []
    for number in range(options.num):
        stream = engine.stream(sentence(rng, rng.randint(1, 12)), speaker=speaker, seed=number)
        last = next(stream)
        if number % 10 < 9:  # the tenth caller leaves
            *_, last = [last, *stream]
        stream.close()
        frames += last.stats.frames
        reasons[last.finish_reason or "left"] = reasons.get(last.finish_reason or "left", 0) + 1
        requests.append(resident_bytes())
    text, passages, ended = "\n\n".join(sentence(rng, 8) for _ in range(options.paragraphs)), [], 0
    for chunk in engine.stream(text, speaker=speaker, seed=options.seed):
        if len(chunk.stats.attempts) > ended:
            ended = len(chunk.stats.attempts)
            passages.append(resident_bytes())
    finish(
        "soak",
        {
            **environment(),
            "model": options.model or "built-in voice",
            "seed": options.seed,
            "requests": options.num,
            "frames": frames,
            "ended_by": reasons,
            "mb_per_request": slope_mb(requests),
            "mb_after_first": requests[0] / 1e6,
            "mb_after_last": requests[-1] / 1e6,
            "passages": len(passages),
            "mb_per_passage": slope_mb(passages),
            "wall_s": time.perf_counter() - begin,
        },
    )


if __name__ == "__main__":
    main()
