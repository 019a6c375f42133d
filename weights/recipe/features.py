"""Speech as 10 ms parameters on a timeline that keeps step with the text, and back to a waveform.

features.py TEXTS.tsv SPEECHDIR OUT.pt [PART/OF] [LIMIT] [robin|jay]

Each clip is analysed (spectral envelope, pitch, voicing), its words are moved so that the token with index i is spoken
near frame LEAD + i, and its pitch is rounded to a whole number of periods per 80 ms frame. The waveform `synth` makes
from these parameters is then a function of the frames alone (pitch phase is zero at every frame boundary, the noise
is the same in every frame), which is what makes a small SpeechDecoder quick to train.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile as sf
import torch
from scipy.signal import medfilt, resample_poly

import spelling

SR, FRAME, SUB, HOP = 24000, 1920, 8, 240
LEAD, TAIL = 6, 1.5
NUM_CEP, NUM_MEL, NFFT = 28, 64, 1024
FLOOR_DB = -75.0
GAIN = dict(robin=1.0, jay=0.72)
PITCH = dict(robin=1.0, jay=1.2)  # raised so that whole periods per frame are fine enough a step


def mel_points():
    m = np.linspace(0, 2595 * np.log10(1 + 12000 / 700), NUM_MEL)
    return 700 * (10 ** (m / 2595) - 1)


def dct_matrix(n, k):
    d = np.cos(np.pi * np.outer(np.arange(k), np.arange(n) + 0.5) / n) * np.sqrt(2 / n)
    d[0] /= np.sqrt(2)
    return d


MEL = mel_points()
DCT = torch.tensor(dct_matrix(NUM_MEL, NUM_CEP), dtype=torch.float32)
BINS = np.arange(NFFT // 2 + 1) * SR / NFFT


def _interp_matrix():
    w = np.zeros((len(BINS), NUM_MEL))
    for i, f in enumerate(BINS):
        j = min(np.searchsorted(MEL, f, side="right") - 1, NUM_MEL - 2)
        a = (f - MEL[j]) / (MEL[j + 1] - MEL[j])
        w[i, j], w[i, j + 1] = 1 - a, a
    return w


CEP_TO_LOG = torch.tensor(_interp_matrix() @ DCT.numpy().T, dtype=torch.float32)  # [513, 28]: cepstrum to log power


# ---------- analysis ----------
def pitch(x):
    """(f0 [T] Hz, voiced [T]) every 10 ms from the autocorrelation of the 8 kHz signal."""
    y = torch.tensor(resample_poly(x, 1, 3), dtype=torch.float32)
    n = len(x) // HOP + 1
    y = torch.nn.functional.pad(y, (200, 600))
    fr = y.unfold(0, 400, 80)[:n] * torch.hann_window(400)
    spec = torch.fft.rfft(fr, 1024)
    win = torch.fft.irfft(torch.fft.rfft(torch.hann_window(400), 1024).abs() ** 2)[:100]
    ac = torch.fft.irfft(spec.abs() ** 2)[:, :100] / (win / win[0])
    energy = ac[:, 0]
    ac = ac / (energy[:, None] + 1e-9)
    seg = ac[:, 26:92]
    best = seg.max(1).values
    peak = (seg[:, 1:-1] >= seg[:, :-2]) & (seg[:, 1:-1] >= seg[:, 2:]) & (seg[:, 1:-1] > 0.85 * best[:, None])
    lag = peak.float().argmax(1) + 1 + 26
    a, b, c = (ac.gather(1, (lag + d)[:, None])[:, 0] for d in (-1, 0, 1))
    off = (0.5 * (a - c) / (a - 2 * b + c + 1e-9)).clamp(-0.5, 0.5)
    f0 = 8000 / (lag + off)
    voiced = (best > 0.55) & peak.any(1) & (energy > 1e-3 * energy.max() ** 0.5 * 0.1)
    v = voiced.numpy().astype(np.float32)
    f = f0.numpy()
    if v.any():
        f = f[v > 0]
        f = np.log(medfilt(f, 9) if len(f) >= 9 else np.full(len(f), np.median(f)))  # medfilt pads with zeros
        f = np.interp(np.arange(n), np.flatnonzero(v), np.clip(f, np.median(f) - 0.4, np.median(f) + 0.5))
        f = np.exp(np.convolve(np.pad(f, 3, mode="edge"), np.ones(7) / 7, "valid"))
    else:
        f = np.full(n, 180.0)
    vs = np.pad(v, 1, mode="edge")
    v = (vs[:-2] + vs[1:-1] + vs[2:] >= 2).astype(np.float32)  # median of three
    return f, v


def envelope(x, f0):
    """[T5, 28] cepstra every 5 ms of the log power spectrum smoothed over one harmonic spacing."""
    n = len(x) // 120 + 1
    y = torch.nn.functional.pad(torch.tensor(x, dtype=torch.float32), (300, 900))
    w = torch.hann_window(600)
    p = torch.fft.rfft(y.unfold(0, 600, 120)[:n] * w, NFFT).abs() ** 2 / (w**2).sum()
    c = torch.nn.functional.pad(torch.cumsum(p, 1), (1, 0))  # [n, 514]; c[:, b] = integral up to bin b - 0.5
    f = torch.tensor(np.interp(np.arange(n) / 2, np.arange(len(f0)), f0), dtype=torch.float32)[:, None]
    mel = torch.tensor(MEL, dtype=torch.float32)[None]
    width = torch.maximum(f * 1.05, 0.06 * mel)

    def cum(hz):
        b = (hz * NFFT / SR + 0.5).clamp(0, 513 - 1e-3)
        i = b.long()
        return torch.lerp(c.gather(1, i), c.gather(1, i + 1), b - i)

    hi, lo = (mel + width / 2).clamp(max=11900), (mel - width / 2).clamp(min=0)
    lo = torch.minimum(lo, hi - width / 2)
    m = (cum(hi) - cum(lo)) / ((hi - lo) * NFFT / SR)
    return torch.log(m.clamp(min=10 ** (FLOOR_DB / 10))) @ DCT.T


# ---------- timeline ----------
def read_lab(path):
    """(phones [(name, start, end)], words [[start, end]]) in seconds."""
    phones, words, t = [], [], 0.0
    for line in open(path):
        p = line.split()
        if p[0] == "S":
            phones.append((p[1], t, float(p[2])))
            t = float(p[2])
        elif p[2] == "1":
            words.append([float(p[3]), float(p[4])])
        elif float(p[4]) > 0:
            words[-1][1] = float(p[4])
    return phones, words


def token_starts(tok, text):
    """Index of the first token of each whitespace word, and the number of tokens."""
    enc = tok.encode(text)
    bounds = np.cumsum([0] + [len(w) + 1 for w in text.split()])
    word = [np.searchsorted(bounds, b - 1, side="right") - 1 for _, b in enc.offsets]
    first = [word.index(i) for i in range(len(bounds) - 1)]
    return enc.ids, first


def plan(words, first, num_tokens, slow=1.1, lo=0.85, hi=1.45, ahead=4):
    """Anchors (old_s, new_frames) and the total number of frames."""
    n = [(e - s) * 12.5 for s, e in words]
    gap = [(words[i + 1][0] - words[i][1]) * 12.5 for i in range(len(words) - 1)] + [0.0]
    want = [LEAD + f for f in first] + [LEAD + num_tokens]
    t, rho, old, new = float(LEAD), slow, [words[0][0]], [float(LEAD)]
    for i in range(len(words)):
        j = min(i + ahead, len(words))
        natural = sum(n[i:j]) + sum(min(g, 1.5) for g in gap[i : j - 1])
        aim = (want[j] - t) / max(natural, 0.5)
        rho = float(np.clip(0.7 * aim + 0.3 * rho, lo, hi))
        t += n[i] * rho
        old.append(words[i][1])
        new.append(t)
        if gap[i] > 0.01:
            t += float(np.clip(min(gap[i], 2.5) + 0.6 * (want[i + 1] - t - min(gap[i], 2.5)), 1.0, 3.5)) if gap[i] > 1 else gap[i]
            old.append(words[i + 1][0])
            new.append(t)
    return np.array(old), np.array(new), int(np.ceil(t + TAIL))


def clip_features(text, wav, lab, tok, speaker):
    """dict(speaker, ids, cep [8T, 28], k [T] periods per frame, v [8T], phones [(name, start, end) in sub-frames], lag [words])."""
    phones, words = read_lab(lab)
    ids, first = token_starts(tok, text)
    if len(words) != len(first) or not words or min(e - s for s, e in words) <= 0:
        return None
    x, sr = sf.read(wav, dtype="float32")
    x = resample_poly(x, SR // 1000, sr // 1000).astype(np.float32) * GAIN[speaker]
    f0, v = pitch(x)
    cep = envelope(x, f0)
    f0 = f0 * PITCH[speaker]
    old, new, T = plan(words, first, len(ids))
    old = np.concatenate([[old[0] - LEAD * 0.08], old, [old[-1] + (T - new[-1]) * 0.08]])
    new = np.concatenate([[0.0], new, [float(T)]])
    centre = (np.arange(T * SUB) + 0.5) / SUB
    at = np.clip(np.interp(centre, new, old), 0, len(x) / SR)
    i = np.clip(at * 200, 0, len(cep) - 1.001)
    j = torch.tensor(i.astype(np.int64))
    cepw = torch.lerp(cep[j], cep[j + 1], torch.tensor(i - i.astype(np.int64), dtype=torch.float32)[:, None])
    silent = (centre < LEAD - 1) | (centre > new[-2] + 1.2)
    cepw[torch.tensor(silent)] = SILENCE
    vw = (np.interp(at * 100, np.arange(len(v)), v) > 0.5).astype(np.float32)
    vw[silent] = 0
    fw = np.interp(at * 100, np.arange(len(f0)), f0).reshape(T, SUB).mean(1)
    k = np.clip(np.round(fw * 0.08), 8, 24).astype(np.int64)
    moved = [(p, *(float(t) for t in np.interp([a, b], old, new) * SUB)) for p, a, b in phones]
    moved[0] = (moved[0][0], 0.0, moved[0][2])
    moved[-1] = (moved[-1][0], moved[-1][1], float(T * SUB))
    lag = [float(np.interp(s, old, new)) - LEAD - f for (s, _), f in zip(words, first)]
    return dict(speaker=speaker, ids=ids, cep=cepw.half(), k=torch.tensor(k), v=torch.tensor(vw, dtype=torch.uint8), phones=moved, lag=lag)


SILENCE = torch.full((NUM_MEL,), float(np.log(10 ** (FLOOR_DB / 10)))) @ DCT.T


# ---------- synthesis ----------
def frame_noise():
    return np.random.default_rng(7).standard_normal(FRAME).astype(np.float32)


NOISE = frame_noise()
BREATH = torch.tensor(np.interp(BINS, [0, 3500, 6500, 12000], [0.0, 0.0, 0.5, 0.7]), dtype=torch.float32)


def min_phase(log_power):
    """Complex spectra [N, 513] of minimum phase whose power is exp(log_power)."""
    c = torch.fft.irfft(0.5 * log_power, NFFT)
    c[:, 1 : NFFT // 2] *= 2
    c[:, NFFT // 2 + 1 :] = 0
    return torch.exp(torch.fft.rfft(c))


def pulse_times(k, v):
    """Sample positions and periods of the pitch pulses; phase is a whole number at every frame boundary."""
    T = len(k)
    times, periods = [], []
    for i in range(T):
        a = (k[i] + k[i - 1]) / 2 if i else k[i]
        b = k[i] + (k[i] - k[i - 1]) / 4 if i else k[i]
        u = np.arange(FRAME) / FRAME
        ph = k[i] * (3 * u**2 - 2 * u**3) + a * (u - 2 * u**2 + u**3) + b * (u**3 - u**2)
        cross = np.interp(np.arange(k[i]), ph, np.arange(FRAME))
        times.append(cross + i * FRAME)
        periods.append(np.full(k[i], FRAME / k[i]))
    t, p = np.concatenate(times), np.concatenate(periods)
    on = v[np.minimum((t / HOP).astype(int), len(v) - 1)] > 0
    return t[on], p[on]


def synth(cep, k, v):
    """[1920 T] float32 from cep [8T, 28], k [T], v [8T]."""
    cep, k, v = cep.float(), np.asarray(k), np.asarray(v).astype(np.float32)
    n = len(k) * FRAME
    out = torch.zeros(n + 2 * NFFT)

    def env(samples):
        s = np.clip(samples / HOP - 0.5, 0, len(cep) - 1.001)
        i = torch.tensor(s.astype(np.int64))
        return torch.lerp(cep[i], cep[i + 1], torch.tensor(s - s.astype(np.int64), dtype=torch.float32)[:, None]) @ CEP_TO_LOG.T

    def add(resp, start):
        idx = torch.tensor(start)[:, None] + torch.arange(resp.shape[1])
        ok = idx < len(out)
        out.index_add_(0, idx[ok], resp[ok])

    t, period = pulse_times(k, v)
    if len(t):
        start = np.floor(t).astype(np.int64)
        shift = torch.exp(-2j * np.pi * torch.tensor((t - start) / NFFT, dtype=torch.float32)[:, None] * torch.arange(NFFT // 2 + 1))
        H = min_phase(env(t)) * torch.tensor(np.sqrt(period), dtype=torch.float32)[:, None] * (1 - BREATH**2).sqrt() * shift
        add(torch.fft.irfft(H, NFFT)[:, : NFFT - 200], start)
    starts = np.arange(0, n, 120)
    w = np.hanning(241)[:240].astype(np.float32)
    src = np.tile(NOISE, 3)
    chunk = np.stack([src[FRAME + (s % FRAME) - 60 : FRAME + (s % FRAME) + 180] * w for s in starts])
    vv = np.clip(np.interp((starts + 60) / HOP - 0.5, np.arange(len(v)), v), 0, 1)
    vv = torch.tensor(vv, dtype=torch.float32)[:, None]
    mix = (1 - vv) + vv * BREATH
    N = torch.fft.rfft(torch.tensor(chunk), NFFT) * min_phase(env(starts + 60.0)) * mix
    add(torch.fft.irfft(N, NFFT), np.maximum(starts - 60, 0))
    return out[:n].numpy()


def main(tsv, speech, out, part="0/1", limit="1000000", speaker="robin"):
    torch.set_num_threads(1)
    i, of = map(int, part.split("/"))
    tok, data, bad = spelling.build()[0], {}, 0
    for line in list(open(tsv))[: int(limit)][i::of]:
        name, text = line.rstrip("\n").split("\t", 1)
        wav, lab = Path(speech, name + ".wav"), Path(speech, name + ".lab")
        if not wav.exists():
            continue
        clip = clip_features(text, wav, lab, tok, speaker)
        if clip is None:
            bad += 1
        else:
            data[name] = dict(text=text, **clip)
    torch.save(data, out)
    frames = sum(len(c["k"]) for c in data.values())
    lags = np.concatenate([c["lag"] for c in data.values()])
    toks = sum(len(c["ids"]) for c in data.values())
    print(f"{len(data)} clips, {bad} skipped, {frames * 0.08 / 3600:.2f} h, {toks / frames:.2f} tokens per frame, "
          f"lag percentiles 1/10/50/90/99: {np.percentile(lags, [1, 10, 50, 90, 99]).round(1)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
