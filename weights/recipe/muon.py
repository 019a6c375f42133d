"""Muon for the matrices, AdamW for the rest: fewer steps for the same loss on a small transformer."""

import torch


def orthogonal(g, steps=5):
    """Newton-Schulz iteration on a batch of matrices [N, r, c] (Jordan et al., 2024: coefficients of the quintic), in bfloat16 as there."""
    a, b, c = 3.4445, -4.7750, 2.0315
    flip = g.shape[1] > g.shape[2]
    x = (g.mT if flip else g).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if flip else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        super().__init__(list(params), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(tuple(p.shape), []).append(p)
            for ps in shapes.values():
                upd = []
                for p in ps:
                    buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                    buf.lerp_(p.grad, 1 - group["momentum"])
                    upd.append(p.grad.lerp(buf, group["momentum"]))
                o = orthogonal(torch.stack(upd)) * max(1, ps[0].shape[0] / ps[0].shape[1]) ** 0.5
                for p, u in zip(ps, o):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"])
