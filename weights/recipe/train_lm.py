"""Train the CodeDecoder and the MultiCodeDecoder on text and codes.

train_lm.py FIT.pt OUTDIR CODES.pt... --heldout CODES.pt... [--start MODEL.safetensors] [--bf16] [--steps N] [--seed S] [--smoke]

The prompt is the published one, text streams in one token per frame. The frames fed back are damaged on purpose: whole
frames dropped or foreign, codes 1..15 exchanged for those of another frame with the same code 0, code 0 replaced by the
model's own guess (after --warm steps). A head on the middle layer predicts the coming phones; it is not exported.
Every --check steps it speaks held-out texts freely and compares the phones that code 0 spells with the teacher's.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import spelling
from codes import edit_distance, phone_labels, phone_string
from muon import Muon
from speak import columns, entropy, generate, specials
from talker_net import EOS, K0, NUM_BOOKS, SPEAKERS, Talker, config

BATCH_FRAMES = 2000


class Corpus:
    def __init__(self, paths, special):
        self.ids, self.codes, self.speaker = [], [], []
        for p in paths:
            for c in torch.load(p, weights_only=False).values():
                if len(c["codes"]) <= 150:
                    self.ids.append(torch.tensor([*c["ids"], special["tts_eos"]]))
                    self.codes.append(c["codes"])
                    self.speaker.append(list(SPEAKERS).index(c["speaker"]))
        every = torch.cat(self.codes)
        of = torch.repeat_interleave(torch.tensor(self.speaker), torch.tensor([len(c) for c in self.codes]))
        key = of * K0 + every[:, 0]
        order = key.argsort(stable=True)
        self.rows = every[order]
        self.count = torch.bincount(key, minlength=len(SPEAKERS) * K0)
        self.start = self.count.cumsum(0) - self.count
        self.num_frames = len(every)

    def draw(self, start, count, g):
        return self.rows[(start + (torch.rand(start.shape, generator=g) * count).long()).clamp(max=len(self.rows) - 1)].long()

    def same_code0(self, c0, speaker, g):
        """Frames [..., 16] of this speaker drawn from the corpus with these codes 0."""
        key = speaker * K0 + c0
        return self.draw(self.start[key], self.count[key], g)

    def any_frame(self, speaker, g):
        """Frames [..., 16] drawn from all of these speakers'."""
        return self.draw(self.start[speaker * K0], self.count.view(-1, K0).sum(1)[speaker], g)

    def batches(self, epoch, seed):
        g = torch.Generator().manual_seed(seed * 1009 + epoch)
        perm = torch.randperm(len(self.codes), generator=g).tolist()
        out = []
        for i in range(0, len(perm), 1024):
            block, cur, longest = sorted(perm[i : i + 1024], key=lambda j: len(self.codes[j])), [], 0
            for j in block:
                longest = max(longest, len(self.codes[j]) + 10)
                if cur and longest * (len(cur) + 1) > BATCH_FRAMES:
                    out.append(cur)
                    cur, longest = [], len(self.codes[j]) + 10
                cur.append(j)
            out.append(cur)
        return [out[i] for i in torch.randperm(len(out), generator=g).tolist()]


class Punctuation:
    """Marks the corpus lacks, one token for another or beside it, so that the timeline still holds."""

    def __init__(self, tok):
        self.id = {c: tok.token_to_id(c) for c in ',.;:"!-'}

    def __call__(self, ids, g):
        u = torch.rand(3 + len(ids), generator=g)
        ids = ids.clone()
        comma = ids == self.id[","]
        for low, mark in ((0.0, ";"), (0.06, ":"), (0.1, "-")):
            ids[comma & (u[3:] >= low) & (u[3:] < low + 0.05)] = self.id[mark]
        if u[0] < 0.1 and len(ids) > 4 and ids[-2] == self.id["."]:
            ids = torch.cat([ids[:-2], ids[-1:]]) if u[1] < 0.7 else torch.cat([ids[:-2], torch.tensor([self.id["!"]]), ids[-1:]])
        if u[2] < 0.03:
            q = torch.tensor([self.id['"']])
            ids = torch.cat([q, ids[:-1], q, ids[-1:]])
        return ids


def damage(codes, corpus, speaker, own, g, strength=1.0):
    """The history to feed: codes [B, T, 16] with errors like the model's own; and which frames are blanked. speaker [B]."""
    B, T, _ = codes.shape
    r = torch.rand(B, T, 4, generator=g)
    speaker = speaker[:, None].expand(B, T)
    level = torch.rand(B, 1, generator=g) * strength  # some clips clean, some badly damaged
    c0 = codes[..., 0]
    if own is not None:
        c0 = torch.where(r[..., 0] < 0.5 * level, own, c0)
    foreign = corpus.any_frame(speaker, g)
    c0 = torch.where(r[..., 1] < 0.12 * level, foreign[..., 0], c0)
    swap = (r[..., 2] < 0.7 * level) | (c0 != codes[..., 0])
    fed = torch.where(swap[..., None], corpus.same_code0(c0, speaker, g), codes)
    blank = r[..., 3] < 0.2 * level
    return fed, blank


def informed_start(net, fit):
    """Embeddings and head rows that begin as random projections of what each code means: like codes begin alike."""
    g = torch.Generator().manual_seed(5)

    def project(x, dim):
        x = x - x.mean(0)
        return x / x.pow(2).sum(1).mean().sqrt() @ torch.randn(x.shape[1], dim, generator=g)

    p = fit["ph0"].flatten(1)
    env = fit["env0"] / fit["env0"].std() * p.std() * 0.3
    with torch.no_grad():
        net.model.codec_embedding.weight[:K0] = 0.3 * project(torch.cat([p, env], 1), 256)
        net.codec_head.weight[:K0] = 0.06 * project(torch.cat([p, env], 1), 256)
        tables, heads = net.code_predictor.model.codec_embedding, net.code_predictor.lm_head
        scale = fit["books"][0].pow(2).sum(1).mean().sqrt()
        for i, x in enumerate([torch.cat([fit["book1"], fit["shift"]], 1), *fit["books"]]):
            size = 0.25 if i == 0 else 0.25 * float(x.pow(2).sum(1).mean().sqrt() / scale)
            tables[i].weight.copy_(size * project(x, 256))
            heads[i].weight.copy_(0.06 * project(x, heads[i].weight.shape[1]))


class Trainer:
    def __init__(self, a, fit, tok):
        self.special, self.a, self.marks = specials(tok), a, Punctuation(tok)
        self.net = Talker(config(tok.get_vocab_size()))
        informed_start(self.net, fit)
        self.aux = nn.Linear(256, 2 * len(fit["phones"]))
        self.target = fit["ph0"].mean(1)  # [K0, P]
        matrices, other = [], []
        for n, p in self.net.named_parameters():
            (matrices if p.ndim == 2 and ("layers" in n or "projection" in n) else other).append(p)
        self.muon = Muon(matrices, 0.02)
        self.adam = torch.optim.AdamW([*other, *self.aux.parameters()], 3e-3, betas=(0.9, 0.98), weight_decay=0.0)
        self.mean = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.step = 0

    def states(self, ids, fed, blank, english, speaker):
        """Hidden states [B, T + 1, D] that predict frames 0..T, and those of the middle layer."""
        net, (B, T, _) = self.net, fed.shape
        head = net.prefill(ids[:, 0], self.special, english, torch.tensor(list(SPEAKERS.values()))[speaker])
        text = torch.full((B, T), self.special["tts_pad"])
        n = min(T, ids.shape[1] - 1)
        text[:, :n] = ids[:, 1 : n + 1]
        frames = net.frame(fed)
        if blank is not None:
            frames = frames * (~blank)[..., None]
        x = torch.cat([head, frames + net.text(text)], 1)
        drop = self.a.dropout if net.training and torch.is_grad_enabled() else 0.0
        for i, layer in enumerate(net.model.layers):
            x = x + F.dropout(layer(x) - x, drop) if drop else layer(x)
            if i == 1:
                mid = x
        P = head.shape[1] - 1
        return net.model.norm(x[:, P:]), mid[:, P:]

    def collate(self, corpus, rows, g):
        T = max(len(corpus.codes[j]) for j in rows)
        texts = [self.marks(corpus.ids[j], g) for j in rows]
        N = max(map(len, texts))
        ids = torch.stack([F.pad(x, (0, N - len(x)), value=self.special["tts_pad"]) for x in texts])
        codes = torch.stack([F.pad(corpus.codes[j].long(), (0, 0, 0, T - len(corpus.codes[j]))) for j in rows])
        length = torch.tensor([len(corpus.codes[j]) for j in rows])
        t = torch.arange(T + 1)
        y = torch.where(t == length[:, None], EOS, F.pad(codes[..., 0], (0, 1)))
        y = torch.where(t > length[:, None], -100, y)
        return ids, codes, y, t[:-1] < length[:, None]

    def losses(self, corpus, rows, g, train=True):
        ids, codes, y, real = self.collate(corpus, rows, g)
        english = bool(torch.rand((), generator=g) < 0.5)
        fed, blank, own = codes, None, None
        speaker = torch.tensor([corpus.speaker[j] for j in rows])
        if train:
            if self.step >= self.a.warm:
                with torch.no_grad():
                    fed, blank = damage(codes, corpus, speaker, None, g, self.a.damage)
                    h, _ = self.states(ids, fed, blank, english, speaker)
                    logits = h[:, :-1] @ self.net.codec_head.weight[:K0].T
                    noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=g) + 1e-9) + 1e-9)
                    own = (logits + noise).argmax(-1)
            fed, blank = damage(codes, corpus, speaker, own, g, self.a.damage)
        h, mid = self.states(ids, fed, blank, english, speaker)
        logits = h @ self.net.codec_head.weight[: EOS + 1].T
        c0 = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        want = self.target[codes[..., 0]]
        want = torch.cat([want, torch.cat([want[:, 1:], want[:, -1:]], 1)], -1)
        p = self.aux(mid[:, :-1]).view(*real.shape, 2, -1).log_softmax(-1).flatten(2)
        aux = -(p * want).sum(-1)[real].mean() / 2
        share = torch.tensor([self.a.depth_share, self.a.depth_share_second])[speaker]
        pick = real & (torch.rand(real.shape, generator=g) < share[:, None])
        z = self.net.code_predictor(self.net.depth_inputs(h[:, :-1][pick], codes[pick]))
        cp = codes[pick]
        depth = torch.stack([F.cross_entropy(self.net.code_predictor.lm_head[i](z[:, i + 1]), cp[:, i + 1]) for i in range(NUM_BOOKS - 1)])
        right = (logits.argmax(-1) == y)[y >= 0].float().mean()
        return c0, aux, depth, right

    def update(self, loss, lr):
        for opt, base in ((self.muon, 0.02), (self.adam, 3e-3)):
            for group in opt.param_groups:
                group["lr"] = base * lr * self.a.rate
            opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.muon.step(), self.adam.step()
        self.step += 1
        decay = min(0.997, self.step / (self.step + 30))
        with torch.no_grad():
            for k, v in self.net.state_dict().items():
                self.mean[k].lerp_(v, 1 - decay)

    def save(self, path):
        s = dict(net=self.net.state_dict(), aux=self.aux.state_dict(), mean=self.mean, step=self.step, muon=self.muon.state_dict(), adam=self.adam.state_dict())
        torch.save(s, str(path) + ".tmp")
        Path(str(path) + ".tmp").rename(path)

    def load(self, path):
        s = torch.load(path)
        self.net.load_state_dict(s["net"]), self.aux.load_state_dict(s["aux"])
        self.muon.load_state_dict(s["muon"]), self.adam.load_state_dict(s["adam"])
        self.mean, self.step = s["mean"], s["step"]


def second_rows(tensors, net, fit):
    """Weights of a voice of one speaker, grown to the shapes of net: a new entry begins as the first speaker's nearest one."""
    out, tables = net.state_dict(), [fit["book1"] * torch.tensor([10.0, 1, 1]), *fit["books"]]
    for name, x in tensors.items():
        if x.shape == out[name].shape:
            out[name] = x.float()
            continue
        half = len(x)
        table = tables[int(name.split(".")[-2])]
        near = torch.cdist(table[half:], table[:half]).argmin(1)
        g = torch.Generator().manual_seed(half)
        rows = x.float()[near]
        out[name] = torch.cat([x.float(), rows + 0.1 * rows.std() * torch.randn(rows.shape, generator=g)])
    out["model.codec_embedding.weight"][SPEAKERS["jay"]] = out["model.codec_embedding.weight"][SPEAKERS["robin"]].roll(1)
    return out


def phone_error(net, special, clips, fit, **sampling):
    """(phone error rate in % of free-running code 0, runs without end of speech, mean length ratio)."""
    codes, capped = generate(net, special, *columns(clips), **sampling)
    e = sum(edit_distance(phone_string(x[:, 0], fit), phone_labels(c)) for x, c in zip(codes, clips))
    n = sum(len(phone_labels(c)) for c in clips)
    return 100 * e / n, sum(capped), sum(map(len, codes)) / sum(len(c["codes"]) for c in clips)


def arguments():
    ap = argparse.ArgumentParser()
    ap.add_argument("fit"), ap.add_argument("out", type=Path), ap.add_argument("codes", nargs="+")
    ap.add_argument("--heldout", required=True, nargs="+")
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--warm", type=int, default=600)
    ap.add_argument("--check", type=int, default=250)
    ap.add_argument("--depth-share", type=float, default=0.05)
    ap.add_argument("--damage", type=float, default=1.0)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--rate", type=float, default=1.0, help="of the step size; less for weights that are good already")
    ap.add_argument("--phones", type=float, default=0.3, help="weight of the loss of the coming phones")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--depth-share-second", type=float, default=0.05, help="of the second speaker's frames")
    ap.add_argument("--start", help="begin from these exported weights, of one speaker or two")
    ap.add_argument("--bf16", action="store_true", help="products in bfloat16: twice as fast where the CPU has it")
    ap.add_argument("--smoke", action="store_true")
    a = ap.parse_args()
    if a.smoke:
        a.steps, a.warm, a.check = 60, 30, 30
    return a


def main():
    a = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    a.out.mkdir(parents=True, exist_ok=True)
    fit, tok = torch.load(a.fit, weights_only=False), spelling.build()[0]
    t = Trainer(a, fit, tok)
    corpus = Corpus(a.codes, t.special)
    held = [[c for c in torch.load(p, weights_only=False).values()][:30] for p in a.heldout]
    if (a.out / "state.pt").exists():
        t.load(a.out / "state.pt")
    elif a.start:
        t.net.load_state_dict(second_rows({k.removeprefix("talker."): v for k, v in load_file(a.start).items()}, t.net, fit))
        t.mean = {k: v.clone() for k, v in t.net.state_dict().items()}
    log = open(a.out / "log.txt", "a")
    size = sum(p.numel() for p in t.net.parameters()) / 1e6
    print(f"{size:.2f} M parameters, {len(corpus.codes)} clips, {corpus.num_frames * 0.08 / 3600:.2f} h", file=log, flush=True)
    shadow = Talker(t.net.config).eval()
    avg, clock, epoch, queue, skip = None, time.process_time(), 0, [], t.step
    while t.step < a.steps:
        while not queue:
            queue = corpus.batches(epoch, a.seed)[skip:]
            skip, epoch = max(0, skip - len(corpus.batches(epoch, a.seed))), epoch + 1
        g = torch.Generator().manual_seed(a.seed * 1_000_003 + t.step)
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            c0, aux, depth, right = t.losses(corpus, queue.pop(0), g)
        lr = min(1, (t.step + 1) / 50) * min(1.0, max(0.02, 1.25 * (1 - t.step / a.steps)))
        t.update(c0 + a.phones * aux + 0.5 * depth.mean(), lr)
        cur = torch.tensor([c0.item(), aux.item(), depth.mean().item(), depth[0].item(), depth[1].item(), depth[14].item(), 100 * right.item()])
        avg = cur if avg is None else avg.lerp(cur, 0.04)
        if t.step % 25 == 0:
            v = avg.tolist()
            print(f"step {t.step} code0 {v[0]:.3f} right {v[6]:.1f} % phones {v[1]:.3f} codes1-15 {v[2]:.3f} (1: {v[3]:.2f} 2: {v[4]:.2f} 15: {v[5]:.2f}) cpu {time.process_time() - clock:.0f} s", file=log, flush=True)
        if t.step % 50 == 0:
            t.save(a.out / "state.pt")
        if t.step % a.check == 0 or t.step == a.steps:
            shadow.load_state_dict(t.mean)
            for clips in held:
                nats = entropy(shadow, t.special, clips)[0]
                r = [phone_error(shadow, t.special, clips, fit, temperature=x) for x in (0.5, 0.9)]
                print(f"  {clips[0]['speaker']}: surprise code 0 {nats[0]:.3f}, codes 1-15 {nats[1:].mean():.3f}; free-running phone errors " + ", ".join(f"T {x}: {e:.1f} % (no end {n}, length {k:.2f})" for x, (e, n, k) in zip((0.5, 0.9), r)), file=log, flush=True)
    t.save(a.out / "state.pt")


if __name__ == "__main__":
    main()
