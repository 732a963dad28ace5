"""bench/peers/zoo_tables.py -- the zoo's networks over tables, sets, graphs and points (cli/zoo_tables.c)"""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Columns(nn.Module):
    """Ids (B, tables) as vectors, each column by its own rows of one weight."""

    def __init__(self, v, width):
        super().__init__()
        self.weight = nn.Embedding(v["tables"] * v["rows"], width)
        self.register_buffer("first", torch.arange(v["tables"]) * v["rows"])

    def forward(self, ids):
        return self.weight(ids + self.first)


class MLP(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.columns, layers, width = Columns(v, v["E"]), [], v["numbers"] + v["tables"] * v["E"]
        for _ in range(v["layers"]):
            layers += [nn.Linear(width, v["C"]), nn.BatchNorm1d(v["C"]), nn.ReLU()]
            width = v["C"]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, ids, numbers):
        return self.layers(torch.cat((numbers, self.columns(ids).flatten(1)), 1))


class DLRM(nn.Module):
    def __init__(self, v):
        super().__init__()
        n, c, f = v["tables"] + 1, v["C"], v["F"]
        self.columns = Columns(v, c)
        self.bottom = nn.Sequential(nn.Linear(v["dense"], f), nn.ReLU(), nn.Linear(f, c), nn.ReLU())
        width = c + n * (n - 1) // 2
        self.top = nn.Sequential(nn.Linear(width, f), nn.ReLU(), nn.Linear(f, f), nn.ReLU(), nn.Linear(f, 1))
        row, column = torch.tril_indices(n, n, -1)
        self.register_buffer("below", row * n + column)

    def forward(self, ids, numbers):
        vectors, x = self.columns(ids), self.bottom(numbers)
        every = torch.cat((x.unsqueeze(1), vectors), 1)
        pairs = torch.bmm(every, every.transpose(1, 2)).flatten(1)[:, self.below]
        return self.top(torch.cat((x, pairs), 1))


class DeepSets(nn.Module):
    def __init__(self, v):
        super().__init__()
        c = v["C"]
        self.each = nn.Sequential(nn.Linear(v["in"], c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, c))
        self.whole = nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, v["classes"]))

    def forward(self, x):
        return self.whole(self.each(x).mean(1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * c, c), nn.ReLU(), nn.Linear(c, c))
        self.update, self.norm = nn.Sequential(nn.Linear(2 * c, c), nn.ReLU()), nn.LayerNorm(c)

    def forward(self, x, start, end):
        m = self.message(torch.cat((x[start], x[end]), 1))
        sums = torch.zeros_like(x).index_add(0, end, m.to(x.dtype))
        return self.norm(x + self.update(torch.cat((x, sums), 1)))


class Messages(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.nodes, c = v["nodes"], v["C"]
        self.first, self.head = nn.Linear(v["in"], c), nn.Linear(c, v["classes"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(v["layers"]))

    def forward(self, x, start, end):
        x = F.relu(self.first(x))
        for layer in self.layers:
            x = layer(x, start, end)
        return self.head(x.view(-1, self.nodes, x.shape[1]).mean(1))


class PINN(nn.Module):
    """In training the residual of Burgers' equation and what it begins with."""

    def __init__(self, v):
        super().__init__()
        layers, width = [], 2
        for _ in range(v["layers"]):
            layers += [nn.Linear(width, v["C"]), nn.Tanh()]
            width = v["C"]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t, train=False):
        if not train:
            return self.layers(torch.cat((x, t), 1))
        x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
        u = self.layers(torch.cat((x, t), 1))
        ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        uxx, = torch.autograd.grad(ux.sum(), x, create_graph=True)
        inside = (ut + u * ux - 0.01 / math.pi * uxx).square().mean()
        start = self.layers(torch.cat((x, torch.zeros_like(t)), 1))
        return inside + F.mse_loss(start, -torch.sin(math.pi * x))
