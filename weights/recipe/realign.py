"""Give a new quantiser the numbering of a finished voice, whose fit.pt is gone: its SpeechDecoder can be kept then.

realign.py FIT.pt SPEECH_TOKENIZER.safetensors OUT.pt

k-means on another machine finds the same coarse books in another order, and other fine ones. The decoder's tables began
as these books (train_decoder.initial_tables) and moved little: code 0 and 1 are matched to them, codes 2 to 15 taken from them.
FIT.pt must come from the same clips as the lost one, the first 5,994: from others k-means finds other entries.
"""

import sys

import torch
from safetensors.torch import load_file
from scipy.optimize import linear_sum_assignment


def order_of(wanted, found):
    """Rows of ``found`` in the order in which they are nearest to ``wanted``, each once."""
    return torch.tensor(linear_sum_assignment(torch.cdist(wanted, found).numpy())[1])


def main(fit, tokenizer, out):
    fit, tables = torch.load(fit, weights_only=False), load_file(tokenizer)

    def table(book):
        return tables[f"decoder.quantizer.{book}._codebook.embedding_sum"].float()

    scale, first = fit["env0"].std(), table("rvq_first.vq.layers.0")[:, :64]
    sign = torch.sign((fit["env0"] / scale * first).sum(0))  # of a principal component: arbitrary
    fit |= dict(pca=fit["pca"] * sign, env0=fit["env0"] * sign)
    fit["book0"][:, -16:] *= sign[-16:]
    order = order_of(first, fit["env0"] / scale)
    print("code 0: moved", int((order != torch.arange(len(order))).sum()))
    far = (first - fit["env0"][order] / scale).norm(dim=1).median()
    apart = torch.cdist(first, first).topk(2, largest=False).values[:, 1].median()
    print(f"code 0: {far:.2f} from the voice's entries, which are {apart:.2f} apart")
    if far > 0.5 * apart:
        sys.exit(f"{sys.argv[1]} has other entries than the voice; expected the quantiser of the clips the voice's was made from")
    fit |= {name: fit[name][order] for name in ("book0", "env0", "ph0")}
    second = table("rvq_rest.vq.layers.0")[:64, 64:106]
    bumps = torch.exp(-0.5 * ((fit["book1"][:, :1] - torch.linspace(9, 22, 40)) / 0.7) ** 2) * 2
    order = order_of(second, torch.cat([bumps, fit["book1"][:, 1:]], 1))
    print("code 1: moved", int((order != torch.arange(len(order))).sum()))
    fit["book1"] = fit["book1"][order]
    fit["books"] = torch.stack([table(f"rvq_rest.vq.layers.{i}")[:64, :64] * scale for i in range(1, 15)])
    torch.save(fit, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
