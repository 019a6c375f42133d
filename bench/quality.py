"""Can the voices be understood: word error rate by speaker and stage with an independent ASR, missed ends, pictures.

    python bench/quality.py --asr DIR [MODEL] [--texts weights/recipe/heldout.tsv] [--num 120] [--seed 0]
                            [--teacher SPEAKER=WAVDIR ...] [--codes SPEAKER=CODES.npz ...]
                            [--speakers NAME ...] [--stages NAME ...] [--end-seeds 500] [--work DIR]
                            [--quantize full 8 4 mixed]     # these levels instead, into quality_quantised.json

DIR is a faster-whisper model (weights/recipe/README.md says which and where from). WAVDIR holds the teacher's
recordings of the same texts and CODES.npz their codes; the stages that need what is not given are left out.
With --speakers, what the result said of the others stays in it.
Needs faster-whisper, scipy, soundfile and matplotlib beside the package. The last line is JSON.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, finish

import mlx_rvqspec as tts
from mlx_rvqspec.bench.harness import environment

SHORT = ["OK", "5", "Hi", "Yes.", "No.", "Hello.", "Thank you.", "Good morning.", "42", "Stop!"]
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (" " + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES[n // 100] + " hundred" + (" " + spell(n % 100) if n % 100 else "")
    if n < 10**6:
        return spell(n // 1000) + " thousand" + (" " + spell(n % 1000) if n % 1000 else "")
    return str(n)


def words(text: str) -> list[str]:
    """Lower-case words with digits spelled out, so that "5" and "five" are the same."""
    text = text.lower().replace("’", "'").replace("%", " percent").replace("-", " ").replace("'", "")
    text = re.sub(r"\$(\d+)", r"\1 dollars", re.sub(r"(\d),(\d{3})", r"\1\2", text))
    text = re.sub(r"\d+", lambda m: f" {spell(int(m[0]))} ", text)
    same = {"grey": "gray", "ok": "okay", "mr": "mister", "mrs": "missus", "dr": "doctor"}
    return [same.get(w, w) for w in re.sub(r"[^a-z ]", " ", text).split()]


def distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def word_errors(asr: Any, texts: dict[str, str], audio: dict[str, np.ndarray]) -> dict[str, Any]:
    """Word error rate in %, sentences packed into windows of 27 s with 0.6 s between them."""
    from scipy.signal import resample_poly

    errors = total = 0
    heard, pack, said, seconds = [], [], [], 0.0

    def flush() -> None:
        nonlocal errors, total
        if pack:
            x = np.concatenate(pack)
            pieces, _ = asr.transcribe(
                x, language="en", temperature=0.0, condition_on_previous_text=False, without_timestamps=True
            )
            got, want = words(" ".join(p.text for p in pieces)), words(" ".join(said))
            errors, total = errors + distance(want, got), total + len(want)
            heard.append(" ".join(got))
            pack.clear(), said.clear()

    for name, text in texts.items():
        x = resample_poly(audio[name], 2, 3).astype(np.float32)
        seconds += len(x) / 16000
        if sum(map(len, pack)) + len(x) > 27 * 16000:
            flush()
        pack.append(np.pad(x, (0, int(0.6 * 16000))))
        said.append(text)
    flush()
    return {
        "word_error_rate": round(100 * errors / total, 2),
        "num_words": total,
        "audio_s": round(seconds, 1),
        "heard": heard,
    }


def synthesise(
    engine: tts.Engine, speaker: str, texts: dict[str, str], seed: int, decode: str, **knobs: float
) -> tuple[dict, dict]:
    """(audio by id, what it took): one seed for all texts; knobs replace the checkpoint's own sampling settings."""
    audio, frames, begin, unfinished = {}, [], time.perf_counter(), 0
    for name, text in texts.items():
        sampling = replace(engine.sampling, max_frames=40 + 2 * len(text), **knobs)
        speech = engine.speak(text, speaker=speaker, seed=seed, decode=decode, sampling=sampling)
        audio[name] = speech.audio
        frames.append(len(speech.codes) / max(1, len(text)))
        unfinished += speech.finish_reason == "limit" or len(speech.codes) >= sampling.max_frames - 1
    seconds = sum(map(len, audio.values())) / engine.sample_rate
    rate = np.array(frames)
    return audio, {
        "real_time_factor": round((time.perf_counter() - begin) / seconds, 3),
        "missed_ends": unfinished,
        "frames_per_character": [round(float(np.percentile(rate, p)), 3) for p in (5, 50, 95)],
    }


def quantised(model: str | None, level: str) -> tts.Engine:
    """The engine at a level; "full" is the model as it is."""
    return tts.load(model, quantize=int(level) if level.isdigit() else None if level == "full" else level)


def missed_ends(engine: tts.Engine, speaker: str, num: int) -> dict[str, Any]:
    """Short texts, every seed once: runs that do not stop by themselves, and frames made."""
    misses, frames = 0, []
    for seed in range(num):
        text = SHORT[seed % len(SHORT)]
        limit = 60
        sampling = replace(engine.sampling, max_frames=limit)
        speech = engine.speak(text, speaker=speaker, seed=seed, decode="plain", sampling=sampling)
        misses += len(speech.codes) >= limit - 1
        frames.append(len(speech.codes))
    return {"seeds": num, "missed": misses, "frames": [int(np.percentile(frames, p)) for p in (5, 50, 95, 100)]}


def picture(speaker: str, stages: dict[str, np.ndarray], text: str) -> Path:
    """Mel-like spectrograms of one sentence, one row per stage."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(stages), 1, figsize=(11, 2.2 * len(stages)), squeeze=False)
    for axis, (name, x) in zip(axes[:, 0], stages.items()):
        axis.specgram(
            x + 1e-6 * np.random.default_rng(0).standard_normal(len(x)), NFFT=512, Fs=24000, noverlap=384, vmin=-130
        )
        axis.set(title=f"{name}: {text}", ylim=(0, 8000), ylabel="Hz")
    figure.tight_layout()
    path = RESULTS / f"quality_{speaker}.png"
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(path, dpi=70)
    return path


def read_teacher(folder: str, texts: dict[str, str]) -> dict[str, np.ndarray]:
    import soundfile
    from scipy.signal import resample_poly

    out = {}
    for name in texts:
        x, rate = soundfile.read(Path(folder) / f"{name}.wav", dtype="float32")
        out[name] = resample_poly(x, 24000 // 8000, rate // 8000).astype(np.float32)
    return out


def save(folder: Path, stage: str, audio: dict[str, np.ndarray]) -> None:
    import soundfile

    (folder / stage).mkdir(parents=True, exist_ok=True)
    for name, x in audio.items():
        soundfile.write(folder / stage / f"{name}.wav", x, 24000)


def stages_of(
    engine: tts.Engine, speaker: str, texts: dict[str, str], options: argparse.Namespace
) -> dict[str, Callable[[], tuple[dict, dict]]]:
    """What makes the audio of each stage of a speaker."""

    def stage(engine: tts.Engine, decode: str, **knobs: float) -> Callable[[], tuple[dict, dict]]:
        return lambda: synthesise(engine, speaker, texts, options.seed, decode, **knobs)

    if options.quantize:
        return {level: stage(quantised(options.model, level), "plain") for level in options.quantize}
    stages: dict[str, Callable[[], tuple[dict, dict]]] = {}
    teacher, codes = (dict(pair.split("=", 1) for pair in pairs) for pairs in (options.teacher, options.codes))
    if speaker in teacher:
        stages["teacher"] = lambda: (read_teacher(teacher[speaker], texts), {})
    if speaker in codes:
        arrays = np.load(codes[speaker])
        stages["codec"] = lambda: ({n: engine.decode(arrays[n].astype(np.int32)) for n in texts}, {})
    stages["plain"] = stage(engine, "plain")
    stages["plain, temperature 0.9"] = stage(engine, "plain", temperature=0.9)
    if not engine.why_plain:
        stages["spec"] = stage(engine, "spec")
    return {name: make for name, make in stages.items() if name in (options.stages or stages)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--asr", required=True)
    parser.add_argument("--texts", default=str(Path(__file__).parents[1] / "weights" / "recipe" / "heldout.tsv"))
    parser.add_argument("--num", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teacher", nargs="+", default=[])
    parser.add_argument("--codes", nargs="+", default=[])
    parser.add_argument("--speakers", nargs="+", default=[])
    parser.add_argument("--stages", nargs="+", default=[])
    parser.add_argument("--end-seeds", type=int, default=500)
    parser.add_argument("--quantize", nargs="+", default=[])
    parser.add_argument("--work", default=tempfile.gettempdir() + "/quality")
    options = parser.parse_args()
    from faster_whisper import WhisperModel

    asr = WhisperModel(options.asr, device="cpu", compute_type="int8", cpu_threads=1)
    rows = [line.rstrip("\n").split("\t", 1) for line in open(options.texts, encoding="utf8")][: options.num]
    texts = {name: text for name, text in rows}
    begin = time.perf_counter()
    engine = tts.load(options.model)
    result: dict[str, Any] = {"environment": environment(), "load_s": round(time.perf_counter() - begin, 2)}
    result |= {"num_texts": len(texts), "seed": options.seed, "speakers": {}}
    for speaker in engine.speakers[:1] if options.quantize else options.speakers or engine.speakers:
        result["speakers"][speaker] = scores = {}
        plain: dict[str, np.ndarray] = {}
        example: dict[str, np.ndarray] = {}
        for stage, make in stages_of(engine, speaker, texts, options).items():
            audio, extra = make()
            save(Path(options.work) / speaker, stage, audio)
            if stage == "plain":
                plain = audio
            if stage == "spec" and all(np.array_equal(audio[name], plain[name]) for name in texts):
                scores[stage] = {**scores["plain"], **extra, "same_samples_as": "plain"}  # what is heard is, too
            else:
                scores[stage] = {**word_errors(asr, texts, audio), **extra}
            example[stage] = audio[next(iter(texts))]
            print(speaker, stage, {k: v for k, v in scores[stage].items() if k != "heard"}, flush=True)
        if not options.quantize:
            scores["short texts"] = missed_ends(engine, speaker, options.end_seeds)
            scores["picture"] = picture(speaker, example, next(iter(texts.values()))).name
    if options.quantize:
        return finish("quality_quantised", result)
    if options.speakers and (RESULTS / "quality.json").exists():
        before = json.loads((RESULTS / "quality.json").read_text())
        result["speakers"] = before.get("speakers", {}) | result["speakers"]
    finish("quality", result)


if __name__ == "__main__":
    main()
