#!/usr/bin/env python3
"""bench/peers/cuda_peer.py -- PyTorch on a card, for `quern bench cuda`: the lines of peer.h, with "run N MODE"

Times are until the card has done all N runs. Modes: eager; compile (torch.compile); replay (a captured CUDA graph); cudnn, flash and
efficient (attention by that backend). "losses" answers each "run" with the loss of one more step."""
import json
import os
import struct
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

if not torch.cuda.is_available():
    sys.exit("there is no card")
CARD = torch.device("cuda")
torch.backends.cuda.matmul.allow_tf32 = False
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


class Unknown(Exception):
    pass


def dtype(v):
    return torch.bfloat16 if v.get("bf16") else torch.float32


def numbers(v, *shape, grad=False):
    return (torch.rand(shape, device=CARD) * 2 - 1).to(dtype(v)).requires_grad_(grad)


# ---- kinds: a function of no arguments, and whether it may be compiled and captured -------------------------------------------


def copy(v):
    x = numbers(v, v["rows"], v["cols"])
    y = torch.empty_like(x)
    return (lambda x: y.copy_(x)), (x,)


def unary(op, back):
    def make(v):
        x = numbers(v, v["rows"], v["cols"])
        if not v.get("back"):
            return op, (x,)
        return back(v, x)

    return make


def gelu_back(v, x):
    dy = numbers(v, v["rows"], v["cols"])
    return torch.ops.aten.gelu_backward, (dy, x)


def softmax_back(v, x):
    y, dy = torch.softmax(x, 1), numbers(v, v["rows"], v["cols"])
    return (lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, 1, y.dtype)), (dy, y)


def layernorm(v):
    c = v["cols"]
    x, w, b = numbers(v, v["rows"], c), numbers(v, c), numbers(v, c)
    if not v.get("back"):
        return (lambda x, w, b: F.layer_norm(x, (c,), w, b, 1e-5)), (x, w, b)
    dy = numbers(v, v["rows"], c)
    _, mean, rstd = torch.native_layer_norm(x, (c,), w, b, 1e-5)
    op = torch.ops.aten.native_layer_norm_backward
    return (lambda dy, x, mean, rstd, w, b: op(dy, x, (c,), mean, rstd, w, b, [True] * 3)), (dy, x, mean, rstd, w, b)


def linear_gelu(v):
    x, w, b = numbers(v, v["m"], v["k"]), numbers(v, v["n"], v["k"]), numbers(v, v["n"])
    how = "tanh" if v.get("tanh") else "none"
    return (lambda x, w, b: F.gelu(F.linear(x, w, b), approximate=how)), (x, w, b)


def gemm(v):
    return torch.mm, (numbers(v, v["m"], v["k"]), numbers(v, v["k"], v["n"]))


def add(v):
    return torch.add, (numbers(v, v["count"]), numbers(v, v["count"]))


def total(v):
    return torch.sum, (numbers(v, v["count"]),)


def attention(v):
    shape = (v["b"], v["h"], v["s"], v["d"])
    back = bool(v.get("back"))
    q, k, x = (numbers(v, *shape, grad=back) for _ in range(3))
    dy = numbers(v, *shape)

    def run(q, k, x):
        y = F.scaled_dot_product_attention(q, k, x, is_causal=bool(v.get("causal")))
        return torch.autograd.grad(y, (q, k, x), dy) if back else y

    return run, (q, k, x)


def linear_loss(v):
    x, w = numbers(v, v["m"], v["k"], grad=True), numbers(v, v["n"], v["k"], grad=True)
    labels = torch.randint(v["n"], (v["m"],), device=CARD)

    def loss(x, w):
        return F.cross_entropy(F.linear(x, w).float(), labels)

    def run(x, w, loss=loss):
        return torch.autograd.grad(loss(x, w), (x, w))

    run.inner = loss
    return run, (x, w)


def lstm(v):
    """cuDNN's; products by tf32 where fast=1"""
    torch.backends.cudnn.allow_tf32 = bool(v.get("fast"))
    c = v["C"]
    net = nn.LSTM(c, c, v["layers"]).to(CARD, dtype(v))
    x, dy = numbers(v, v["T"], v["B"], c, grad=True), numbers(v, v["T"], v["B"], c)
    operands = (x, *net.parameters())
    return (lambda: torch.autograd.grad(net(x)[0], operands, dy)), ()


KINDS = {"copy": copy, "gelu": unary(F.gelu, gelu_back),
         "softmax": unary(lambda x: torch.softmax(x, 1), softmax_back), "layernorm": layernorm,
         "linear_gelu": linear_gelu, "gemm": gemm, "add": add, "sum": total, "attention": attention,
         "linear_loss": linear_loss, "lstm": lstm}


# ---- GPT-2 ---------------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for p in self.attn["c_attn"](self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """124 million parameters; names are those of Quern's checkpoints, without "transformer."."""

    def __init__(self, vocabulary, length):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, 768), nn.Embedding(length, 768)
        self.h = nn.ModuleList(Block(768, 12) for _ in range(12))
        self.ln_f = nn.LayerNorm(768)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def optimizer(model, rate):
    parts = [[p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False)]
    groups = [{"params": parts[0], "weight_decay": 0.1}, {"params": parts[1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def stepper(model, run, rate=1e-4):
    optim = optimizer(model, rate)

    def step(tokens, labels):
        optim.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        return loss

    return step


def training_step(v):
    torch.set_float32_matmul_precision("high")
    model = GPT2(v["V"], v["T"]).to(CARD)
    ids = torch.randint(50257, (2, v["B"], v["T"]), device=CARD)
    step = stepper(model, torch.compile(model))
    for _ in range(3):  # compiles, and warms up
        step(ids[0], ids[1])
    torch.cuda.synchronize()
    return {"compile": lambda: step(ids[0], ids[1])}


def tensors(path):
    """The tensors of a safetensors file."""
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    kinds = {"F32": torch.float32, "F64": torch.float64, "U64": torch.int64, "I64": torch.int64}
    for name, t in head.items():
        if name == "__metadata__" or t["dtype"] not in kinds:
            continue
        begin, end = t["data_offsets"]
        if end > begin:
            yield name, torch.frombuffer(data, dtype=kinds[t["dtype"]], offset=begin,
                                         count=(end - begin) // (8 if t["dtype"] in ("F64", "U64", "I64") else 4)
                                         ).view(t["shape"])


class Losses:
    """Steps from the parameters and on the batches that Quern has left in a folder."""

    def __init__(self, v):
        folder = v["dir"]
        model = GPT2(v["V"], v["T"])
        own = dict(model.named_parameters())
        for name, t in tensors(os.path.join(folder, "run", "step-00000000", "model.safetensors")):
            name = name.removeprefix("transformer.")
            if name in own:
                own.pop(name).data.copy_(t)
        if own:
            raise Unknown("parameters are missing: " + " ".join(own))
        self.step = stepper(model.to(CARD), model)
        self.shape = (2, v["B"], v["T"])
        self.file = open(os.path.join(folder, "batches.bin"), "rb")

    def run(self):
        n = self.shape[0] * self.shape[1] * self.shape[2]
        batch = torch.frombuffer(bytearray(self.file.read(4 * n)), dtype=torch.int32).view(self.shape)
        tokens, labels = batch.to(CARD, torch.int64)
        return self.step(tokens, labels).item()


# ---- ways ----------------------------------------------------------------------------------------------------------------------


def captured(run):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def compiled(op, operands):
    if hasattr(op, "inner"):
        inner = torch.compile(op.inner)
        return lambda: op(*operands, loss=inner)
    fast = torch.compile(op)
    return lambda: fast(*operands)


def by_backend(run, name):
    def attend():
        with sdpa_kernel(BACKENDS[name]):
            return run()

    return attend


class Ways(dict):
    """A case's function by the name of a way, made when it is first asked for."""

    def __init__(self, op, operands):
        super().__init__()
        self.op, self.operands = op, operands

    def __missing__(self, name):
        plain = lambda: self.op(*self.operands)
        if name == "eager":
            run = plain
        elif name == "compile":
            run = compiled(self.op, self.operands)
        elif name == "replay":
            run = captured(plain)
        elif name in BACKENDS:
            run = by_backend(plain, name)
        else:
            raise Unknown(name)
        self[name] = run
        return run


def prepare(kind, v):
    if kind == "step":
        return training_step(v)
    if kind == "losses":
        return Losses(v)
    if kind not in KINDS:
        raise Unknown(kind)
    return Ways(*KINDS[kind](v))


def timed(run, n):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def value(text):
    return int(text) if text.lstrip("-").isdigit() else text


def answer(ways, words):
    if words[0] == "case":
        v = {k: value(t) for k, t in (w.split("=", 1) for w in words[2:])}
        return prepare(words[1], v), "ok"
    n = int(words[1])
    if isinstance(ways, Losses):
        return ways, f"time {ways.run():.9f}"
    return ways, f"time {timed(ways[words[2] if len(words) > 2 else 'eager'], n):.9f}"


def main():
    print(f"peer cuda {torch.__version__}", flush=True)
    ways = None
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        if words[0] == "case":
            ways = None
            torch.cuda.empty_cache()
        try:
            ways, text = answer(ways, words)
        except Exception as why:  # what a peer cannot do must not end it
            text = "no " + (" ".join(str(why).split())[:200] or type(why).__name__)
        print(text, flush=True)


if __name__ == "__main__":
    main()
