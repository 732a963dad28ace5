#!/usr/bin/python3
"""bench/peers/torch_peer.py -- PyTorch on the CPU; results go to memory that was made before wherever PyTorch can"""
import os

import torch
import torch.nn.functional as F

from peer import Unknown, memory, serve
from torch_models import TRAIN

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.manual_seed(0)


def empty(*shape):
    count = 1
    for n in shape:
        count *= n
    block, at = memory(4 * count)
    return torch.frombuffer(block, dtype=torch.float32, count=count, offset=at).view(*shape)


def matrix(*shape):
    return empty(*shape).uniform_(-1, 1)


def gemm(v):
    a, b, c = matrix(v["m"], v["k"]), matrix(v["k"], v["n"]), empty(v["m"], v["n"])
    return lambda: torch.mm(a, b, out=c)


def linear_gelu(v):
    x, w, b = matrix(v["m"], v["k"]), matrix(v["n"], v["k"]), matrix(v["n"])
    return lambda: F.gelu(F.linear(x, w, b))


def linear_relu(v):
    x, w, b = matrix(v["m"], v["k"]), matrix(v["n"], v["k"]), matrix(v["n"])
    return lambda: torch.relu_(F.linear(x, w, b))


def with_out(op):
    def make(v):
        x, y = matrix(v["rows"], v["cols"]), empty(v["rows"], v["cols"])
        return lambda: op(x, y)

    return make


def layernorm(v):
    x, w, b = matrix(v["rows"], v["cols"]), matrix(v["cols"]), matrix(v["cols"])
    return lambda: torch.native_layer_norm(x, (v["cols"],), w, b, 1e-5)


def gelu_back(v):
    x, dy, dx = (matrix(v["rows"], v["cols"]) for _ in range(3))
    return lambda: torch.ops.aten.gelu_backward.grad_input(dy, x, grad_input=dx)


def softmax_back(v):
    y, dy, dx = (matrix(v["rows"], v["cols"]) for _ in range(3))
    torch.softmax(dx, 1, out=y)
    return lambda: torch.ops.aten._softmax_backward_data.out(dy, y, 1, torch.float32, grad_input=dx)


def layernorm_back(v):
    x, w, b = matrix(v["rows"], v["cols"]), matrix(v["cols"]), matrix(v["cols"])
    dy = matrix(v["rows"], v["cols"])
    _, mean, rstd = torch.native_layer_norm(x, (v["cols"],), w, b, 1e-5)
    return lambda: torch.ops.aten.native_layer_norm_backward(
        dy, x, (v["cols"],), mean, rstd, w, b, [True, True, True])


def layernorm_train(v):
    x, w, b = matrix(v["rows"], v["cols"]), matrix(v["cols"]), matrix(v["cols"])
    dy = matrix(v["rows"], v["cols"])

    def run():
        _, mean, rstd = torch.native_layer_norm(x, (v["cols"],), w, b, 1e-5)
        torch.ops.aten.native_layer_norm_backward(dy, x, (v["cols"],), mean, rstd, w, b, [True, True, True])

    return run


def attention(v):
    shape = (v["b"], v["h"], v["s"], v["d"])
    q, k, x = (matrix(*shape).requires_grad_(bool(v.get("back", 0))) for _ in range(3))
    dy, scale = matrix(*shape), v["d"] ** -0.5
    mask = torch.ones(v["s"], v["s"], dtype=torch.bool).tril() if v.get("causal", 0) else None

    def run():
        s = (q @ k.transpose(-2, -1)) * scale
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        y = torch.softmax(s, -1) @ x
        if v.get("back", 0):
            torch.autograd.grad(y, (q, k, x), dy)

    return run


def conv_operands(v):
    groups = v.get("groups", 1)
    x = matrix(v["n"], v["c"], v["h"], v["w"])
    w = matrix(v["o"], v["c"] // groups, v["kh"], v["kw"])
    return x, w, groups


def conv(v):
    x, w, groups = conv_operands(v)
    return lambda: F.conv2d(x, w, stride=v["stride"], padding=v["pad"], groups=groups)


def conv_back(x_wanted, w_wanted):
    def make(v):
        x, w, groups = conv_operands(v)
        dy = matrix(*F.conv2d(x, w, stride=v["stride"], padding=v["pad"], groups=groups).shape)
        stride, pad = [v["stride"]] * 2, [v["pad"]] * 2
        return lambda: torch.ops.aten.convolution_backward(
            dy, x, w, None, stride, pad, [1, 1], False, [0, 0], groups, [x_wanted, w_wanted, False])

    return make


def flat(op):
    def make(v):
        a, b, c = matrix(v["count"]), matrix(v["count"]), empty(v["count"])
        return lambda: op(a, b, c)

    return make


CASES = {
    "gemm": gemm,
    "linear_gelu": linear_gelu,
    "linear_relu": linear_relu,
    "gelu": with_out(lambda x, y: torch._C._nn.gelu(x, out=y)),
    "softmax": with_out(lambda x, y: torch.softmax(x, 1, out=y)),
    "layernorm": layernorm,
    "gelu_back": gelu_back,
    "softmax_back": softmax_back,
    "layernorm_back": layernorm_back,
    "layernorm_train": layernorm_train,
    "attention": attention,
    "conv": conv,
    "conv_y": conv,
    "conv_dx": conv_back(True, False),
    "conv_dw": conv_back(False, True),
    "add": flat(lambda a, b, c: torch.add(a, b, out=c)),
    "exp": flat(lambda a, b, c: torch.exp(a, out=c)),
    "tanh": flat(lambda a, b, c: torch.tanh(a, out=c)),
    "sum": flat(lambda a, b, c: torch.sum(a)),
    **TRAIN,
}


def prepare(kind, values):
    if kind not in CASES or values.get("packed", 0):
        raise Unknown("this peer has no such work")
    run = CASES[kind](values)

    def quiet():
        with torch.no_grad():
            run()

    return run if values.get("back", 0) or kind in TRAIN else quiet


serve("torch", torch.__version__, prepare)
