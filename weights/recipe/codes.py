"""16 codes per 80 ms frame from the 10 ms parameters of features.py.

codes.py fit OUT.pt CLIPS.pt...              the quantiser, on the first speaker's first 5,994 clips, always the same
codes.py add FIT.pt OUT.pt CLIPS.pt...       the same with entries for the second speaker; clips of both
codes.py encode FIT.pt OUT.pt CLIPS.pt...    {id: {speaker, text, ids, codes [T, 16] int16, phones}}

Code 0 is k-means over which phones sound in the frame's eight sub-frames (plus a little envelope), so it says what is
spoken. Code 1 is pitch and voicing: periods per frame, voiced pattern. Codes 2 to 15 are residual k-means of the
envelope (a 2-D cosine transform, principal components) around the mean envelope of code 0.

Code 0 is common to the speakers; of codes 1 to 15 each has 64 entries of its own. Of the second speaker's envelope, what a
code 0 implies is a linear map of the first's envelope and phones there: what is left for the other codes, and for their sampling
noise, is as little as the first's (8 % of the variance; 23 % where the difference is the same for all codes 0). It goes with the
entries of code 1 but for the last one: silence, where no speaker is heard.
"""

import sys

import numpy as np
import torch

from features import DCT, NUM_CEP, SUB, dct_matrix

K0, KR, NUM_TIME, NUM_PCA = 1024, 64, 5, 64  # KR entries for each speaker
FIT_CLIPS = 5994  # more, and k-means numbers its entries anew: realign.py could not find a finished voice's
ROWS = dict(robin=slice(0, KR), jay=slice(KR, 2 * KR))
TIME = torch.tensor(dct_matrix(SUB, NUM_TIME), dtype=torch.float32)


def phone_table(clips):
    return sorted({p for c in clips for p, _, _ in c["phones"]})


def phone_matrix(clip, table):
    """[T, 8, P]: share of each sub-frame taken by each phone."""
    n = len(clip["v"])
    out = np.zeros((n, len(table)), np.float32)
    for p, a, b in clip["phones"]:
        i, j = int(a), min(int(np.ceil(b)), n)
        for s in range(i, j):
            out[s, table.index(p)] += max(0.0, min(b, s + 1) - max(a, s))
    return torch.tensor(out).view(-1, SUB, len(table))


def envelope_features(clip):
    """[T, 28 * 5] orthonormal cosine transform over time of the cepstra."""
    c = clip["cep"].float().view(-1, SUB, NUM_CEP)
    return torch.einsum("ks,tsc->tkc", TIME, c).flatten(1)


def assign(x, c):
    norm = c.pow(2).sum(1)
    return torch.cat([(norm - 2 * p @ c.T).argmin(1) for p in x.split(8192)])


def kmeans(x, k, iters=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    c = x[torch.randperm(len(x), generator=g)[:k]].clone()
    for _ in range(iters):
        a = assign(x, c)
        n = torch.bincount(a, minlength=k)
        c = torch.zeros_like(c).index_add_(0, a, x) / n.clamp(min=1)[:, None]
        dead = (n == 0).nonzero()[:, 0]
        c[dead] = x[torch.randperm(len(x), generator=g)[: len(dead)]]
    return c


def pitch_book(k, v, size=KR):
    """[size, 1 + 2] periods and the first two time-cosines of voicing; every used row keeps a whole number of periods."""
    vt = v @ TIME[:2].T
    rows, share = [], torch.bincount(k, minlength=32).float().sqrt()
    share = (share / share.sum() * size).round().long().clamp(max=10)
    values = [i for i in range(32) if share[i] > 0]
    while sum(share[i] for i in values) > size:
        share[share.argmax()] -= 1
    while sum(share[i] for i in values) < size:
        share[max(values, key=lambda i: (k == i).sum() / share[i])] += 1
    for i in values:
        c = kmeans(vt[k == i], int(share[i]))
        rows.append(torch.cat([torch.full((len(c), 1), float(i)), c], 1))
    return torch.cat(rows)


def encode_pitch(book, k, v):
    x = torch.cat([10.0 * k[:, None].float(), v @ TIME[:2].T], 1)
    return assign(x, torch.cat([10.0 * book[:, :1], book[:, 1:]], 1))


def tensors(clips, table):
    ph = torch.cat([phone_matrix(c, table) for c in clips])
    env = torch.cat([envelope_features(c) for c in clips])
    k = torch.cat([c["k"] for c in clips])
    v = torch.cat([c["v"] for c in clips]).view(-1, SUB).float()
    return ph, env, k, v


def semantic_input(ph, env, fit):
    soft = torch.nn.functional.avg_pool1d(ph.transpose(1, 2), 3, 1, 1, count_include_pad=False).transpose(1, 2)
    z = (env - fit["mean"]) @ fit["pca"][:, -16:]
    return torch.cat([soft.flatten(1), 0.35 * z / fit["scale"]], 1)


def entropy(a):
    p = torch.bincount(a).float()
    p = p[p > 0] / p.sum()
    return float(-(p * p.log2()).sum())


def fit(clips, num_frames=250_000):
    table = phone_table(clips)
    ph, env, k, v = tensors(clips, table)
    out = dict(phones=table, mean=env.mean(0))
    x = env - out["mean"]
    _, vec = torch.linalg.eigh(x.T @ x / len(x))
    out["pca"] = vec[:, -NUM_PCA:]
    z = x @ out["pca"]
    out["scale"] = z[:, -16:].pow(2).sum(1).mean().sqrt()
    print(f"{len(x)} frames, {len(table)} phones, PCA keeps {100 * z.pow(2).sum() / x.pow(2).sum():.1f} %", flush=True)
    keep = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:num_frames]
    out["book0"] = kmeans(semantic_input(ph[keep], env[keep], out), K0, 10)
    a = assign(semantic_input(ph, env, out), out["book0"])
    n = torch.bincount(a, minlength=K0).clamp(min=1)
    out["env0"] = torch.zeros(K0, NUM_PCA).index_add_(0, a, z) / n[:, None]
    mean_ph = torch.zeros(K0, *ph.shape[1:]).index_add_(0, a, ph) / n[:, None, None]
    out["ph0"] = mean_ph
    right = (mean_ph.argmax(2)[a] == ph.argmax(2)).float().mean()
    print(f"code 0: entropy {entropy(a):.2f} bits, sub-frame phone right {100 * right:.1f} %", flush=True)
    out["book1"] = pitch_book(k, v)
    out["shift"], out["own"] = torch.zeros(KR, NUM_PCA), torch.zeros(K0, NUM_PCA)
    out["books"] = residual_books(z - out["env0"][a], z, keep)
    return out


def residual_books(r, z, keep):
    """[14, 64, NUM_PCA]: residual k-means of what code 0 leaves of z."""
    total, books = z.pow(2).sum(1).mean(), []
    print(f"  after code 0: residual {100 * r.pow(2).sum(1).mean() / total:.2f} %")
    for q in range(2, 16):
        c = kmeans(r[keep], KR, 10, q)
        b = assign(r, c)
        r = r - c[b]
        books.append(c)
        print(f"  code {q}: residual {100 * r.pow(2).sum(1).mean() / total:.2f} %, entropy {entropy(b):.2f} bits", flush=True)
    return torch.stack(books)


def of_speaker(clips, speaker):
    return [c for c in clips if c["speaker"] == speaker]


def speech_mean(ph, env, fit):
    """Mean envelope features of the frames in which somebody speaks throughout."""
    return env[ph[:, :, fit["phones"].index("pau")].sum(1) == 0].mean(0)


def add_speaker(clips, fit, num_frames=250_000):
    first, second = (tensors(of_speaker(clips, s), fit["phones"]) for s in ROWS)
    ph, env, k, v = second
    shift = speech_mean(ph, env, fit) - speech_mean(*first[:2], fit)
    out = dict(fit, shift=torch.cat([fit["shift"], (shift @ fit["pca"]).repeat(KR, 1)]))
    out["shift"][-1] = 0
    out["book1"] = torch.cat([fit["book1"], pitch_book(k, v, KR - 1), torch.tensor([[10.0, 0.0, 0.0]])])
    a, code1, r = coarse(ph, env, k, v, out, "jay")
    out["own"] = own_envelopes(out, a, r, code1 < KR - 1)
    a, code1, r = coarse(ph, env, k, v, out, "jay")
    print(f"{len(env)} frames, {100 * (code1 == KR - 1).float().mean():.1f} % silent; code 0: entropy {entropy(a):.2f} bits; code 1: {entropy(code1):.2f}")
    keep = torch.randperm(len(r), generator=torch.Generator().manual_seed(0))[:num_frames]
    out["books"] = torch.cat([fit["books"], residual_books(r, (env - fit["mean"]) @ fit["pca"], keep)], 1)
    return out


def own_envelopes(fit, a, r, heard):
    """[K0, NUM_PCA]: of what code 0 and the shift leave, the part linear in its phones and the first speaker's envelope."""
    known = torch.cat([fit["env0"], fit["env0"].std() * fit["ph0"].flatten(1), fit["env0"].std() * torch.ones(K0, 1)], 1)
    x, y = known[a[heard]], r[heard]
    return known @ torch.linalg.solve(x.T @ x + 1e-4 * len(x) * fit["env0"].var() * torch.eye(x.shape[1]), x.T @ y)


def coarse(ph, env, k, v, fit, speaker):
    """Codes 0 and 1 (the latter counted from the speaker's first entry), and what they leave of the envelope's components."""
    book, shift = fit["book1"][ROWS[speaker]], fit["shift"][ROWS[speaker]]

    def without(shift):
        y = env - shift @ fit["pca"].T
        a = assign(semantic_input(ph, y, fit), fit["book0"])
        return a, (y - fit["mean"]) @ fit["pca"] - fit["env0"][a]

    a, r = without(shift[0])
    if not shift.any():
        return a, encode_pitch(book, k, v), r
    r = r - fit["own"][a]
    b, q = without(shift[-1])
    silent = (v.sum(1) == 0) & (q.pow(2).sum(1) < r.pow(2).sum(1))
    code1 = torch.where(silent, KR - 1, encode_pitch(book[:-1], k, v))
    return torch.where(silent, b, a), code1, torch.where(silent[:, None], q, r)


def encode(clip, fit):
    """[T, 16] int16."""
    rows = ROWS[clip["speaker"]]
    a, code1, r = coarse(*tensors([clip], fit["phones"]), fit, clip["speaker"])
    codes = [a, rows.start + code1]
    for c in fit["books"][:, rows]:
        b = assign(r, c)
        r = r - c[b]
        codes.append(rows.start + b)
    return torch.stack(codes, 1).to(torch.int16)


def decode(codes, fit):
    """(cep [8T, 28], k [T], v [8T]) for features.synth, straight from the tables."""
    codes = codes.long()
    own = fit["own"][codes[:, 0]] * fit["shift"][codes[:, 1]].any(1, keepdim=True)
    z = fit["env0"][codes[:, 0]] + own + fit["shift"][codes[:, 1]] + sum(fit["books"][q - 2][codes[:, q]] for q in range(2, 16))
    env = (z @ fit["pca"].T + fit["mean"]).view(-1, NUM_TIME, NUM_CEP)
    cep = torch.einsum("ks,tkc->tsc", TIME, env).reshape(-1, NUM_CEP)
    row = fit["book1"][codes[:, 1]]
    v = (row[:, 1:] @ TIME[:2] > 0.5).flatten().float()
    return cep, row[:, 0].long(), v


def phone_string(codes0, fit):
    """Phones that code 0 spells, repeats and silence dropped."""
    names = fit["ph0"].argmax(2)[codes0.long()].flatten().tolist()
    out, last, run = [], None, 0
    for p in names:
        run = run + 1 if p == last else 1
        if run == 2 and (not out or out[-1] != p):
            out.append(p)
        last = p
    return [fit["phones"][p] for p in out if fit["phones"][p] != "pau"]


def phone_labels(clip):
    out = []
    for p, _, _ in clip["phones"]:
        if p != "pau" and (not out or out[-1] != p):
            out.append(p)
    return out


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


def main(command, *args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if command == "fit":
        clips = [c for p in args[1:] for c in torch.load(p, weights_only=False).values()]
        torch.save(fit(clips[:FIT_CLIPS]), args[0])
    elif command == "add":
        clips = [c for p in args[2:] for c in torch.load(p, weights_only=False).values()]
        torch.save(add_speaker(clips, torch.load(args[0], weights_only=False)), args[1])
    else:
        quantiser, out = torch.load(args[0], weights_only=False), {}
        for p in args[2:]:
            for name, c in torch.load(p, weights_only=False).items():
                out[name] = dict(speaker=c["speaker"], text=c["text"], ids=c["ids"], codes=encode(c, quantiser), phones=c["phones"])
        torch.save(out, args[1])
        per = [(edit_distance(phone_string(c["codes"][:, 0], quantiser), phone_labels(c)), len(phone_labels(c))) for c in list(out.values())[:300]]
        print(f"{len(out)} clips; phone errors of true code 0 against the labels: {100 * sum(e for e, _ in per) / sum(n for _, n in per):.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
