#!/usr/bin/env python3
"""A second reference: PyTorch, where it is installed.

usage: querntest --mode value --python PYTHON --reference tests/oracle/compare_torch.py
       compare_torch.py FOLDER   with the files that querntest --mode value --keep FOLDER left

It checks the float cases of operations that PyTorch has too, each computed in f64 from the case's inputs and held to the bounds
of compare.py; all others are skipped, and everything is when there is no PyTorch. It is not part of make test.
"""
import os
import sys
import warnings

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compare  # noqa: E402
import reference  # noqa: E402

try:
    import torch
    import torch.nn.functional as F
    warnings.simplefilter("ignore")
except ImportError:
    torch = None

OPS = {}


def op(*names):
    def add(function):
        for name in names:
            OPS[name] = function
        return function
    return add


def table(**functions):
    for name, f in functions.items():
        OPS[name] = lambda c, *x, f=f: f(*x)


def axes(c):
    return tuple(c.ints("axes")) or tuple(range(c.x[0].ndim))


def spatial(c, key, n, default):
    v = c.ints(key)
    v = (v + (v[-1],) * n)[:n] if v else (0,) * n
    return tuple(a or default for a in v)


def padded(c, x, value=0.0):
    n = x.ndim - 2
    lo, hi = spatial(c, "lo", n, 0), spatial(c, "hi", n, 0)
    return F.pad(x, [p for pair in reversed(list(zip(lo, hi))) for p in pair], value=value)


def register():
    table(neg=torch.neg, abs=torch.abs, exp=torch.exp, expm1=torch.expm1, log=torch.log, log1p=torch.log1p, sqrt=torch.sqrt,
          rsqrt=torch.rsqrt, reciprocal=torch.reciprocal, sin=torch.sin, cos=torch.cos, tan=torch.tan, tanh=torch.tanh,
          erf=torch.erf, erfc=torch.erfc, floor=torch.floor, ceil=torch.ceil, round=torch.round, trunc=torch.trunc, add=torch.add, sub=torch.sub,
          mul=torch.mul, div=torch.div, pow=torch.pow, atan2=torch.atan2, matmul=torch.matmul, linear=F.linear, relu=F.relu,
          sigmoid=torch.sigmoid, gelu=F.gelu, silu=F.silu, mish=F.mish, softplus=lambda x: F.softplus(x, threshold=1e9),
          gelu_tanh=lambda x: F.gelu(x, approximate="tanh"))
    op("leaky_relu")(lambda c, x: F.leaky_relu(x, c.real("slope", 0.01)))
    op("elu")(lambda c, x: F.elu(x, c.real("alpha", 1)))
    op("glu")(lambda c, x: F.glu(x, c.int("axis", -1)))
    op("softmax")(lambda c, x: F.softmax(x, c.int("axis", -1)))
    op("log_softmax")(lambda c, x: F.log_softmax(x, c.int("axis", -1)))
    op("sum")(lambda c, x: torch.sum(x, axes(c), keepdim=c.flag("keep")) if x.ndim else x)
    op("mean")(lambda c, x: torch.mean(x, axes(c), keepdim=c.flag("keep")))
    op("var")(lambda c, x: torch.var(x, axes(c), correction=c.int("correction"), keepdim=c.flag("keep")))
    op("std")(lambda c, x: torch.std(x, axes(c), correction=c.int("correction"), keepdim=c.flag("keep")))
    op("logsumexp")(lambda c, x: torch.logsumexp(x, axes(c), keepdim=c.flag("keep")))
    op("cumsum")(lambda c, x: torch.cumsum(x, c.int("axis")))
    op("cumprod")(lambda c, x: torch.cumprod(x, c.int("axis")))
    op("roll")(lambda c, x: torch.roll(x, c.int("shift", 1), c.int("axis")))
    op("tile")(lambda c, x: torch.tile(x, c.ints("times")))
    op("triu")(lambda c, x: torch.triu(x, c.int("diagonal")))
    op("tril")(lambda c, x: torch.tril(x, c.int("diagonal")))
    op("layer_norm")(lambda c, x, w=None, b=None: F.layer_norm(x, x.shape[x.ndim - c.int("n", 1):], w, b, c.real("eps", 1e-5)))
    op("group_norm")(lambda c, x, w=None, b=None: F.group_norm(x, c.int("groups", 1), w, b, c.real("eps", 1e-5)))
    op("instance_norm")(lambda c, x, w=None, b=None: F.instance_norm(x, weight=w, bias=b, eps=c.real("eps", 1e-5)))
    op("mse_loss")(lambda c, x, t: F.mse_loss(x, t, reduction=c.text("reduction", "mean")))
    op("l1_loss")(lambda c, x, t: F.l1_loss(x, t, reduction=c.text("reduction", "mean")))
    op("huber_loss")(lambda c, x, t: F.huber_loss(x, t, reduction=c.text("reduction", "mean"), delta=c.real("delta", 1)))
    op("bce_loss")(lambda c, x, t: F.binary_cross_entropy_with_logits(x, t, reduction=c.text("reduction", "mean")))
    op("kl_loss")(lambda c, x, t: F.kl_div(x, t, reduction=c.text("reduction", "mean")))
    op("cosine_similarity")(lambda c, a, b: F.cosine_similarity(a, b, c.int("axis", -1), c.real("eps", 1e-8)))
    op("cosine_loss")(lambda c, a, b, s: F.cosine_embedding_loss(a, b, s, c.real("margin", 0), reduction=c.text("reduction", "mean")))
    op("triplet_loss")(lambda c, a, p, n: F.triplet_margin_loss(a, p, n, c.real("margin", 1), eps=0.0,
                                                                reduction=c.text("reduction", "mean")))
    op("batch_norm")(batch_norm)
    op("conv1d", "conv2d", "conv3d")(conv)
    op("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")(conv_transpose)
    op("max_pool", "avg_pool")(pool)
    op("adaptive_avg_pool", "adaptive_max_pool")(adaptive_pool)
    op("interpolate")(interpolate)
    op("pixel_shuffle", "pixel_unshuffle")(lambda c, x: getattr(F, c.op)(x, c.int("factor", 2)))
    op("cross_entropy", "nll_loss")(cross_entropy)
    op("einsum")(einsum)


def batch_norm(c, x, w, b, mean, var):
    if not c.flag("train"):
        return F.batch_norm(x, mean, var, w, b, False, 0, c.real("eps", 1e-5))
    y = F.batch_norm(x, mean, var, w, b, True, c.real("momentum", 0.1), c.real("eps", 1e-5))
    return [y, mean, var]


def conv(c, x, w, b=None):
    n = x.ndim - 2
    f = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    return f(padded(c, x), w, b, spatial(c, "stride", n, 1), 0, spatial(c, "dilation", n, 1), c.int("groups", 0) or 1)


def conv_transpose(c, x, w, b=None):
    n = x.ndim - 2
    if spatial(c, "lo", n, 0) != spatial(c, "hi", n, 0):
        return None
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    return f(x, w, b, spatial(c, "stride", n, 1), spatial(c, "lo", n, 0), spatial(c, "output_pad", n, 0), c.int("groups", 0) or 1,
             spatial(c, "dilation", n, 1))


def pool(c, x):
    n = x.ndim - 2
    window = spatial(c, "window", n, 1)
    stride = tuple(s or w for s, w in zip(spatial(c, "stride", n, 0), window))
    if c.op == "max_pool":
        f = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        return f(padded(c, x, -np.inf), window, stride, 0, spatial(c, "dilation", n, 1))
    f = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
    y = f(padded(c, x), window, stride)
    return y if c.flag("count_pad") else y / f(padded(c, torch.ones_like(x)), window, stride)


def interpolate(c, x):
    n, mode, scale = x.ndim - 2, c.text("mode", "nearest"), c.real("scale", 0)
    if mode == "cubic" and n != 2:
        return None
    name = {"nearest": "nearest", "nearest_exact": "nearest-exact", "cubic": "bicubic",
            "linear": ("linear", "bilinear", "trilinear")[n - 1]}[mode]
    align = {} if mode.startswith("nearest") else {"align_corners": c.flag("align")}
    how = {"scale_factor": scale} if scale else {"size": tuple(spatial(c, "sizes", n, 1))}
    return F.interpolate(x, mode=name, **how, **align)


def adaptive_pool(c, x):
    n, kind = x.ndim - 2, "avg" if c.op == "adaptive_avg_pool" else "max"
    return getattr(F, f"adaptive_{kind}_pool{n}d")(x, c.ints("sizes"))


def cross_entropy(c, x, labels):
    classes = x.shape[-1]
    x, flat = x.reshape(-1, classes), labels.reshape(-1).long()
    more = {"ignore_index": c.int("ignore")} if "ignore" in c.keys else {}
    if c.op == "cross_entropy":
        y = F.cross_entropy(x, flat, reduction=c.text("reduction", "mean"), label_smoothing=c.real("smoothing", 0), **more)
    else:
        y = F.nll_loss(x, flat, reduction=c.text("reduction", "mean"), **more)
    return y.reshape(labels.shape) if c.text("reduction") == "none" else y


def einsum(c, *x):
    return torch.einsum(reference.letters(c.text("spec")), *x)


def verdict(case):
    """("ok", "") or ("fail", why) or ("skip", why)."""
    if torch is None:
        return "skip", "PyTorch is not installed"
    if case.op not in OPS or not case.is_float or "special" in case.text("in"):
        return "skip", "not for this reference"
    wants = OPS[case.op](case, *(torch.from_numpy(np.array(x)) for x in case.x))
    if wants is None:
        return "skip", "PyTorch has no such padding"
    wants = wants if isinstance(wants, list) else [wants]
    kind = reference.Op(None, "compound", 4)
    for i, (want, (dtype, got)) in enumerate(zip(wants, case.outputs)):
        wrong = compare.check(kind, dtype, got, want.numpy())
        if wrong:
            return "fail", f"result {i}: {wrong}"
    return "ok", ""


def main(folder):
    if torch is None:
        print("compare_torch: PyTorch is not installed: every case is skipped")
    else:
        register()
    with open(os.path.join(folder, "verdicts.txt"), "w") as out:
        for case in compare.read_cases(os.path.join(folder, "cases.bin")):
            try:
                word, why = verdict(case)
            except Exception as error:  # a call that breaks must fail its case, not the run
                word, why = "fail", f"PyTorch: {type(error).__name__}: {error}".replace("\n", " ")
            out.write(f"{case.number} {word} {why}\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
