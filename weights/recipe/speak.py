"""Free-running generation in torch, many texts at once; the published prompt, streaming text, published sampling. And the surprise of true codes."""

import torch

from talker_net import EOS, K0, NUM_BOOKS, SPEAKERS


def specials(tok):
    names = dict(im_start="<|im_start|>", assistant="assistant", newline="Ċ", tts_pad="<tts_pad>", tts_bos="<tts_text_bos>", tts_eos="<tts_text_eod>")
    return {k: tok.token_to_id(v) for k, v in names.items()}


def columns(clips):
    """The token ids and the speakers of the clips."""
    return [c["ids"] for c in clips], [c["speaker"] for c in clips]


def draw(logits, temperature, top_k, g):
    if temperature == 0:
        return logits.argmax(-1)
    v, i = (logits / temperature).topk(min(top_k, logits.shape[-1]))
    return i.gather(-1, torch.multinomial(v.softmax(-1), 1, generator=g))[..., 0]


@torch.no_grad()
def generate(net, special, ids, speakers, english=True, temperature=0.7, top_k=50, sub_temperature=0.9, sub_top_k=50, seed=0, limit=None, penalty=1.0):
    """[T, 16] codes for each list of token ids, by the speaker of that name."""
    g = torch.Generator().manual_seed(seed)
    B, steps = len(ids), limit or 40 + int(1.6 * max(map(len, ids)))
    text = torch.full((B, steps + 1), special["tts_pad"])
    for b, x in enumerate(ids):
        row = torch.tensor([*x[1:], special["tts_eos"]])[: steps + 1]
        text[b, : len(row)] = row
    caches = [[] for _ in net.model.layers]
    x = net.prefill(torch.tensor([i[0] for i in ids]), special, english, torch.tensor([SPEAKERS[s] for s in speakers]))
    out, length = torch.zeros(B, steps, NUM_BOOKS, dtype=torch.long), torch.full((B,), steps)
    seen = torch.zeros(B, K0 + 1024, dtype=torch.bool)
    cp = net.code_predictor
    for t in range(steps):
        for layer, cache in zip(net.model.layers, caches):
            x = layer(x, cache)
        h = net.model.norm(x[:, -1])
        logits = net.codec_head(h)
        if penalty != 1.0:
            logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        logits[:, K0:EOS] = -torch.inf
        logits[:, EOS + 1 :] = -torch.inf
        if t < 2:
            logits[:, EOS] = -torch.inf
        c0 = draw(logits, temperature, top_k, g)
        length = torch.where((c0 == EOS) & (length == steps), torch.full_like(length, t), length)
        if (length < steps).all():
            break
        c0 = c0.clamp(max=K0 - 1)
        seen.scatter_(1, c0[:, None], True)
        out[:, t, 0] = c0
        cc = [[] for _ in cp.model.layers]
        e = net.model.codec_embedding(c0)
        total = e
        z = cp(torch.stack([h, e], 1), cc)[:, -1]
        for i in range(NUM_BOOKS - 1):
            c = draw(cp.lm_head[i](z), sub_temperature, sub_top_k, g)
            out[:, t, i + 1] = c
            e = cp.model.codec_embedding[i](c)
            total = total + e
            if i < NUM_BOOKS - 2:
                z = cp(e[:, None], cc)[:, -1]
        x = (total + net.text(text[:, t]))[:, None]
    return [out[b, : length[b]] for b in range(B)], (length == steps).tolist()


@torch.no_grad()
def entropy(net, special, clips):
    """(nats to code the true codes, mean entropy of the prediction), each [16], with the true past."""
    cross, own, count = torch.zeros(NUM_BOOKS), torch.zeros(NUM_BOOKS), 0
    for c in clips:
        codes = c["codes"].long()
        text = torch.full((len(codes),), special["tts_pad"])
        tail = torch.tensor([*c["ids"][1:], special["tts_eos"]])[: len(codes)]
        text[: len(tail)] = tail
        head = net.prefill(torch.tensor(c["ids"][:1]), special, True, torch.tensor([SPEAKERS[c["speaker"]]]))
        x = torch.cat([head, (net.frame(codes) + net.text(text))[None]], 1)
        for layer in net.model.layers:
            x = layer(x)
        h = net.model.norm(x)[0, head.shape[1] - 1 : -1]
        z = net.code_predictor(net.depth_inputs(h, codes))
        heads = net.code_predictor.lm_head
        for q in range(NUM_BOOKS):
            logits = net.codec_head(h)[:, : EOS + 1] if q == 0 else heads[q - 1](z[:, q])
            p = logits.log_softmax(-1)
            cross[q] -= p.gather(1, codes[:, q : q + 1]).sum()
            own[q] -= (p.exp() * p).sum()
        count += len(codes)
    return cross / count, own / count
