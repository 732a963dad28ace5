"""bench/peers/zoo_text.py -- the transformers over tokens of `quern bench zoo` in PyTorch's modules (cli/zoo_text.c)"""
import torch
import torch.nn.functional as F
from torch import nn


def heads(x, n):
    return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Queries of x, keys and values of memory; one product for all three of x alone."""

    def __init__(self, width, n, causal=False, bias=True):
        super().__init__()
        self.n, self.causal = n, causal
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

    def forward(self, x, memory=None):
        if memory is None:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            c = x.shape[-1]
            q = F.linear(x, self.qkv.weight[:c], self.qkv.bias[:c])
            k, v = F.linear(memory, self.qkv.weight[c:], self.qkv.bias[c:]).chunk(2, -1)
        y = F.scaled_dot_product_attention(heads(q, self.n), heads(k, self.n), heads(v, self.n), is_causal=self.causal)
        return self.out(merged(y))


class FeedForward(nn.Module):
    def __init__(self, width, hidden, activation):
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(width, hidden), nn.Linear(hidden, width), activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Encoder, or with cross-attention decoder; norms before or after."""

    def __init__(self, width, n, activation, first, cross=False, causal=False):
        super().__init__()
        self.first = first
        self.attn, self.mlp = Attention(width, n, causal), FeedForward(width, 4 * width, activation)
        self.cross = Attention(width, n) if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))

    def part(self, i, x, f, *more):
        return x + f(self.norms[i](x), *more) if self.first else self.norms[i](x + f(x, *more))

    def forward(self, x, memory=None):
        x = self.part(0, x, self.attn)
        if self.cross is not None:
            x = self.part(2, x, self.cross, memory)
        return self.part(1, x, self.mlp)


class Embedded(nn.Module):
    def __init__(self, v, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(v["V"], v["C"]), nn.Embedding(length, v["C"])
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids):
        return self.tokens(ids) + self.positions.weight


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


class GPT2(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.embedded = Embedded(v, v["T"])
        self.blocks = nn.ModuleList(Block(v["C"], v["H"], gelu_tanh, True, causal=True) for _ in range(v["layers"]))
        self.norm = nn.LayerNorm(v["C"])

    def forward(self, ids):
        x = self.embedded(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedded.tokens.weight)


# ---- RMSNorm, rotary positions, SwiGLU, grouped queries --------------------------------------------------------------


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class ModernBlock(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, self.n, self.kv = v["C"], v["H"], v["KV"]
        narrow = c // self.n * self.kv
        self.norm1, self.norm2 = nn.RMSNorm(c, 1e-5), nn.RMSNorm(c, 1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(c, o, bias=False) for o in (c, narrow, narrow, c))
        self.gate, self.up = (nn.Linear(c, v["F"], bias=False) for _ in range(2))
        self.down = nn.Linear(v["F"], c, bias=False)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = heads(self.q(y), self.n), heads(self.k(y), self.kv), heads(self.v(y), self.kv)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(merged(y))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Modern(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(v["V"], v["C"]), nn.RMSNorm(v["C"], 1e-5)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(ModernBlock(v) for _ in range(v["layers"]))
        width = v["C"] // v["H"]
        angles = torch.outer(torch.arange(v["T"]), 10000 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.tokens.weight)


# ---- encoders --------------------------------------------------------------------------------------------------------


class BERT(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.embedded, self.norm = Embedded(v, v["T"]), nn.LayerNorm(v["C"])
        self.blocks = nn.ModuleList(Block(v["C"], v["H"], F.gelu, False) for _ in range(v["layers"]))
        self.head = nn.Linear(v["C"], v["V"])

    def forward(self, ids):
        x = self.norm(self.embedded(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class EncDec(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.source, self.target = Embedded(v, v["S"]), Embedded(v, v["T"])
        self.encoder = nn.ModuleList(Block(v["C"], v["H"], F.relu, True) for _ in range(v["layers"]))
        self.decoder = nn.ModuleList(Block(v["C"], v["H"], F.relu, True, True, True) for _ in range(v["layers"]))
        self.norm1, self.norm2 = nn.LayerNorm(v["C"]), nn.LayerNorm(v["C"])
        self.head = nn.Linear(v["C"], v["V"])

    def forward(self, source, ids):
        memory = self.source(source)
        for block in self.encoder:
            memory = block(memory)
        memory, x = self.norm1(memory), self.target(ids)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(self.norm2(x))


# ---- mixture of experts ----------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Every token's two best experts, each for capacity tokens at most; what is beyond that contributes nothing."""

    def __init__(self, v):
        super().__init__()
        c, self.n, f = v["C"], v["E"], v["F"]
        self.capacity = (2 * v["B"] * v["T"] * 5 // 4 + self.n - 1) // self.n
        self.gate = nn.Linear(c, self.n, bias=False)
        self.up = nn.Parameter(torch.randn(self.n, c, f) * 0.02)
        self.down = nn.Parameter(torch.randn(self.n, f, c) * 0.02)

    def forward(self, x):
        rows = x.flatten(0, 1)
        best, chosen = self.gate(rows).softmax(-1).topk(2, -1)
        best, flat = best / best.sum(-1, keepdim=True), chosen.flatten()
        rank = F.one_hot(flat, self.n).cumsum(0).gather(1, flat.unsqueeze(1)).squeeze(1) - 1
        nothing = self.n * self.capacity  # the last row
        slot = torch.where(rank < self.capacity, flat * self.capacity + rank, nothing)
        given = rows.new_zeros(self.n * self.capacity + 1, x.shape[-1])
        given = given.index_copy(0, slot, rows.repeat_interleave(2, 0))[:-1]
        y = F.gelu(torch.bmm(given.view(self.n, self.capacity, -1), self.up))
        y = F.pad(torch.bmm(y, self.down).flatten(0, 1), (0, 0, 0, 1))
        y = y[slot].view(-1, 2, x.shape[-1])
        return (y * best.unsqueeze(2)).sum(1).view_as(x)


class MoE(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, n = v["C"], v["layers"]
        self.embedded, self.norm, self.head = Embedded(v, v["T"]), nn.LayerNorm(c), nn.Linear(c, v["V"])
        self.attns = nn.ModuleList(Attention(c, v["H"], True) for _ in range(n))
        self.experts = nn.ModuleList(Experts(v) for _ in range(n))
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2 * n))

    def forward(self, ids):
        x = self.embedded(ids)
        for i, (attn, experts) in enumerate(zip(self.attns, self.experts)):
            x = x + attn(self.norms[2 * i](x))
            x = x + experts(self.norms[2 * i + 1](x))
        return self.head(self.norm(x))
