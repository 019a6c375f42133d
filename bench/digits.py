"""What a recogniser hears of numbers: bench/digits.py --asr DIR [MODEL] [--seeds N]

DIR is a faster-whisper model (weights/recipe/README.md says which). Needs faster-whisper and scipy beside the package.
A number counts as heard when all its words are, in their order. Writes bench/results/digits.json.
"""

import argparse
from difflib import SequenceMatcher
from typing import Any

from harness import finish
from quality import words

import mlx_rvqspec as tts
from mlx_rvqspec.bench.harness import environment

TEXTS = (  # digits and what they are read as, for texts as in tests/CASES.md B4, and the same spelled out
    ("I count 1 2 3 4 5.", "1 2 3 4 5"),
    ("I count one two three four five.", "1 2 3 4 5"),
    ("Call 555-0100 now.", "5 5 5 0 1 0 0"),
    ("Call five five five, zero one zero zero now.", "5 5 5 0 1 0 0"),
    ("It weighs 1,200 kilograms.", "1,200"),
    ("It weighs one thousand two hundred kilograms.", "1,200"),
    ("They sold 42 apples and 17 pears.", "42 17"),
    ("They sold forty two apples and seventeen pears.", "42 17"),
)


def heard_share(wanted: list[str], heard: list[str]) -> float:
    """The share of the wanted words that are heard, in their order."""
    blocks = SequenceMatcher(a=wanted, b=heard, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(wanted)


def listen(asr: Any, speech: tts.Speech) -> str:
    from scipy.signal import resample_poly

    pieces, _ = asr.transcribe(
        resample_poly(speech.audio, 2, 3).astype("float32"), language="en", temperature=0.0, without_timestamps=True
    )
    return " ".join(piece.text.strip() for piece in pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--asr", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    from faster_whisper import WhisperModel

    asr, engine = WhisperModel(arguments.asr, device="cpu", compute_type="int8", cpu_threads=1), tts.load()
    if arguments.model:
        engine = tts.load(arguments.model)
    rows = []
    for text, number in TEXTS:
        for seed in range(arguments.seeds):
            speech = engine.speak(text, seed=seed, on_runaway="retry", language="english")
            heard = listen(asr, speech)
            share = heard_share(words(number), words(heard))
            rows.append({"text": text, "seed": seed, "heard": heard, "share_of_number": round(share, 2)})
    digits = [row for row in rows if any(map(str.isdigit, row["text"]))]
    spelled = [row for row in rows if row not in digits]
    means = {
        name: sum(row["share_of_number"] for row in part) / len(part)
        for name, part in (("digits", digits), ("spelled_out", spelled))
    }
    finish("digits", {"environment": environment(), "model": arguments.model or "built-in", **means, "rows": rows})


if __name__ == "__main__":
    main()
