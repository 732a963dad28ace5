#!/usr/bin/python3
"""make_nn.py > tests/nn/oracle.txt -- layers as PyTorch computes and initializes them, in f64, for tests/nn/test_layers.c.

Needs PyTorch (Debian: python3-torch). Each case is a module with numbers of its own, called once; what follows is text:
  case NAME train|eval
  in | state | buffer NAME DTYPE SHAPE values      before: inputs, parameters and buffers, with the names of state_dict()
  out NAME DTYPE SHAPE values                       results
  din | dstate NAME DTYPE SHAPE values              d loss / d input, d loss / d parameter
  after NAME DTYPE SHAPE values                     buffers afterwards
  fresh LAYER NAME SHAPE mean deviation largest     a parameter of a new module: figures of its elements, largest by magnitude
loss = the sum over outputs j and elements i of out[j][i] (((7 i + 3 j) mod 11) - 5) / 4. SHAPE is 2,3 or - for a scalar.
"""
import math
import random
import sys
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
CASES = []


def case(name, module, call=None, train=True, ints=(), **shapes):
    """Adds a case; shapes are those of inputs, and ints names those that hold small integers."""
    CASES.append((name, module, call or (lambda m, x: m(x)), train, ints, shapes))


class Owner(nn.Module):
    """A module of parameters and modules given by name."""

    def __init__(self, modules=None, **shapes):
        super().__init__()
        for key, shape in shapes.items():
            setattr(self, key, nn.Parameter(torch.empty(*shape)))
        for key, module in (modules or {}).items():
            setattr(self, key, module)


# ---- activations, linear, embedding

ACTIVATIONS = {
    "none": lambda x: x, "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
    "sigmoid": torch.sigmoid, "log_sigmoid": F.logsigmoid, "tanh": torch.tanh,
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # the gradient of F.hardsigmoid has 1/6 in f32 only
    "hardtanh": F.hardtanh, "tanhshrink": F.tanhshrink, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu, "swish": F.silu, "hardswish": F.hardswish, "mish": F.mish, "softplus": F.softplus,
    "softsign": F.softsign, "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
    "glu": lambda x: F.glu(x, -1)}
for gated, f in (("swiglu", F.silu), ("geglu", F.gelu), ("reglu", F.relu)):
    ACTIVATIONS[gated] = lambda x, f=f: f(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]

case("activations", Owner(), lambda m, x: {k: f(3 * x) for k, f in ACTIVATIONS.items()}, x=(2, 6))
case("linear", nn.Linear(3, 4), x=(2, 5, 3))
case("linear_gelu", nn.Linear(3, 4, bias=False), lambda m, x: F.gelu(m(x)), x=(2, 3))
case("bilinear", nn.Bilinear(3, 2, 4), lambda m, a, b: m(a, b), a=(5, 3), b=(5, 2))
for kind in ("relu", "gelu", "swiglu", "geglu", "reglu"):
    twice = 2 if kind.endswith("glu") else 1
    case("mlp_" + kind, Owner({"linear1": nn.Linear(4, 6 * twice), "linear2": nn.Linear(6, 4)}),
         lambda m, x, f=ACTIVATIONS[kind]: m.linear2(f(m.linear1(x))), x=(3, 4))
case("embedding", nn.Embedding(5, 3), lambda m, ids: m(ids), ints=("ids",), ids=(2, 4))
case("tied", nn.Embedding(5, 3), lambda m, ids: F.linear(torch.tanh(m(ids)), m.weight), ints=("ids",), ids=(2, 4))
case("position", nn.Embedding(7, 4), lambda m, x: x + m.weight[:3], x=(2, 3, 4))
case("position_at", nn.Embedding(7, 4), lambda m, x: x + m.weight[2:5], x=(2, 3, 4))


def sinusoidal(positions, width):
    table = torch.empty(positions, width)
    for p in range(positions):
        for i in range(width):
            angle = p * 10000 ** (-2 * (i // 2) / width)
            table[p, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return table


case("sinusoidal", Owner(), lambda m, x: x + sinusoidal(7, 4)[2:5], x=(2, 3, 4))

# ---- convolution

case("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), x=(2, 4, 9))
case("conv2d", nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), x=(2, 2, 5, 4))
case("conv2d_same", nn.Conv2d(2, 2, (3, 2), padding="same", bias=False), x=(1, 2, 4, 5))
for mode in ("reflect", "replicate", "circular"):
    case("conv2d_" + mode, nn.Conv2d(2, 2, 3, padding=(2, 1), padding_mode=mode), x=(1, 2, 4, 3))
case("conv3d", nn.Conv3d(2, 2, (2, 1, 2)), x=(1, 2, 3, 2, 3))
case("conv_transpose1d", nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), x=(2, 4, 4))
case("conv_transpose2d", nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 1), dilation=(1, 2), bias=False), x=(1, 2, 3, 3))
case("conv_transpose3d", nn.ConvTranspose3d(2, 1, 2, stride=(1, 2, 1), padding=(1, 0, 0)), x=(1, 2, 2, 2, 2))

# ---- norms


class RMSNorm(Owner):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 2.0 ** -52) * self.weight


case("layer_norm", nn.LayerNorm(4), x=(2, 3, 4))
case("layer_norm_two", nn.LayerNorm((3, 4), eps=0.1), x=(2, 3, 4))
case("layer_norm_plain", nn.LayerNorm(4, elementwise_affine=False), x=(2, 4))
case("rms_norm", RMSNorm(weight=(4,)), x=(3, 4))
case("batch_norm1d", nn.BatchNorm1d(3), x=(5, 3))
case("batch_norm1d_length", nn.BatchNorm1d(3, momentum=0.3, eps=1e-3), x=(2, 3, 4))
case("batch_norm2d", nn.BatchNorm2d(3), x=(2, 3, 2, 2))
case("batch_norm2d_eval", nn.BatchNorm2d(3), train=False, x=(2, 3, 2, 2))
case("batch_norm3d", nn.BatchNorm3d(2, affine=False), x=(2, 2, 2, 1, 2))
case("batch_norm_average", nn.BatchNorm1d(3, momentum=None), x=(5, 3))
case("batch_norm_untracked", nn.BatchNorm1d(3, track_running_stats=False), train=False, x=(5, 3))
case("batch_norm_twice", nn.BatchNorm1d(3), lambda m, x: m(torch.tanh(m(x))), x=(5, 3))
case("group_norm", nn.GroupNorm(2, 4), x=(2, 4, 3))
case("instance_norm", nn.InstanceNorm2d(2), x=(2, 2, 3, 2))
case("instance_norm_tracked", nn.InstanceNorm1d(2, affine=True, track_running_stats=True), x=(2, 2, 4))
case("instance_norm_eval", nn.InstanceNorm1d(2, affine=True, track_running_stats=True), train=False, x=(2, 2, 4))

# ---- recurrent


def recurrent(m, x):
    y, h = m(x)
    return {"y": y, "h": h[0], "c": h[1]} if isinstance(h, tuple) else {"y": y, "h": h}


def recurrent_from(m, x, h, c=None):
    y, h = m(x, h if c is None else (h, c))
    return {"y": y, "h": h[0], "c": h[1]} if isinstance(h, tuple) else {"y": y, "h": h}


case("rnn_tanh", nn.RNN(3, 2, num_layers=2), recurrent, x=(4, 2, 3))
case("rnn_relu", nn.RNN(3, 2, nonlinearity="relu", bidirectional=True, bias=False), recurrent, x=(3, 2, 3))
case("lstm", nn.LSTM(3, 2), recurrent_from, x=(4, 2, 3), h=(1, 2, 2), c=(1, 2, 2))
case("lstm_deep", nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True), recurrent, x=(2, 3, 3))
case("lstm_projection", nn.LSTM(2, 3, num_layers=2, proj_size=2), recurrent, x=(3, 1, 2))
case("gru", nn.GRU(3, 2, num_layers=2, batch_first=True), recurrent_from, x=(2, 4, 3), h=(2, 2, 2))
case("gru_both", nn.GRU(2, 2, bidirectional=True, bias=False), recurrent, x=(3, 2, 2))
case("rnn_cell", nn.RNNCell(3, 2), lambda m, x, h: {"y": m(x, h)}, x=(2, 3), h=(2, 2))
case("lstm_cell", nn.LSTMCell(3, 2), lambda m, x, h, c: dict(zip("yc", m(x, (h, c)))), x=(2, 3), h=(2, 2), c=(2, 2))
case("gru_cell", nn.GRUCell(3, 2, bias=False), lambda m, x, h: {"y": m(x, h)}, x=(2, 3), h=(2, 2))

# ---- attention


def heads_of(x, n):
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def rotate(x, start=0, base=10000.0, interleaved=False):
    S, D = x.shape[-2:]
    angle = (torch.arange(S)[:, None] + start) * base ** (-2 * torch.arange(D // 2) / D)
    c, s = torch.cos(angle), torch.sin(angle)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class Grouped(Owner):
    """Grouped-query attention by its definition: causal, rotary."""

    def __init__(self, E, heads, groups, interleaved):
        K = E // heads * groups
        super().__init__({"out_proj": nn.Linear(E, E)}, q_proj_weight=(E, E), k_proj_weight=(K, E), v_proj_weight=(K, E),
                         in_proj_bias=(E + 2 * K,))
        self.heads, self.groups, self.interleaved = heads, groups, interleaved

    def forward(self, x):
        E, K = self.q_proj_weight.shape[0], self.k_proj_weight.shape[0]
        bq, bk, bv = self.in_proj_bias.split((E, K, K))
        q = rotate(heads_of(F.linear(x, self.q_proj_weight, bq), self.heads), interleaved=self.interleaved)
        k = rotate(heads_of(F.linear(x, self.k_proj_weight, bk), self.groups), interleaved=self.interleaved)
        v = heads_of(F.linear(x, self.v_proj_weight, bv), self.groups)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        return self.out_proj(y)


def attention(E, heads, **options):
    return nn.MultiheadAttention(E, heads, batch_first=True, **options)


def later(S):
    return torch.ones(S, S).triu(1) > 0


case("attention", attention(4, 2), lambda m, x: m(x, x, x)[0], x=(2, 3, 4))
case("attention_causal", attention(4, 2, bias=False), lambda m, x: m(x, x, x, attn_mask=later(3))[0], x=(2, 3, 4))
case("attention_masked", attention(4, 2), lambda m, x, mask: m(x, x, x, attn_mask=mask)[0], x=(2, 3, 4), mask=(3, 3))
case("attention_memory", attention(4, 2), lambda m, x, memory: m(x, memory, memory)[0], x=(2, 3, 4), memory=(2, 2, 4))
case("attention_widths", attention(4, 2, kdim=3, vdim=3), lambda m, x, memory: m(x, memory, memory)[0], x=(2, 3, 4),
     memory=(2, 2, 3))
case("attention_grouped", Grouped(8, 4, 2, False), x=(1, 3, 8))
case("attention_single", Grouped(8, 4, 1, True), x=(1, 3, 8))

# ---- transformers and sequences


def encoder(**options):
    return nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True, **options)


def decoder(**options):
    return nn.TransformerDecoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True, **options)


case("encoder", encoder(), x=(1, 3, 4))
case("encoder_first", encoder(norm_first=True, activation="gelu", layer_norm_eps=1e-3),
     lambda m, x: m(x, src_mask=later(3)), x=(1, 3, 4))
case("decoder", decoder(), lambda m, x, memory: m(x, memory, tgt_mask=later(3)), x=(1, 3, 4), memory=(1, 2, 4))
case("decoder_first", decoder(norm_first=True), lambda m, x, memory: m(x, memory, tgt_mask=later(3)), x=(1, 3, 4),
     memory=(1, 2, 4))
case("sequential", nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
                                 nn.Linear(8, 3), nn.Tanh()), x=(2, 1, 4, 4))

# ---- new modules, large enough for their distributions to show

FRESH = {
    "linear": nn.Linear(200, 150), "bilinear": nn.Bilinear(20, 30, 40), "conv": nn.Conv2d(16, 64, 3, groups=2),
    "conv_transpose": nn.ConvTranspose2d(16, 64, 3, groups=2), "embedding": nn.Embedding(200, 100),
    "lstm": nn.LSTM(40, 50, num_layers=2), "gru_cell": nn.GRUCell(40, 50), "attention": attention(48, 4),
    "attention_widths": attention(48, 4, kdim=40, vdim=40), "layer_norm": nn.LayerNorm(20),
    "batch_norm": nn.BatchNorm1d(20), "encoder": nn.TransformerEncoderLayer(48, 4, dim_feedforward=96)}


# ---- writing


def number(rng):
    """A short number that is no boundary of a piecewise function."""
    return (2 * rng.randrange(-100, 100) + 1) / 200


def write(kind, name, t):
    dtype = "i64" if t.dtype == torch.int64 else "f64"
    values = " ".join(str(v) if dtype == "i64" else repr(v) for v in t.detach().flatten().tolist())
    print(kind, name, dtype, ",".join(str(n) for n in t.shape) or "-", values)


def run(name, module, call, train, ints, shapes):
    rng = random.Random(zlib.crc32(name.encode()))
    module.train(train)
    print("case", name, "train" if train else "eval")
    inputs = {}
    for key, shape in shapes.items():
        count = math.prod(shape)
        if key in ints:
            inputs[key] = torch.tensor([rng.randrange(5) for _ in range(count)]).reshape(shape)
        else:
            inputs[key] = torch.tensor([number(rng) for _ in range(count)]).reshape(shape).requires_grad_()
        write("in", key, inputs[key])
    with torch.no_grad():
        for key, p in module.named_parameters():
            p.copy_(torch.tensor([number(rng) for _ in range(p.numel())]).reshape(p.shape))
            write("state", key, p)
        for key, b in module.named_buffers():
            if b.dtype == torch.int64:
                b.fill_(3)
            else:
                b.copy_(torch.tensor([number(rng) + 1 for _ in range(b.numel())]).reshape(b.shape))
            write("buffer", key, b)
    # Nothing may be lost: PyTorch's fast path has no gradients, and is not taken when parameters need them.
    outputs = call(module, **inputs)
    if not isinstance(outputs, dict):
        outputs = {"y": outputs}
    loss = 0
    for j, (key, y) in enumerate(outputs.items()):
        write("out", key, y)
        i = torch.arange(y.numel())
        loss = loss + (y.flatten() * (((7 * i + 3 * j) % 11) - 5) / 4).sum()
    floats = [(k, v) for k, v in inputs.items() if v.dtype == torch.float64]
    names = [("din", k, v) for k, v in floats] + [("dstate", k, v) for k, v in module.named_parameters()]
    for (kind, key, v), g in zip(names, torch.autograd.grad(loss, [v for _, _, v in names], allow_unused=True)):
        write(kind, key, torch.zeros_like(v) if g is None else g)
    for key, b in module.named_buffers():
        write("after", key, b)


if __name__ == "__main__":
    sys.stdout.write("# made by tests/oracle/make_nn.py with PyTorch %s\n" % torch.__version__)
    for c in CASES:
        run(*c)
    for layer, module in FRESH.items():
        for key, p in module.state_dict().items():
            if p.dtype == torch.float64:
                print("fresh", layer, key, ",".join(str(n) for n in p.shape),
                      *("%.6g" % v for v in (p.mean(), p.std(unbiased=False), p.abs().max())))
