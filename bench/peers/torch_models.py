"""bench/peers/torch_models.py -- the networks of quern/models.h in PyTorch's modules, and whole training steps of them"""
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x, mask):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(x).split(c, 2))
        s = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        y = torch.softmax(s.masked_fill(mask, float("-inf")), -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x, mask):
        x = x + self.attend(self.ln_1(x), mask)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class LM(nn.Module):
    """GPT-2: learned positions, tied embedding."""

    def __init__(self, v):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v["V"], v["C"]), nn.Embedding(v["T"], v["C"])
        self.blocks = nn.ModuleList(Block(v["C"], v["H"]) for _ in range(v["layers"]))
        self.ln_f = nn.LayerNorm(v["C"])
        self.register_buffer("mask", torch.ones(v["T"], v["T"], dtype=torch.bool).triu(1))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.ln_f(x) @ self.wte.weight.t()


class LSTM(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.encoder = nn.Embedding(v["V"], v["C"])
        self.rnn = nn.LSTM(v["C"], v["C"], v["layers"], batch_first=True)
        self.decoder = nn.Linear(v["C"], v["V"])

    def forward(self, tokens):
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class Basic(nn.Module):
    def __init__(self, c, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = None
        if stride != 1 or c != o:
            self.short = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


def resnet(v):
    """ResNet-18; of small pictures the first layers do not halve them."""
    if v["depth"] != 18:
        raise ValueError("only of depth 18")
    small = v["size"] <= 64
    layers = [nn.Conv2d(3, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False),
              nn.BatchNorm2d(64), nn.ReLU()] + ([] if small else [nn.MaxPool2d(3, 2, 1)])
    c = 64
    for o, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(c, o, stride), Basic(o, o, 1)]
        c = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, v["classes"]))


def mlp(v):
    layers, width = [], v["in"]
    for _ in range(v["layers"]):
        layers += [nn.Linear(width, v["C"]), nn.ReLU()]
        width = v["C"]
    return nn.Sequential(*layers, nn.Linear(width, v["out"]))


def tokens(v):
    return torch.randint(v["V"], (v["B"], v["T"]))


# the module, an input, and how many classes an answer has
MODELS = {
    "lm": (LM, tokens, "V"),
    "lstm": (LSTM, tokens, "V"),
    "resnet": (resnet, lambda v: torch.rand(v["B"], 3, v["size"], v["size"]), "classes"),
    "mlp": (mlp, lambda v: torch.rand(v["B"], v["in"]), "out"),
}


def train(name):
    def make(v):
        build, data, classes = MODELS[name]
        model, x, n = build(v), data(v), v[classes]
        labels = torch.randint(n, model(x).shape[:-1]).flatten()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x).view(-1, n), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return step

    return make


TRAIN = {"train_" + name: train(name) for name in MODELS}
