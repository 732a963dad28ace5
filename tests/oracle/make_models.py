#!/usr/bin/env python3
"""tests/oracle/make_models.py -- losses of ten AdamW steps of small models in PyTorch, for tests/models.

    python3 tests/oracle/make_models.py > tests/models/oracle.txt

Parameters and data are functions of names and places (see value and token below, and test_train.c), so that nothing but losses
needs to be kept. A line: the name of a model, its number of trained parameters, ten losses in f64."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
STEPS = 10


def seed(name):
    h = 0
    for c in name.encode():
        h = (h * 31 + c) % 1000003
    return h


def value(name, shape, scale):
    """scale times the sine of the place, in some units"""
    n = math.prod(shape)
    s = seed(name)
    return torch.tensor([scale * math.sin(0.7 * i + s) for i in range(n)]).reshape(shape)


def token(i, most):
    return (i * i * 7 + i * 3 + 5) % most


def fill(model):
    """Weights of rank 2 and more are small, norms are near 1, biases near 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(value(name, p.shape, 1 / math.sqrt(p[0].numel())))
            else:
                p.copy_(value(name, p.shape, 0.1) + (1 if name.endswith("weight") else 0))


class Attention(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.H, self.c_attn, self.c_proj = H, nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.reshape(B, T, self.H, C // self.H).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        s = q @ k.transpose(-2, -1) / math.sqrt(C // self.H)
        s = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf"))
        return self.c_proj((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(C), Attention(C, H), nn.LayerNorm(C)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        y = self.mlp.c_fc(self.ln_2(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
        return x + self.mlp.c_proj(y)


class GPT2(nn.Module):
    V, T, C, H, L = 61, 12, 32, 4, 2

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(self.V, self.C), "wpe": nn.Embedding(16, self.C),
                                          "h": nn.ModuleList(Block(self.C, self.H) for _ in range(self.L)),
                                          "ln_f": nn.LayerNorm(self.C)})

    def forward(self, data):
        t = self.transformer
        x = t.wte(data[:, :-1]) + t.wpe(torch.arange(self.T))
        for block in t.h:
            x = block(x)
        logits = t.ln_f(x) @ t.wte.weight.T
        return F.cross_entropy(logits.reshape(-1, self.V), data[:, 1:].reshape(-1))

    @classmethod
    def batch(cls, step):
        n = cls.T + 1
        return torch.tensor([[token(step * 100 + b * n + i, cls.V) for i in range(n)] for b in range(2)])


class LSTM(nn.Module):
    V, T = 37, 9

    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(self.V, 12), nn.LSTM(12, 20, 2, batch_first=True)
        self.decoder = nn.Linear(20, self.V)

    def forward(self, data):
        x, _ = self.rnn(self.encoder(data[:, :-1]))
        return F.cross_entropy(self.decoder(x).reshape(-1, self.V), data[:, 1:].reshape(-1))

    @classmethod
    def batch(cls, step):
        n = cls.T + 1
        return torch.tensor([[token(step * 100 + b * n + i, cls.V) for i in range(n)] for b in range(3)])


class Basic(nn.Module):
    def __init__(self, c, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        if stride != 1 or c != out:
            self.downsample = nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        for i in range(4):
            c, out = 64 << max(i - 1, 0), 64 << i
            setattr(self, f"layer{i + 1}", nn.Sequential(Basic(c, out, 2 if i else 1), Basic(out, out, 1)))
        self.fc = nn.Linear(512, 10)

    def forward(self, data):
        x, labels = data
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(4):
            x = getattr(self, f"layer{i + 1}")(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)

    @staticmethod
    def batch(step):
        return value(f"x{step}", (8, 3, 16, 16), 1.0), torch.tensor([token(step * 8 + i, 10) for i in range(8)])


for name, make, lr in (("gpt2", GPT2, 1e-3), ("lstm", LSTM, 1e-3), ("resnet18", ResNet18, 1e-4)):
    model = make()
    fill(model)
    opt = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        opt.zero_grad()
        loss = model(make.batch(step))
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(name, sum(p.numel() for p in model.parameters()), *(f"{x:.17g}" for x in losses))
