"""Arrays as pictures: PNG without a plotting library, colours, the mel-spectrogram and the outline of a wave."""

import base64
import struct
import zlib

import numpy as np

from ..recording import resample
from ..speech_encoder.speaker import SAMPLE_RATE, WINDOW, mel_filters

NUM_MELS, FLOOR_DB, MAX_COLUMNS = 80, -80.0, 3000
# Black over violet and orange to pale yellow, each step lighter than the one before: reads in grey as well.
HEAT = ["#060511", "#2b115e", "#6a1c81", "#a8327d", "#e3515f", "#fc8961", "#fec287", "#fcfdbf"]


def rgb(colours: list[str]) -> np.ndarray:
    """[n, 3] float64, 0..255, of "#rrggbb"."""
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], float)


def heat(values: np.ndarray) -> np.ndarray:
    """Colours [..., 3] uint8 of values 0..1 on ``HEAT``."""
    table = rgb(HEAT)
    place = np.clip(values, 0, 1) * (len(table) - 1)
    low = np.minimum(place.astype(int), len(table) - 2)
    part = (place - low)[..., None]
    return np.rint(table[low] * (1 - part) + table[low + 1] * part).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """A PNG of pixels [H, W, 3 or 4] uint8."""
    height, width, depth = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: no row filter

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if depth == 3 else 6, 0, 0, 0)
    body = part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows.tobytes(), 9)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def data_address(data: bytes, kind: str) -> str:
    """Data as an address that can stand in a page."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def mel_spectrogram(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Levels [NUM_MELS, n] in dB below the loudest, at most MAX_COLUMNS, of audio [S]; row 0 is the lowest."""
    audio = resample(np.asarray(audio, np.float32), sample_rate, SAMPLE_RATE)
    hop = max(WINDOW // 4, -(-len(audio) // MAX_COLUMNS))
    padded = np.pad(audio, (WINDOW // 2, WINDOW))
    window, filters = np.hanning(WINDOW + 1)[:-1].astype(np.float32), mel_filters(NUM_MELS)
    columns = []
    for start in range(0, len(audio), hop * 512):  # a block at a time: an hour of windows is gigabytes
        places = np.arange(start, min(start + hop * 512, len(audio)), hop)
        power = np.abs(np.fft.rfft(padded[places[:, None] + np.arange(WINDOW)] * window)) ** 2
        columns.append(filters @ power.T.astype(np.float32))
    power = np.concatenate(columns, axis=1)
    return 10 * np.log10(np.maximum(power / max(float(power.max()), 1e-12), 10 ** (FLOOR_DB / 10)))


def outline(audio: np.ndarray, num_columns: int) -> np.ndarray:
    """The lowest and highest sample [2, n] of each of at most ``num_columns`` equal parts of audio [S]."""
    edges = np.linspace(0, len(audio), min(num_columns, len(audio)), endpoint=False).astype(int)
    return np.stack([np.minimum.reduceat(audio, edges), np.maximum.reduceat(audio, edges)])


def on_columns(values: np.ndarray, starts: np.ndarray, num_samples: int, step: int) -> np.ndarray:
    """values [T, ...] of frames put on a row of columns of ``step`` samples; -1 where no frame begins."""
    columns = np.full((max(1, -(-num_samples // step)), *values.shape[1:]), -1, dtype=np.int64)
    columns[np.minimum(np.rint(starts / step).astype(int), len(columns) - 1)] = values
    return columns
