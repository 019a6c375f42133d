"""mlx-audio beside this engine: the same weights, text and BLAS, both in float32, a turn each on one machine.

    python bench/peers.py --peer /path/to/venv/bin/python [MODEL] [--frames 120] [--repeats 3] [--seed 0]
    python bench/peers.py --peer ... --official /path/to/venv/bin/python   # the official package on the CPU, too
    python bench/peers.py --peer ... --full-size [FOLDER]      # as written by bench/full_size.py --keep FOLDER

Each side runs in its own process and environment (the peer's needs mlx-audio) and is asked in turns. Greedy codes of
both are compared first, so that equal work is timed. A frame's cost is the slope between a short and a longer run.
At full size the weights are random and a drafter is never right: a round is timed there, and rounds per frame are
those of the built-in voice (bench/results/acceptance.json), carried over and not measured. The last line is JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx_rvqspec  # isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
from full_size import write_checkpoint
from harness import RESULTS, finish

from mlx_rvqspec.bench.harness import environment, spread
from mlx_rvqspec.load import resolve

HERE = Path(__file__).parent
TEXT = "The quick brown fox jumps over the lazy dog, and the dog looks up for a moment."
TEXTS = [  # of the built-in voice: some seven seconds each
    "The train left at nine. It was raining, and nobody in the carriage spoke until the hills came into sight.",
    "When the lamp was lit, the whole room looked warmer than it had, and the children came in from the garden.",
    "She wrote the letter twice, put both of them into the fire, and went down to the harbour to say it herself.",
]
NUM_NODES = 4
OFFICIAL = "official package (PyTorch)"
OFFICIAL_FRAMES = 24  # it is slow
WORKERS = {"mlx-audio": "peer", OFFICIAL: "official"}  # all other sides are ours
Task = dict[str, Any]


class Worker:
    """One side in a process of its own, which works only while it is asked."""

    def __init__(self, command: list[str]) -> None:
        blas = {"LD_PRELOAD": mlx_rvqspec.BLAS, "MLX_RVQSPEC_BLAS": "off"} if mlx_rvqspec.BLAS else {}
        env = {**os.environ, **blas, "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: Any = subprocess.Popen(command, env=env, **pipes)
        self.facts = self._answer()

    def ask(self, task: Task) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[1]} ended with {self.process.wait()}; its message is above")
        return json.loads(line)


def peer_copy(folder: Path, to: Path) -> Path:
    """The folder as the peer reads it: float32, and no safetensors but the model's (it takes all there are)."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors"))
    for part in (Path(), Path("speech_tokenizer")):
        weights: Any = mx.load(str(folder / part / "model.safetensors"))
        wide = {name: value.astype(mx.float32) for name, value in weights.items()}
        mx.save_safetensors(str(to / part / "model.safetensors"), wide, metadata={"format": "pt"})
    return to


def sides_of(compiled: bool, num_nodes: int) -> dict[str, Task]:
    """What is asked of whom, besides the task: the peer, and our ways to decode."""
    how = "compiled" if compiled else "uncompiled"
    ours = {f"ours plain {how}": 1, f"ours spec {num_nodes} {how}": num_nodes}
    return {"mlx-audio": {}} | {name: {"num_nodes": n, "compiled": compiled} for name, n in ours.items()}


def in_turns(workers: dict[str, Worker], sides: dict[str, Task], task: Task, repeats: int) -> dict[str, list[dict]]:
    """The answers of every side for every text, asked by turns after a first time that does not count."""
    answers: dict[str, list[dict]] = {name: [] for name in sides}
    texts = task.get("texts", [TEXT])
    for number, text in enumerate([texts[0], *texts * repeats]):
        for name, more in sides.items():
            answer = workers[WORKERS.get(name, "ours")].ask(task | more | {"text": text, "seed": task["seed"] + number})
            if number:
                answers[name].append(answer)
    return answers


def compare_codes(workers: dict[str, Worker], sides: dict[str, Task], task: Task, text: str) -> dict[str, Any]:
    """Greedy codes of every side against the peer's: frames until they part, if they do."""
    greedy = task | {"temperature": 0.0, "text": text}
    codes = {name: workers[WORKERS.get(name, "ours")].ask(greedy | more)["codes"] for name, more in sides.items()}
    expected = codes.pop("mlx-audio")
    equal = {}
    for name, rows in codes.items():
        same = [a == b for a, b in zip(rows, expected)]
        equal[name] = same.index(False) if False in same else len(same)
    return {"num_frames": len(expected), "equal_frames": equal, "lengths": {n: len(r) for n, r in codes.items()}}


def frame_costs(
    workers: dict[str, Worker], sides: dict[str, Task], task: Task, repeats: int
) -> dict[str, dict[str, Any]]:
    """Frames per second from text to codes, and milliseconds of one frame more, from runs of two lengths."""
    short = in_turns(workers, sides, task | {"frames": 2}, repeats)
    long = in_turns(workers, sides, task, repeats)
    result = {}
    for name in sides:
        slopes = [
            1e3 * (b["seconds"] - a["seconds"]) / (len(b["codes"]) - len(a["codes"]))
            for a, b in zip(short[name], long[name])
            if len(b["codes"]) > len(a["codes"])
        ]
        rates = [len(answer["codes"]) / answer["seconds"] for answer in long[name]]
        result[name] = {
            "frames_per_s": statistics.median(rates),
            "frame": spread(slopes),
            "num_frames": [len(answer["codes"]) for answer in long[name]],
            "rounds": statistics.mean(answer.get("rounds", 15.0) for answer in long[name]),
            "peak_bytes": max(answer["peak_bytes"] for answer in long[name]),
        }
    base = result["mlx-audio"]["frame"]["median_ms"]
    for name, measured in result.items():
        measured["frame_to_peer"] = measured["frame"]["median_ms"] / base
        measured["rate_to_peer"] = measured["frames_per_s"] / result["mlx-audio"]["frames_per_s"]
        print(f"{name:28} {measured['frames_per_s']:7.2f} frames/s", measured["frame"], file=sys.stderr, flush=True)
    return result


def sound_costs(
    workers: dict[str, Worker], sides: dict[str, Task], task: Task, repeats: int
) -> dict[str, dict[str, Any]]:
    """Seconds to the first chunk of sound, and the SpeechDecoder's milliseconds per frame in such chunks."""
    codes = workers["ours"].ask(task | {"num_nodes": 1, "compiled": False, "frames": task["chunk_frames"]})["codes"]
    first = in_turns(workers, sides, task | {"task": "first_sound"}, repeats)
    steps = in_turns(workers, sides, task | {"task": "sound", "codes": codes}, repeats)
    result = {}
    for name in sides:
        per_frame = [1e3 * answer["seconds"] / len(codes) for answer in steps[name]]
        result[name] = {
            "first_sound_s": statistics.median(answer["seconds"] for answer in first[name]),
            "first_samples": first[name][0]["samples"],
            "speech_decoder_per_frame": spread(per_frame),
        }
    base = result["mlx-audio"]
    for name, measured in result.items():
        measured["first_sound_to_peer"] = measured["first_sound_s"] / base["first_sound_s"]
        ratio = measured["speech_decoder_per_frame"]["median_ms"] / base["speech_decoder_per_frame"]["median_ms"]
        measured["speech_decoder_to_peer"] = ratio
        print(name, measured, file=sys.stderr, flush=True)
    return result


def official(workers: dict[str, Worker], sides: dict[str, Task], task: Task) -> dict[str, Any]:
    """The beginning of one text spoken by the official package as well: greedy codes and costs, once."""
    sides, few = {**sides, OFFICIAL: {}}, task | {"frames": OFFICIAL_FRAMES, "texts": task["texts"][:1]}
    greedy = compare_codes(workers, sides, few, few["texts"][0])
    return {"frames": OFFICIAL_FRAMES, "greedy": greedy, "codes": frame_costs(workers, sides, few, 1)}


def carried_over(result: dict[str, Any], code_0_ms: float, num_nodes: int) -> dict[str, Any]:
    """A speculative frame at full size: a measured round, times the rounds that the built-in voice takes."""
    found = json.loads((RESULTS / "acceptance.json").read_text())["drafters"]["+ first round (ours)"]
    rounds = 15 / found["codes_per_round"][str(num_nodes)]
    plain, peer = (next(v for k, v in result.items() if k.startswith(name)) for name in ("ours plain", "mlx-audio"))
    spec = next(v for k, v in result.items() if k.startswith("ours spec"))
    round_ms = (spec["frame"]["median_ms"] - code_0_ms) / spec["rounds"]
    frame_ms = code_0_ms + rounds * round_ms
    return {
        "rounds_carried_over": rounds,
        "code_0_ms": code_0_ms,
        "round_ms": round_ms,
        "frame_ms": frame_ms,
        "to_peer": frame_ms / peer["frame"]["median_ms"],
        "to_plain": frame_ms / plain["frame"]["median_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder; else the built-in voice, or a new one at full size")
    parser.add_argument("--peer", required=True, help="python of an environment with mlx-audio")
    parser.add_argument("--official", help="python of an environment with qwen-tts")
    parser.add_argument("--full-size", action="store_true")
    parser.add_argument("--compile", action="store_true", help="our graphs compiled")
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3, help="of each text")
    parser.add_argument("--chunk-frames", type=int, default=4, help="of the first sound: 4 are 0.32 s")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.model) if args.model else Path(scratch) / "full-size" if args.full_size else resolve(None)
        if not folder.exists():
            write_checkpoint(folder)
        copy = peer_copy(folder, Path(scratch) / "peer")
        workers = {
            "peer": Worker([args.peer, str(HERE / "peers_mlx_audio.py"), str(copy)]),
            "ours": Worker(
                [sys.executable, str(HERE / "peers_ours.py"), str(folder), "random" if args.full_size else ""]
            ),
        }
        if args.official:
            workers["official"] = Worker([args.official, str(HERE / "peers_official.py"), str(folder)])
        speaker = next(iter(json.loads((folder / "config.json").read_text())["talker_config"]["spk_id"]))
        defaults = json.loads((folder / "generation_config.json").read_text())
        feed = "full" if args.full_size or defaults.get("non_streaming_mode", True) else "stream"
        task: Task = {"task": "codes", "text": TEXT, "speaker": speaker, "text_feed": feed, "temperature": 0.9}
        task["texts"] = [TEXT] if args.full_size else TEXTS
        task |= {"penalty": 1.05, "frames": args.frames, "seed": args.seed, "chunk_frames": args.chunk_frames}
        sides = sides_of(args.compile, NUM_NODES)
        result: dict[str, Any] = {
            "environment": environment(),
            "texts": task["texts"],
            "seed": args.seed,
            "frames": args.frames,
        }
        result |= {"repeats": args.repeats, "sides": {name: worker.facts for name, worker in workers.items()}}
        result["greedy"] = [compare_codes(workers, sides, task, text) for text in task["texts"]]
        print("greedy codes", result["greedy"], file=sys.stderr, flush=True)
        result["codes"] = frame_costs(workers, sides, task, args.repeats)
        if args.full_size:
            result["sound"] = sound_costs(workers, sides, task, args.repeats)
            asked = {"task": "code_0", "compiled": args.compile}
            code_0_ms = statistics.median(1e3 * workers["ours"].ask(asked)["seconds"] for _ in range(args.repeats))
            result["speculation"] = carried_over(result["codes"], code_0_ms, NUM_NODES)
        if args.official:
            result["official"] = official(workers, sides, task)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
    finish("peers_full_size" if args.full_size else "peers", result)


if __name__ == "__main__":
    main()
