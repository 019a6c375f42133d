"""What a recogniser hears of numbers: bench/digits.py --asr DIR [MODEL] [--seeds N] [--speakers NAME ...]

DIR is a faster-whisper model (weights/recipe/README.md says which). Needs faster-whisper and scipy beside the package.
Counted are the digits, in their order, as a recogniser writes them: "one thousand two hundred" is 1200, as is "1,200".
Writes bench/results/digits.json.
"""

import argparse
import re
from difflib import SequenceMatcher
from typing import Any

from harness import finish

import mlx_rvqspec as tts
from mlx_rvqspec.bench.harness import environment

TEXTS = {  # as in tests/CASES.md B4; what should be heard
    "Can you count 1 2 3 4 5?": "12345",
    "Call 555-0100 now.": "5550100",
    "It weighs 1,200 kilograms.": "1200",
    "They sold 42 apples and 17 pears.": "4217",
    "He was born in 1984.": "1984",
    "The meeting is at 3:30.": "330",
    "The ticket costs $25.": "25",
    "Only 8% of 300 people came.": "8300",
    "The ratio is about 3.14.": "314",
    "Chapter 12 begins on page 340.": "12340",
    "She is 36 years old.": "36",
    "Room 5 is on floor 2.": "52",
    "It takes from 10 to 20 minutes.": "1020",
    "On 2026-11-29 we went home.": "292026",
    "The road is 75 km long.": "75",
    "They counted 9 ships, then 11, then 60.": "91160",
}
WORDS = dict(zip("zero one two three four five six seven eight nine ten eleven twelve".split(), map(str, range(13))))


def digits(text: str) -> str:
    """The digits of a text, in their order; a recogniser writes small numbers as words."""
    return "".join(
        re.findall("[0-9]", " ".join(WORDS.get(word, word) for word in re.findall("[a-z]+|[0-9]", text.lower())))
    )


def heard_share(wanted: str, heard: str) -> float:
    """The share of the wanted digits that are heard, in their order."""
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
    parser.add_argument("--speakers", nargs="+", default=["robin", "jay"])
    arguments = parser.parse_args()
    from faster_whisper import WhisperModel

    asr = WhisperModel(arguments.asr, device="cpu", compute_type="int8", cpu_threads=1)
    engine, rows = tts.load(arguments.model) if arguments.model else tts.load(), []
    for speaker in arguments.speakers:
        for text, wanted in TEXTS.items():
            for seed in range(arguments.seeds):
                speech = engine.speak(text, speaker=speaker, seed=seed, on_runaway="retry", language="english")
                heard = listen(asr, speech)
                share = round(heard_share(wanted, digits(heard)), 2)
                rows.append({"speaker": speaker, "text": text, "seed": seed, "heard": heard, "share": share})
    shares = {
        speaker: sum(row["share"] * len(TEXTS[row["text"]]) for row in rows if row["speaker"] == speaker)
        / (arguments.seeds * sum(map(len, TEXTS.values())))
        for speaker in arguments.speakers
    }
    finish(
        "digits", {"environment": environment(), "model": arguments.model or "built-in", "heard": shares, "rows": rows}
    )


if __name__ == "__main__":
    main()
