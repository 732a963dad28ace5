#!/usr/bin/env python3
"""tests/oracle/make_optim.py -- what PyTorch's optimizers do with a small problem, as lines for tests/optim.

    python3 tests/oracle/make_optim.py > tests/optim/oracle.txt

A linear layer of 4 inputs and 3 outputs, a fixed batch, mean squared error, 7 steps in f64 with a rate that falls.
A line: the name of the case, then the 15 parameters (weight, then bias) after the last step, then the norm of the last
gradients. Lion is written out here, since PyTorch 1.13 has none."""
import torch

torch.set_default_dtype(torch.float64)
STEPS = 7


def start():
    w = torch.tensor([[0.1 * (i - j) + 0.05 * i * j for j in range(4)] for i in range(3)], requires_grad=True)
    b = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    x = torch.tensor([[((3 * i + 5 * j) % 7) / 4 - 0.75 for j in range(4)] for i in range(6)])
    y = torch.tensor([[((2 * i + 3 * j) % 5) / 3 - 0.5 for j in range(3)] for i in range(6)])
    return w, b, x, y


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(b1 * m + (1 - b1) * p.grad))
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def run(make, clip_norm=0.0, clip_value=0.0, ema=0.0):
    w, b, x, y = start()
    opt = make([w, b])
    rates = [group["lr"] for group in opt.param_groups]
    average = None
    for t in range(STEPS):
        opt.zero_grad()
        loss = ((x @ w.T + b - y) ** 2).mean()
        loss.backward()
        norm = torch.sqrt((w.grad ** 2).sum() + (b.grad ** 2).sum())
        if clip_norm:
            torch.nn.utils.clip_grad_norm_([w, b], clip_norm)
        if clip_value:
            torch.nn.utils.clip_grad_value_([w, b], clip_value)
        for group, rate in zip(opt.param_groups, rates):
            group["lr"] = rate * (1 - 0.1 * t)
        opt.step()
        if ema:
            now = [w.detach().clone(), b.detach().clone()]
            average = now if average is None else [ema * a + (1 - ema) * n for a, n in zip(average, now)]
    end = average if ema else [w.detach(), b.detach()]
    return [*end[0].flatten().tolist(), *end[1].tolist(), norm.item()]


O = torch.optim
CASES = {
    "sgd": (lambda p: O.SGD(p, 0.1), {}),
    "sgd_decay": (lambda p: O.SGD(p, 0.1, weight_decay=0.2), {}),
    "sgd_momentum": (lambda p: O.SGD(p, 0.1, momentum=0.9, dampening=0.3), {}),
    "sgd_nesterov": (lambda p: O.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.1), {}),
    "adam": (lambda p: O.Adam(p, 0.05), {}),
    "adam_decay": (lambda p: O.Adam(p, 0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1), {}),
    "adam_amsgrad": (lambda p: O.Adam(p, 0.2, betas=(0.5, 0.6), amsgrad=True), {}),
    "adamw": (lambda p: O.AdamW(p, 0.05, weight_decay=0.1), {}),
    "adamw_amsgrad": (lambda p: O.AdamW(p, 0.2, betas=(0.5, 0.6), weight_decay=0.1, amsgrad=True), {}),
    "adamw_groups": (lambda p: O.AdamW([{"params": [p[0]]}, {"params": [p[1]], "lr": 0.025, "weight_decay": 0}], 0.05,
                                       weight_decay=0.1), {}),
    "lion": (lambda p: Lion(p, 0.02, (0.9, 0.99), 0.1), {}),
    "clip_norm": (lambda p: O.SGD(p, 0.1), {"clip_norm": 0.2}),
    "clip_value": (lambda p: O.SGD(p, 0.1), {"clip_value": 0.05}),
    "clip_both": (lambda p: O.AdamW(p, 0.05), {"clip_norm": 0.3, "clip_value": 0.05}),
    "ema": (lambda p: O.SGD(p, 0.1), {"ema": 0.9}),
}

for name, (make, more) in CASES.items():
    print(name, *(f"{value:.17g}" for value in run(make, **more)))
