"""Train the SpeechDecoder: codes to the waveform that features.synth makes of the same clip.

train_decoder.py FIT.pt OUTDIR CLIPS.pt... [--start MODEL.safetensors] [--steps N] [--clips N] [--seed S] [--smoke]

Writes OUTDIR/state.pt (weights, their running mean, optimiser, step; picked up again when it exists) and OUTDIR/log.txt.
Losses: log mel and magnitude at three resolutions, and the complex spectrum, since the target's phase follows from the codes.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from codes import KR, NUM_PCA, encode
from decoder_net import CONFIG, SAMPLES, SpeechDecoder
from features import synth

SKIP = 4


def second_rows(net, fit):
    """Give a trained decoder the second speaker's entries; nothing else is touched."""
    with torch.no_grad():
        scale, rest = fit["env0"].std(), net.quantizer.rvq_rest.vq.layers
        rest[0]._codebook.embedding_sum[KR : 2 * KR] = pitch_rows(fit, net)[KR:]
        for i, book in enumerate(fit["books"]):
            rest[i + 1]._codebook.embedding_sum[KR : 2 * KR] = F.pad(book[KR:] / scale, (0, rest[0]._codebook.embedding_sum.shape[1] - NUM_PCA))


def pitch_rows(fit, net):
    """[entries of code 1, codebook_dim / 2]: the speaker's envelope, bumps over periods per frame, voicing."""
    k, v = fit["book1"][:, :1], fit["book1"][:, 1:]
    bumps = torch.exp(-0.5 * ((k - torch.linspace(9, 22, 40)) / 0.7) ** 2) * 2
    rows = torch.cat([fit["shift"] / fit["env0"].std(), bumps, v], 1)
    return F.pad(rows, (0, net.quantizer.rvq_rest.vq.layers[0]._codebook.embedding_sum.shape[1] - rows.shape[1]))


def initial_tables(net, fit):
    """Start the books from the quantiser's own vectors: near codes begin near."""
    with torch.no_grad():
        scale = fit["env0"].std()
        half = net.quantizer.rvq_first.output_proj.weight.shape[1]
        first = net.quantizer.rvq_first.vq.layers[0]._codebook.embedding_sum
        first[:, :64] = fit["env0"] / scale
        p = fit["ph0"].flatten(1)
        p = p - p.mean(0)
        _, _, v = torch.linalg.svd(p, full_matrices=False)
        z = p @ v[: half - 64].T
        first[:, 64:] = z / z.std()
        rest = net.quantizer.rvq_rest.vq.layers
        for layer in rest:
            layer._codebook.embedding_sum.zero_()
        rest[0]._codebook.embedding_sum[: len(fit["book1"])] = pitch_rows(fit, net)
        for i, book in enumerate(fit["books"]):
            rest[i + 1]._codebook.embedding_sum[: book.shape[0], :NUM_PCA] = book / scale


def spectra(x, n):
    return torch.stft(x, n, n // 4, window=torch.hann_window(n), return_complex=True)


def mel_bank(n, bands):
    to_mel, to_hz = lambda f: 2595 * np.log10(1 + f / 700), lambda m: 700 * (10 ** (m / 2595) - 1)
    p, f = to_hz(np.linspace(0, to_mel(12000), bands + 2)), np.arange(n // 2 + 1) * 24000 / n
    up, down = (f - p[:-2, None]) / (p[1:-1] - p[:-2])[:, None], (p[2:, None] - f) / (p[2:] - p[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(up, down)), dtype=torch.float32)


BANKS = {512: mel_bank(512, 40), 1024: mel_bank(1024, 80), 2048: mel_bank(2048, 120)}


def loss_terms(y, x):
    """(log mel, magnitude, complex spectrum) distances."""
    mel = mag = 0.0
    for n, bank in BANKS.items():
        Y, X = spectra(y, n), spectra(x, n)
        a, b = (Y.real.square() + Y.imag.square() + 1e-9).sqrt(), X.abs()
        mel = mel + ((bank @ a).clamp(min=1e-2).log() - (bank @ b).clamp(min=1e-2).log()).abs().mean()
        mag = mag + (a - b).abs().mean() / (b.mean() + 1e-2) + 0.2 * (a.clamp(min=1e-2).log() - b.clamp(min=1e-2).log()).abs().mean()
        if n == 1024:
            d = Y - X
            phase = (d.real.square() + d.imag.square() + 1e-9).sqrt().mean() / (b.mean() + 1e-2)
    return mel / 3, mag / 3, phase


def load_clips(paths, fit, num, cache):
    if cache.exists():
        return torch.load(cache)
    out = []
    for p in paths:
        for c in list(torch.load(p, weights_only=False).values())[: num // len(paths)]:
            if len(c["k"]) > 8:
                x = torch.tensor(synth(c["cep"], c["k"], c["v"])).clamp(-1, 1)
                out.append((encode(c, fit), (x * 32767).to(torch.int16)))
    torch.save(out, cache)
    return out


def batch(data, size, frames, g):
    codes, wave = [], []
    for i in torch.randint(len(data), (size,), generator=g).tolist():
        c, x = data[i]
        c, x = F.pad(c.long(), (0, 0, 0, max(0, frames - len(c))), value=-1), F.pad(x, (0, max(0, frames - len(c)) * SAMPLES))
        if c[-1, 0] < 0:
            c[c[:, 0] < 0] = c[c[:, 0] >= 0][-1]
        a = int(torch.randint(len(c) - frames + 1, (1,), generator=g))
        codes.append(c[a : a + frames])
        wave.append(x[(a + SKIP) * SAMPLES : (a + frames) * SAMPLES].float() / 32767)
    return torch.stack(codes), torch.stack(wave)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("fit"), ap.add_argument("out", type=Path), ap.add_argument("clips", nargs="+")
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--clips-used", type=int, default=1200)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--frames", type=int, default=14)
    ap.add_argument("--units", type=int, default=1, help="blocks whose residual units are trained; 4 for the last stretch")
    ap.add_argument("--start", help="begin from these exported weights, with new entries for the second speaker")
    ap.add_argument("--smoke", action="store_true")
    a = ap.parse_args()
    if a.smoke:
        a.steps, a.clips_used = 40, 40
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    a.out.mkdir(parents=True, exist_ok=True)
    fit = torch.load(a.fit, weights_only=False)
    data = load_clips(a.clips, fit, a.clips_used, a.out / "wave.pt")
    net = SpeechDecoder(CONFIG)
    if a.start:
        net.load_state_dict({k.removeprefix("decoder."): v.float() for k, v in load_file(a.start).items()})
        second_rows(net, fit)
    else:
        initial_tables(net, fit)
    net.use_units(a.units)
    opt = torch.optim.AdamW(net.parameters(), a.lr, betas=(0.8, 0.99), weight_decay=0.001)
    mean = {k: v.clone() for k, v in net.state_dict().items()}
    step, state = 0, a.out / "state.pt"
    if state.exists():
        s = torch.load(state)
        net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
        mean, step = s["mean"], s["step"]
    log = open(a.out / "log.txt", "a")
    avg, t0 = None, time.process_time()
    while step < a.steps:
        g = torch.Generator().manual_seed(a.seed * 1_000_003 + step)
        codes, x = batch(data, a.batch, a.frames, g)
        lr = a.lr * min(1, (step + 1) / 60) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        for group in opt.param_groups:
            group["lr"] = lr
        y = net(codes, SKIP)
        e, m, p = loss_terms(y[:, SAMPLES // 2 :], x[:, SAMPLES // 2 :])
        loss = 1.5 * e + 0.5 * m + 0.2 * p
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        step += 1
        decay = min(0.998, step / (step + 20))
        with torch.no_grad():
            for k, v in net.state_dict().items():
                mean[k].lerp_(v, 1 - decay)
        cur = torch.tensor([e.item(), m.item(), p.item()])
        avg = cur if avg is None else avg.lerp(cur, 0.04)
        if step % 20 == 0 or a.smoke:
            print(f"step {step} mel {avg[0]:.4f} magnitude {avg[1]:.4f} phase {avg[2]:.4f} cpu {time.process_time() - t0:.0f} s", file=log, flush=True)
        if step % 100 == 0 or step == a.steps:
            torch.save(dict(net=net.state_dict(), opt=opt.state_dict(), mean=mean, step=step), str(state) + ".tmp")
            Path(str(state) + ".tmp").rename(state)


if __name__ == "__main__":
    main()
