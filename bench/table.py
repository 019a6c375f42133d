"""Fill the tables of README.md and docs/speed.md from the committed results, or say which are not in step.

    python bench/table.py [--check]

A table stands between <!-- table NAME --> and <!-- end -->; NAME is a result without its .json. One that was not run
yet says so.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import RESULTS

from mlx_rvqspec.bench.markdown import report, table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "speed.md"]
PLACE = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.S)


def quantisation(result: dict[str, Any]) -> str:
    rows = []
    for name, level in result["levels"].items():
        kl, same, drawn = level["kl_nats"], level["likeliest_same"], level["drawn_same"]
        megabytes = sum(level["bytes"].values()) / 1e6
        rounds = f"{level['codes_per_round']:.2f}" if "codes_per_round" in level else "-"
        rows.append(
            [name, f"{megabytes:.1f}", f"{kl['code_0']:.4f}", f"{kl['codes_1_to_15']:.4f}"]
            + [f"{100 * share:.1f}" for part in (same, drawn) for share in part.values()]
            + [rounds]
        )
    head = ["weights", "MB", "KL code 0", "KL 1-15", "likeliest 0 %", "1-15 %", "drawn 0 %", "1-15 %", "codes/round"]
    return table(head, rows) + f"\n\n{result['num_frames']} frames of {result['num_texts']} texts; {made(result)}"


def peers(result: dict[str, Any]) -> str:
    greedy = result["greedy"] if isinstance(result["greedy"], list) else [result["greedy"]]
    rows = [
        [name, f"{side['frames_per_s']:.1f}", f"{side['rate_to_peer']:.2f}", f"{side['frame']['median_ms']:.1f}"]
        + [f"{side['frame_to_peer']:.2f}", f"{side['rounds']:.1f}"]
        for name, side in result["codes"].items()
    ]
    head = ["text to codes", "frames/s", "times the peer's", "ms a frame more", "of the peer's", "rounds"]
    equal = sum(min(text["equal_frames"].values()) for text in greedy)
    total = sum(text["num_frames"] for text in greedy)
    note = f"Greedy codes are equal for {equal} of {total} frames. {made(result)}"
    return "\n\n".join([table(head, rows), *_sound(result), note, *_official(result)])


def _official(result: dict[str, Any]) -> list[str]:
    if "official" not in result:
        return []
    found = result["official"]
    sides = ", ".join(f"{name} {side['frames_per_s']:.1f}" for name, side in found["codes"].items())
    equal = min(found["greedy"]["equal_frames"].values())
    return [f"{found['frames']} frames of one text, frames/s: {sides}; greedy codes are equal for {equal} frames."]


def _sound(result: dict[str, Any]) -> list[str]:
    if "sound" not in result:
        return []
    rows = [
        [name, f"{side['first_sound_s']:.2f}", f"{side['first_sound_to_peer']:.2f}"]
        + [f"{side['speech_decoder_per_frame']['median_ms']:.0f}", f"{side['speech_decoder_to_peer']:.2f}"]
        for name, side in result["sound"].items()
    ]
    spec = result["speculation"]
    carried = (
        f"By speculation a frame takes {spec['frame_ms']:.0f} ms, {spec['to_peer']:.2f} of the peer's, in "
        f"{spec['rounds_carried_over']:.2f} rounds as on the built-in voice: carried over, not measured here."
    )
    return [table(["sound", "first s", "of the peer's", "ms a frame", "of the peer's"], rows), carried]


def cost_model(result: dict[str, Any]) -> str:
    sizes = list(next(iter(result["devices"].values()))["speedup_codes"])
    rows = [
        [name, f"{d['code_0_ms']:.1f}", f"{d['plain_ms']:.1f}", *(f"{d['speedup_codes'][n]:.2f}" for n in sizes)]
        for name, d in result["devices"].items()
    ]
    points = [
        [row["assumed_device"], str(row["num_nodes"]), f"{row['published']:.2f}", f"{row['predicted']:.2f}"]
        for row in result["published"]
    ]
    return "\n\n".join(
        [
            table(["predicted, bf16", "code 0 ms", "plain 1-15 ms", *(f"speed-up N={n}" for n in sizes)], rows),
            table(["assumed device", "N", "published", "predicted"], points),
        ]
    )


def made(result: dict[str, Any]) -> str:
    env = result["environment"]
    return f"{env['cpu']}, {env['system']}, MLX {env['mlx']}, {env['blas']}, at {env['commit']}."


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "quantisation": quantisation,
    "peers": peers,
    "peers_full_size": peers,
    "cost_model": cost_model,
    "bench": report,
}


def fill(text: str) -> str:
    """The text with every table as its result has it."""

    def written(place: re.Match[str]) -> str:
        path = RESULTS / f"{place[1]}.json"
        content = WRITERS[place[1]](json.loads(path.read_text())) if path.exists() else "Not run yet."
        return f"<!-- table {place[1]} -->\n{content}\n<!-- end -->"

    return PLACE.sub(written, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where something would")
    args = parser.parse_args()
    behind = [path for path in PAGES if fill(path.read_text()) != path.read_text()]
    for path in behind:
        print(path.relative_to(ROOT))
        if not args.check:
            path.write_text(fill(path.read_text()))
    sys.exit(args.check and bool(behind))


if __name__ == "__main__":
    main()
