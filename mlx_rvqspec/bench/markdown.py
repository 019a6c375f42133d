"""The result of ``run.bench`` as Markdown, a table per suite."""

from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(result: dict[str, Any]) -> str:
    """All of it: what ran where, and the suites that were run."""
    env, model = result["environment"], result["model"]
    parts = [
        f"{model['name']}, {model['size']} {model['kind']}, {model['precision']}, "
        f"{'compiled' if result['compiled'] else 'uncompiled'}; {env['cpu']}, {env['system']}, {env['device']}, "
        f"MLX {env['mlx']}, mlx_rvqspec {env['version']} {env['commit']}".strip()
    ]
    if model["why_plain"]:
        parts.append(f"Decoded plainly: {model['why_plain']}.")
    for name, write in (("speech", speech), ("frame", frame), ("scaling", scaling)):
        if name in result["suites"]:
            parts.append(write(result["suites"][name]))
    return "\n\n".join(parts)


def speech(suite: dict[str, Any]) -> str:
    """A row per run: seconds of sound, of work, to the first sound, and what a listener would wait."""
    rows = [("cold, short", suite["cold"])]
    rows += [(f"{way}, {name}", run) for way, texts in suite["warm"].items() for name, run in texts.items()]
    head = ["speech", "sound s", "RTF", "playable s", "audible s", "gaps", "codes/round", "peak MB"]
    return table(head, [[name, *_speech_row(run)] for name, run in rows])


def _speech_row(run: dict[str, Any]) -> list[str]:
    audible = run.get("first_audible_s")
    return [
        f"{run['audio_s']:.2f}",
        f"{run['realtime_factor']:.2f}",
        f"{run['first_playable_s']:.2f}",
        "-" if audible is None else f"{audible:.2f}",
        f"{run['underruns']:.0f}",
        f"{run['codes_per_round']:.2f}",
        f"{run['peak_bytes'] / 1e6:.0f}",
    ]


def frame(suite: dict[str, Any]) -> str:
    """A row per way to decode codes 1..15, then one per other stage."""
    rows = []
    for name, time in suite["codes_ms"].items():
        kind, how = name.rsplit(" ", 1)
        spec = suite["spec"].get(kind.removeprefix("spec "), {})
        launches = spec.get(f"launches_{how}", suite["launches"][how]["multi_code_decoder plain"])
        counts = [f"{launches:.0f}", f"{spec.get('rounds', 15):.1f}", f"{spec.get('host_reads', 0):.1f}"]
        if kind == "adaptive":  # of several sizes
            counts, name = ["", "", ""], f"{name}, now {time['num_nodes']:.0f}"
        rows.append([name, *_ms(time), f"{time['speedup']:.2f}", *counts, _gb(suite["gb_per_s"].get(name))])
    for name, time in suite["stages_ms"].items():
        launches = suite["launches"][name.split()[-1]][name.split()[0]]
        rows.append([name, *_ms(time), "", str(launches), "", "", _gb(suite["gb_per_s"].get(name))])
    head = ["ms a frame", "median", "min", "max", "speed-up", "launches", "rounds", "reads", "GB/s"]
    return table(head, rows) + f"\n\nThe machine reads {suite['peak_gb_per_s']:.1f} GB/s."


def _ms(time: dict[str, float]) -> list[str]:
    return [f"{time[key]:.2f}" for key in ("median_ms", "min_ms", "max_ms")]


def _gb(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.1f}"


def scaling(suite: dict[str, Any]) -> str:
    """A table per axis: the time by size, and by size per unit."""
    titles = {
        "code_decoder_by_slots": ("slots cached", False),
        "codes_by_batch": ("texts at once", True),
        "speech_decoder_by_chunk": ("frames in a chunk", True),
    }
    parts = []
    for name, (title, shared) in titles.items():
        sizes = list(suite[name])
        times = [suite[name][size]["median_ms"] for size in sizes]
        rows = [["ms a call", *(f"{time:.2f}" for time in times)]]
        if shared:
            rows.append(["ms each", *(f"{time / int(size):.2f}" for size, time in zip(sizes, times))])
        parts.append(table([title, *map(str, sizes)], rows))
    return "\n\n".join(parts)
