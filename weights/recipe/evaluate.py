"""Write wavs of one stage for held-out texts, to be scored by an ASR.

evaluate.py STAGE FIT.pt HELDOUT_CODES.pt OUTDIR [--lm STATE] [--decoder STATE] [--num N] [--temperature T] ...
STAGE: codec (true codes, trained decoder), quantiser (true codes, parametric synthesis), tts (free-running, trained
decoder), lm (free-running, parametric synthesis), entropy (no wavs: per codebook, cross-entropy of the true codes, mean
entropy of the prediction and perplexity). Free-running stages also print phone error, misses and length.
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile as sf
import torch

import spelling
from codes import decode, edit_distance, phone_labels, phone_string
from decoder_net import CONFIG, SpeechDecoder
from features import SR, synth
from speak import columns, entropy, generate, specials
from talker_net import Talker, config


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("stage"), ap.add_argument("fit"), ap.add_argument("heldout"), ap.add_argument("out", type=Path)
    ap.add_argument("--lm"), ap.add_argument("--decoder")
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--num", type=int, default=30)
    ap.add_argument("--temperature", type=float, default=0.6)
    ap.add_argument("--sub-temperature", type=float, default=0.9)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    fit = torch.load(a.fit, weights_only=False)
    clips = dict(list(torch.load(a.heldout, weights_only=False).items())[a.first : a.first + a.num])
    codes = {n: c["codes"].long() for n, c in clips.items()}
    if a.stage in ("tts", "lm", "entropy"):
        tok = spelling.build()[0]
        net = Talker(config(tok.get_vocab_size())).eval()
        net.load_state_dict(torch.load(a.lm)["mean"])
    if a.stage == "entropy":
        for q, (x, e) in enumerate(zip(*entropy(net, specials(tok), list(clips.values())))):
            print(f"code {q}: cross-entropy {x:.2f} nats, perplexity {x.exp():.1f}, entropy {e:.2f} nats")
        return
    if a.stage in ("tts", "lm"):
        made, capped = generate(net, specials(tok), *columns(clips.values()), temperature=a.temperature, sub_temperature=a.sub_temperature, seed=a.seed)
        e = sum(edit_distance(phone_string(x[:, 0], fit), phone_labels(c)) for x, c in zip(made, clips.values()))
        n = sum(len(phone_labels(c)) for c in clips.values())
        print(f"phone errors {100 * e / n:.1f} %, no end {sum(capped)}, length {sum(map(len, made)) / sum(map(len, codes.values())):.3f}")
        codes = dict(zip(codes, made))
    a.out.mkdir(parents=True, exist_ok=True)
    if a.stage in ("codec", "tts"):
        dec = SpeechDecoder(CONFIG).eval()
        dec.load_state_dict(torch.load(a.decoder)["mean"])
    for name, c in codes.items():
        with torch.no_grad():
            x = dec(c[None])[0].numpy() if a.stage in ("codec", "tts") else synth(*decode(c, fit))
        sf.write(a.out / f"{name}.wav", np.clip(x, -1, 1), SR)


if __name__ == "__main__":
    main()
