"""A record as one HTML page that needs nothing else: pictures, sound and the little program that ties them together."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from ..audio import to_pcm16, wav_header
from .pictures import data_address, heat, mel_spectrogram, on_columns, outline, png, rgb
from .record import Record

WIDTH, LEFT, RIGHT = 1120, 96, 96  # of every picture, and of what stands beside its plot
PLOT = WIDTH - LEFT - RIGHT
LONGEST_SOUND_S = 120.0  # that is put into the page: 8 MB
OWN, DRAFTED = "#d5d7de", ["#a6dba0", "#5fc08b", "#2f9f8c", "#2b7a91", "#33558c", "#3b2f7a"]
CODE_ROW, MEL_HEIGHT, WAVE_HEIGHT, ROUNDS_HEIGHT, LANE = 10, 160, 72, 96, 22
TEMPLATE = Path(__file__).with_name("page.html")


def render(record: Record, name: str) -> str:
    """The page of a record; name: what the sound is called."""
    parts = [_wave(record), _mel(record)]
    if len(record.codes):
        parts += [_codes(record), _origins(record), _rounds(record)]
    frames = {"starts": record.starts.tolist(), "codes": record.codes.tolist(), "depths": record.depths.tolist()}
    few = record.audio_s <= LONGEST_SOUND_S
    wav = wav_header(record.sample_rate, 2 * len(record.audio)) + to_pcm16(record.audio).tobytes() if few else b""
    fields = {
        "TITLE": escape(str(record.facts.get("text") or name))[:300],
        "NAME": escape(name),
        "FACTS": "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in told(record)),
        "SOUND": f'<audio controls src="{data_address(wav, "audio/wav")}"></audio>' if few else "",
        "PICTURES": "\n".join(parts),
        "TIMELINE": _timeline(record) if len(record.stages) else "",
        "DATA": json.dumps(
            {"rate": record.sample_rate, "length": record.audio_s, "left": LEFT / WIDTH, "plot": PLOT / WIDTH}
            | (frames if few else {"starts": [], "codes": [], "depths": []})
        ),
    }
    return re.sub("@([A-Z]+)@", lambda match: fields[match[1]], TEMPLATE.read_text(encoding="utf-8"))


def told(record: Record) -> list[tuple[str, str]]:
    """The few facts that are shown first, as names and values for people."""
    facts = record.facts
    pairs: list[tuple[str, str]] = [("length", f"{record.audio_s:.2f} s")]
    if len(record.codes):
        pairs.append(("frames", str(len(record.codes))))
        rest = record.codes.shape[1] - 1
        pairs.append(("codes per round", f"{rest * len(record.codes) / record.rounds.sum():.2f}"))
    for key, label, form in (
        ("realtime_factor", "real-time factor", "{:.2f}"),
        ("time_to_first_audio_s", "first sound after", "{:.2f} s"),
        ("decode", "decoded", "{}"),
        ("finish_reason", "ended by", "{}"),
        ("speaker", "speaker", "{}"),
        ("language", "language", "{}"),
        ("seed", "seed", "{}"),
        ("model", "model", "{}"),
        ("comment", "comment", "{}"),
    ):
        value = facts.get(key)
        if isinstance(value, str if form == "{}" and key != "seed" else int | float) and value != "":
            pairs.append((label, form.format(value)))
    return pairs


def _panel(title: str, note: str, height: int, body: str, *, timed: bool = True) -> str:
    kind = ' class="timed"' if timed else ""
    return (
        f"<section{kind}><h2>{title}</h2><p>{note}</p>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{body}</svg></section>'
    )


def _text(x: float, y: float, text: str, anchor: str = "end") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _image(pixels: np.ndarray, height: int, *, smooth: bool = False) -> str:
    kind = "" if smooth else ' style="image-rendering:pixelated"'
    return (
        f'<image x="{LEFT}" y="0" width="{PLOT}" height="{height}" preserveAspectRatio="none"{kind} '
        f'href="{data_address(png(pixels), "image/png")}"/>'
    )


def _ticks(length: float, num: int = 10) -> list[float]:
    """Round places on an axis from 0 to ``length``, about ``num`` of them."""
    raw = max(length, 1e-9) / num
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [float(step * i) for i in range(int(length / step + 1e-9) + 1)]


def _seconds(length_s: float, y: float) -> str:
    """An axis of seconds whose labels stand at height ``y``."""
    marks = []
    for tick in _ticks(length_s):
        x = LEFT + PLOT * tick / length_s
        marks.append(f'<path class="tick" d="M{x:.1f} {y - 12:.1f}v4"/>' + _text(x, y, f"{tick:g}", "middle"))
    return "".join(marks) + _text(WIDTH - RIGHT + 16, y, "s", "start")


def _wave(record: Record) -> str:
    peak = float(np.abs(record.audio).max())
    low, high = outline(record.audio, PLOT) / max(peak, 1e-5)
    middle, half = WAVE_HEIGHT / 2, WAVE_HEIGHT / 2 - 2
    step = PLOT / len(low)
    there = [f"{LEFT + step * (i + 0.5):.1f},{middle - half * value:.1f}" for i, value in enumerate(high)]
    back = [f"{LEFT + step * (i + 0.5):.1f},{middle - half * value:.1f}" for i, value in enumerate(low)]
    body = f'<path class="tick" d="M{LEFT} {middle}h{PLOT}"/>'
    body += f'<polygon class="wave" points="{" ".join([*there, *reversed(back)])}"/>'
    return _panel("Wave", f"drawn to its peak, {20 * np.log10(max(peak, 1e-5)):.1f} dB", WAVE_HEIGHT, body)


def _mel(record: Record) -> str:
    levels = mel_spectrogram(record.audio, record.sample_rate)[::-1]
    body = _image(heat(1 + levels / 80), MEL_HEIGHT, smooth=True)
    for share, label in ((0.0, "12 kHz"), (0.55, "2"), (0.80, "0.6"), (1.0, "0")):
        body += _text(LEFT - 8, 10 + share * (MEL_HEIGHT - 12), label)
    body += _seconds(record.audio_s, MEL_HEIGHT + 18)
    return _panel("Mel-spectrogram", "dark to light: 80 dB below the loudest, to the loudest", MEL_HEIGHT + 22, body)


def _frame_pixels(record: Record, colours: np.ndarray) -> np.ndarray:
    """Pixels [16, columns, 4] of colours [T, 16, 3], clear where there is no frame."""
    step = int(np.diff(record.starts).min()) if len(record.starts) > 1 else len(record.audio)
    marked = np.concatenate([colours, np.full((*colours.shape[:2], 1), 255)], axis=2).astype(np.int64)
    columns = on_columns(marked, record.starts, len(record.audio), max(1, step))
    return np.maximum(columns, 0).transpose(1, 0, 2).astype(np.uint8)


def _books(num_books: int) -> str:
    return "".join(
        _text(LEFT - 8, (book + 1) * CODE_ROW - 1, f"codebook {book}" if book == 0 else str(book))
        for book in range(0, num_books, 3)
    )


def _codes(record: Record) -> str:
    largest = np.maximum(record.codes.max(axis=0), 1)
    height = CODE_ROW * record.codes.shape[1]
    body = _image(_frame_pixels(record, heat(0.1 + 0.9 * record.codes / largest)), height)
    note = "a column is a frame of 80 ms; dark to light: code 0 to the codebook's largest here; steady sound repeats"
    return _panel("Codes", note, height, body + _books(record.codes.shape[1]))


def _palette(deepest: int) -> list[str]:
    return [OWN, *(DRAFTED[min(depth, len(DRAFTED)) - 1] for depth in range(1, deepest + 1))]


def _origins(record: Record) -> str:
    deepest = int(record.depths.max())
    height = CODE_ROW * record.depths.shape[1]
    colours = _palette(deepest)
    body = _image(_frame_pixels(record, rgb(colours)[record.depths]), height) + _books(record.depths.shape[1])
    for book, share in enumerate((record.depths > 0).mean(axis=0)):
        if book:
            y, x = book * CODE_ROW, WIDTH - RIGHT + 6
            body += f'<rect class="share" x="{x}" y="{y + 1}" width="{50 * share:.1f}" height="{CODE_ROW - 2}"/>'
            body += _text(WIDTH, y + CODE_ROW - 1, f"{100 * share:.0f} %")
    names = [
        "the decoder",
        *(f"a draft {depth} ahead" if depth == 1 else f"{depth}" for depth in range(1, deepest + 1)),
    ]
    keys = "".join(f'<i style="background:{colour}"></i>{name}' for name, colour in zip(names, colours))
    note = f'<span class="key">{keys}</span>; at the right, how often a draft was right'
    return _panel("Who chose them", note, height, body)


def _rounds(record: Record) -> str:
    rounds = record.rounds
    top, bottom = int(rounds.max()), ROUNDS_HEIGHT - 4
    scale = (bottom - 6) / top
    step = np.diff(record.starts).min() if len(rounds) > 1 else len(record.audio)
    bars = []
    for start, value in zip(record.starts, rounds):
        x, width = LEFT + PLOT * start / len(record.audio), PLOT * step / len(record.audio)
        bars.append(f"M{x:.2f} {bottom}v{-scale * value:.1f}h{width * 0.9:.2f}V{bottom}")
    body = f'<path class="bars" d="{"".join(bars)}"/>'
    for tick in sorted({1, top, int(np.median(rounds))}):
        y = bottom - scale * tick
        body += f'<path class="tick" d="M{LEFT} {y:.1f}h{PLOT}"/>' + _text(LEFT - 8, y + 4, str(tick))
    body += _seconds(record.audio_s, ROUNDS_HEIGHT + 14)
    note = f"{rounds.mean():.2f} on average; {record.codes.shape[1] - 1} without speculation; fewer is faster"
    return _panel("Rounds per frame", note, ROUNDS_HEIGHT + 18, body)


def heard(stages: np.ndarray) -> list[tuple[float, float]]:
    """When each chunk would be heard, begin and end in s, by one who listens from the first sound on."""
    spans, end = [], 0.0
    for ready, length in stages[:, 2:]:
        begin = max(end, float(ready))
        end = begin + float(length)
        spans.append((begin, end))
    return spans


def _timeline(record: Record) -> str:
    spans = heard(record.stages)
    waits = [(end, begin) for (_, end), (begin, _) in zip(spans, spans[1:]) if begin - end > 1e-3]
    load_s = record.facts.get("load_s")
    load_s = float(load_s) if isinstance(load_s, int | float) and 0 <= load_s < 1e6 else 0.0
    whole = max(spans[-1][1], float(record.stages[:, 2].max())) + load_s

    def lane(row: int, kind: str, intervals: Sequence[tuple[float, float]]) -> str:
        y, height = row * LANE + 3, LANE - 6
        rows = (
            f"M{LEFT + PLOT * (begin + load_s) / whole:.2f} {y}h{PLOT * max(end - begin, 0) / whole:.2f}v{height}"
            f"H{LEFT + PLOT * (begin + load_s) / whole:.2f}z"
            for begin, end in intervals
        )
        return f'<path class="{kind}" d="{"".join(rows)}"/>'

    codes = [(row[0], row[1]) for row in record.stages]
    sound = [(row[1], row[2]) for row in record.stages]
    names = ["load", "codes", "SpeechDecoder", "heard"]
    body = "".join(_text(LEFT - 8, row * LANE + 15, name) for row, name in enumerate(names))
    body += lane(0, "load", [(-load_s, 0.0)] if load_s else []) + lane(1, "codes", codes) + lane(2, "sound", sound)
    body += lane(3, "heard", spans) + lane(3, "wait", waits) + _seconds(whole, 4 * LANE + 18)
    note = "wall-clock time, from the start of loading; heard: by one who listens from the first sound on"
    waited = sum(end - begin for begin, end in waits)
    note += f"; red: it waits {len(waits)} times, {waited:.2f} s in all" if waits else "; it never waits"
    return _panel("When", note, 4 * LANE + 22, body, timed=False)
