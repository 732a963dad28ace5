"""bench/peers/zoo_sequences.py -- the zoo's networks over sounds, films and sequences (cli/zoo_sequences.c)"""
import torch
import torch.nn.functional as F
from torch import nn


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class WaveNet(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, k, n = v["C"], v["K"], v["layers"]
        self.first, self.out1, self.out2 = Causal(1, c, 2), nn.Conv1d(k, k, 1), nn.Conv1d(k, 256, 1)
        self.dilated = nn.ModuleList(Causal(c, 2 * c, 2, dilation=1 << i % v["cycle"]) for i in range(n))
        self.skip = nn.ModuleList(nn.Conv1d(c, k, 1) for _ in range(n))
        self.residual = nn.ModuleList(nn.Conv1d(c, c, 1) for _ in range(n - 1))

    def forward(self, x):
        x, skips = self.first(x), 0
        for i, (dilated, skip) in enumerate(zip(self.dilated, self.skip)):
            a, b = dilated(x).chunk(2, 1)
            y = a.tanh() * b.sigmoid()
            skips = skips + skip(y)
            if i < len(self.residual):
                x = x + self.residual[i](y)
        return self.out2(F.relu(self.out1(F.relu(skips)))).transpose(1, 2)


class Conv3d(nn.Module):
    def __init__(self, v):
        super().__init__()
        widths = [3] + [v["C"] << i for i in range(4)]
        self.convs = nn.ModuleList(nn.Conv3d(a, b, 3, padding=1, bias=False) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm3d(o) for o in widths[1:])
        self.head = nn.Linear(widths[-1], v["classes"])

    def forward(self, x):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = F.relu(norm(conv(x)))
            if i < 2:
                x = F.max_pool3d(x, 2)
        return self.head(x.mean((2, 3, 4)))


class LSTM(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(v["V"], v["C"]), nn.Linear(v["C"], v["V"])
        self.rnn = nn.LSTM(v["C"], v["C"], v["layers"], batch_first=True)

    def forward(self, ids):
        return self.decoder(self.rnn(self.encoder(ids))[0])


class GRU(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.rnn = nn.GRU(v["in"], v["C"], v["layers"], batch_first=True)
        self.head = nn.Linear(v["C"], v["classes"])

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


# ---- Mamba -----------------------------------------------------------------------------------------------------------


def scan(decay, value):
    """h[t] = decay[t] h[t - 1] + value[t] along axis 1: step by step; compiled in log2(T) sweeps over all."""
    n = value.shape[1]
    if not torch.compiler.is_compiling():
        h, rows = torch.zeros_like(value[:, 0]), []
        for d, x in zip(decay.unbind(1), value.unbind(1)):
            h = torch.addcmul(x, d, h)
            rows.append(h)
        return torch.stack(rows, 1)
    step = 1
    while step < n:
        value = torch.cat((value[:, :step], torch.addcmul(value[:, step:], decay[:, step:], value[:, :-step])), 1)
        decay = torch.cat((decay[:, :step], decay[:, step:] * decay[:, :-step]), 1)
        step *= 2
    return value


class MambaBlock(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, self.n, self.r = v["C"], v["N"], v["R"]
        i = 2 * c
        self.norm = nn.RMSNorm(c)
        self.first, self.out = nn.Linear(c, 2 * i, bias=False), nn.Linear(i, c, bias=False)
        self.conv = nn.Conv1d(i, i, 4, padding=3, groups=i)
        self.parts, self.dt = nn.Linear(i, self.r + 2 * self.n, bias=False), nn.Linear(self.r, i)
        self.log_a, self.d = nn.Parameter(2 * torch.rand(i, self.n)), nn.Parameter(torch.ones(i))

    def forward(self, x):
        u, gate = self.first(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2))
        dt, b, c = self.parts(u).split((self.r, self.n, self.n), -1)
        dt = F.softplus(self.dt(dt)).unsqueeze(-1)
        decay = torch.exp(dt * -self.log_a.exp())
        h = scan(decay, dt * u.unsqueeze(-1) * b.unsqueeze(2))
        y = (h * c.unsqueeze(2)).sum(-1) + u * self.d
        return x + self.out(y * F.silu(gate))


class Mamba(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(v["V"], v["C"]), nn.RMSNorm(v["C"])
        self.blocks = nn.Sequential(*(MambaBlock(v) for _ in range(v["layers"])))
        self.head = nn.Linear(v["C"], v["V"])

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids))))
