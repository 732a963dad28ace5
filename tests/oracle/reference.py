"""References of primitives, views, indexing, reductions and contraction, by their definitions.

A reference takes a case and gives what its results should be: floats as float64 or wider and not yet rounded, integers and
bools in their types, Sum for results compared with the sum of |terms|, Within for those with a bound of their own.
"""
import collections
import itertools
import re
import string

import numpy as np
from scipy import special

import formats

OPS = {}
Op = collections.namedtuple("Op", "function kind factor")
Sum = collections.namedtuple("Sum", "value scale terms rounded_terms", defaults=[False])
Within = collections.namedtuple("Within", "value bound")
wide = np.longdouble


def op(*names, kind="exact", factor=1):
    def add(function):
        for name in names:
            OPS[name] = Op(function, kind, factor)
        return function
    return add


def table(kind, **functions):
    """Elementwise functions of all operands. Exact ones compute in f64, where + - * / sqrt are exact before one rounding; for
    the others floats are wider."""
    operands = (lambda c: c.x) if kind == "exact" else widened
    for name, f in functions.items():
        OPS[name.rstrip("_")] = Op(lambda c, f=f: f(*operands(c)), kind, 1)


def widened(c):
    return [x.astype(wide) if x.dtype.kind == "f" else x for x in c.x]


def is_float(x):
    return x.dtype.kind == "f"


# ---- creation


def numbers(c, x):
    """Numbers as the case's dtype has them."""
    x = np.asarray(x, dtype=float)
    if c.is_float:
        return x
    return x != 0 if c.dtype == "bool" else np.trunc(x).astype(formats.INTS[c.dtype])


op("full", "full_like", "scalar")(lambda c: numbers(c, np.full(c.shapes[0], c.real("value", 0))))
op("zeros", "zeros_like")(lambda c: numbers(c, np.zeros(c.shapes[0])))
op("ones", "ones_like")(lambda c: numbers(c, np.ones(c.shapes[0])))
op("iota")(lambda c: numbers(c, np.indices(c.shapes[0])[c.int("axis")]))
op("eye")(lambda c: numbers(c, np.eye(*c.shapes[0])))


@op("scalar_int")
def scalar_int(c):
    value = c.int("value")
    if c.is_float:
        return np.array(value, dtype=wide)
    if c.dtype == "bool":
        return np.array(value != 0)
    return np.array(value, dtype=np.int64).astype(formats.INTS[c.dtype])


@op("arange", kind="compound")
def arange(c):
    return numbers(c, c.real("start", 0) + c.real("step", 1) * np.arange(c.shapes[0][0]))


@op("linspace", kind="compound")
def linspace(c):
    return np.linspace(c.real("first", 0), c.real("last", 1), c.shapes[0][0])


# ---- elementwise


def maximum(a, b):
    if a.dtype.kind != "f":
        return np.maximum(a, b)
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0), np.maximum(a, b))


def minimum(a, b):
    return -maximum(-a, -b) if is_float(a) else np.minimum(a, b)


def sign(x):
    return np.where(x == 0, x, np.sign(x)) if is_float(x) else np.sign(x)


def shift(a, b, left):
    width = a.dtype.itemsize * 8
    out = (b < 0) | (b >= width)
    safe = np.where(out, 0, b).astype(a.dtype)
    if left:
        return np.where(out, 0, np.left_shift(a, safe)).astype(a.dtype)
    return np.where(out, np.where(a < 0, -1, 0).astype(a.dtype), np.right_shift(a, safe)).astype(a.dtype)


def mod(a, b):
    return np.mod(a, b)


def divide(a, b):
    if is_float(a):
        return a / b
    return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b))).astype(a.dtype)


def clip(c):
    x = c.x[0]
    lo, hi = numbers(c, c.real("lo", -1)), numbers(c, c.real("hi", 1))
    if c.is_float:
        lo, hi = formats.round_to(c.dtype, lo), formats.round_to(c.dtype, hi)
    return np.where(np.isnan(x), x, np.clip(x, lo, hi)) if c.is_float else np.clip(x, lo, hi)


def scalar_operand(c):
    value = c.real("value", 2)
    return formats.round_to(c.dtype, np.array(value)) if c.is_float else numbers(c, value)


table("exact", neg=lambda x: -x, abs=np.abs, sign=sign, floor=np.floor, ceil=np.ceil, round=np.rint, trunc=np.trunc,
      sqrt=np.sqrt, square=lambda x: x * x, isnan=np.isnan, isinf=np.isinf, isfinite=np.isfinite, stop_gradient=lambda x: x,
      checkpoint_activation=lambda x: x,
      reciprocal=lambda x: 1 / x, add=lambda a, b: a + b, sub=lambda a, b: a - b, mul=lambda a, b: a * b, div=divide,
      maximum=maximum, minimum=minimum, eq=lambda a, b: a == b, ne=lambda a, b: a != b, lt=lambda a, b: a < b,
      le=lambda a, b: a <= b, gt=lambda a, b: a > b, ge=lambda a, b: a >= b, and_=np.bitwise_and, or_=np.bitwise_or,
      xor=np.bitwise_xor, not_=np.invert, shl=lambda a, b: shift(a, b, True), shr=lambda a, b: shift(a, b, False),
      where=np.where)
table("near", exp=np.exp, expm1=np.expm1, log=np.log, log1p=np.log1p, sin=np.sin, cos=np.cos, tanh=np.tanh,
      erf=lambda x: special.erf(x.astype(float)), pow=np.power, atan2=np.arctan2)
table("compound", erfc=lambda x: special.erfc(x.astype(float)), mod=mod, rsqrt=lambda x: 1 / np.sqrt(x), tan=np.tan)
op("clip")(clip)
op("add_scalar")(lambda c: c.x[0] + scalar_operand(c))
op("mul_scalar")(lambda c: c.x[0] * scalar_operand(c))
op("div_scalar", kind="near")(lambda c: divide(c.x[0], scalar_operand(c)))
op("pow_scalar", kind="near")(lambda c: np.power(widened(c)[0], scalar_operand(c)))
op("cast")(lambda c: formats.convert(c.text("to"), c.dtype, c.x[0]))
op("bitcast")(lambda c: formats.decode(c.text("to"), c.bits[0]))


# ---- views


@op("reshape")
def reshape(c):
    return c.x[0].reshape(c.ints("shape"))


@op("flatten")
def flatten(c):
    s = c.x[0].shape
    first, last = c.int("first", 0) % len(s), c.int("last", -1) % len(s)
    return c.x[0].reshape(s[:first] + (int(np.prod(s[first:last + 1])),) + s[last + 1:])


op("squeeze")(lambda c: np.squeeze(c.x[0], c.int("axis")))
op("unsqueeze")(lambda c: np.expand_dims(c.x[0], c.int("axis")))
op("permute")(lambda c: np.transpose(c.x[0], c.ints("axes")))
op("transpose")(lambda c: np.swapaxes(c.x[0], c.int("a", 0), c.int("b", 1)))
op("broadcast_to")(lambda c: np.broadcast_to(c.x[0], c.ints("shape")))
op("select")(lambda c: np.take(c.x[0], c.int("at"), c.int("axis")))
op("flip")(lambda c: np.flip(c.x[0], c.ints("axes")))
op("roll")(lambda c: np.roll(c.x[0], c.int("shift", 1), c.int("axis")))
op("tile")(lambda c: np.tile(c.x[0], c.ints("times")))
op("concat")(lambda c: np.concatenate(c.x, c.int("axis")))
op("stack")(lambda c: np.stack(c.x, c.int("axis")))
op("triu")(lambda c: np.triu(c.x[0], c.int("diagonal")))
op("tril")(lambda c: np.tril(c.x[0], c.int("diagonal")))


@op("slice")
def slice_(c):
    part = [slice(None)] * c.x[0].ndim
    part[c.int("axis")] = slice(c.int("start") if "start" in c.keys else 0, c.int("stop") if "stop" in c.keys else None,
                                c.int("step", 1))
    return c.x[0][tuple(part)]


@op("pad")
def pad(c):
    value = numbers(c, c.real("value", 0))
    value = formats.round_to(c.dtype, value) if c.is_float else value
    return np.pad(c.x[0], list(zip(c.ints("lo"), c.ints("hi"))), constant_values=value)


@op("pad_mid")
def pad_mid(c):
    x, fill = c.x
    lo, hi, mid = c.ints("lo"), c.ints("hi"), c.ints("mid")
    shape = [a + b + n + max(n - 1, 0) * m for n, a, b, m in zip(x.shape, lo, hi, mid)]
    y = np.full(shape, fill)
    y[tuple(slice(a, a + n + max(n - 1, 0) * m, m + 1) for n, a, m in zip(x.shape, lo, mid))] = x
    return y


@op("split")
def split(c):
    return np.split(c.x[0], np.cumsum(c.ints("sizes"))[:-1], c.int("axis"))


def block(x, starts, sizes):
    """Where a block lies, moved so that it is inside."""
    return tuple(slice(s, s + n) for s, n in ((min(max(int(s), 0), d - n), n) for s, d, n in zip(starts, x.shape, sizes)))


@op("slice_at")
def slice_at(c):
    return c.x[0][block(c.x[0], c.x[1:], c.ints("sizes"))]


@op("update_at")
def update_at(c):
    y = c.x[0].copy()
    y[block(y, c.x[2:], c.x[1].shape)] = c.x[1]
    return y


def window_places(shape, axes, size, step, dilate):
    """For each place in the windows: its index, and the part of the array it reads."""
    out = [(n - (w - 1) * d - 1) // s + 1 for n, w, s, d in zip((shape[a] for a in axes), size, step, dilate)]
    for w in itertools.product(*map(range, size)):
        part = [slice(None)] * len(shape)
        for a, i, o, s, d in zip(axes, w, out, step, dilate):
            part[a] = slice(i * d, i * d + max(o - 1, 0) * s + (1 if o > 0 else 0), s)
        yield w, tuple(part)


@op("window")
def window(c):
    x, axes, size = c.x[0], c.ints("axes"), c.ints("size")
    parts = {w: x[p] for w, p in window_places(x.shape, axes, size, c.ints("step"), c.ints("dilate"))}
    shape = next(iter(parts.values())).shape
    y = np.empty(shape + tuple(size), x.dtype)
    for w, part in parts.items():
        y[(Ellipsis,) + w] = part
    return y


@op("col2im")
def col2im(c):
    x, shape, axes = c.x[0], c.ints("shape"), c.ints("axes")
    size = x.shape[x.ndim - len(axes):]

    def add(values, dtype):
        y = np.zeros(shape, dtype)
        for w, part in window_places(shape, axes, size, c.ints("step"), c.ints("dilate")):
            y[part] += values[(Ellipsis,) + w]
        return y
    if not is_float(x):
        return add(x, x.dtype)
    return Sum(add(x.astype(wide), wide), add(np.abs(x), float), 1)


# ---- indexing


def gathered(x, index, axis, batch):
    axis %= x.ndim
    inner = index.shape[batch:]
    y = np.zeros(x.shape[:axis] + inner + x.shape[axis + 1:], x.dtype)
    for n in np.ndindex(*index.shape[:batch]):
        for i in np.ndindex(*inner):
            k, between = int(index[n + i]), (slice(None),) * (axis - batch)
            if 0 <= k < x.shape[axis]:
                y[n + between + i] = x[n + between + (k,)]
    return y


def scattered(x, index, u, axis, batch, mode):
    axis %= x.ndim
    f = {"set": lambda a, b: b, "add": lambda a, b: a + b, "sum": lambda a, b: a + b, "max": maximum, "min": minimum,
         "prod": lambda a, b: a * b}[mode]

    def run(x, u):
        y = x.copy()
        for n in np.ndindex(*index.shape[:batch]):
            for i in np.ndindex(*index.shape[batch:]):
                k, between = int(index[n + i]), (slice(None),) * (axis - batch)
                if 0 <= k < x.shape[axis]:
                    y[n + between + (k,)] = f(y[n + between + (k,)], u[n + between + i])
        return y
    if mode in ("add", "sum") and is_float(x):
        return Sum(run(x.astype(wide), u.astype(wide)), run(np.abs(x), np.abs(u)), 1)
    return run(x, u)


op("gather")(lambda c: gathered(c.x[0], c.x[1], c.int("axis"), 0))
op("gather_batch")(lambda c: gathered(c.x[0], c.x[1], c.int("axis"), c.int("batch")))
op("scatter")(lambda c: scattered(*c.x, c.int("axis"), 0, c.text("mode", "set")))
op("scatter_batch")(lambda c: scattered(*c.x, c.int("axis"), c.int("batch"), c.text("reduce", "sum")))


@op("take_along")
def take_along(c):
    x, index = c.x
    axis = c.int("axis") % x.ndim
    y = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        k = int(index[at])
        if 0 <= k < x.shape[axis]:
            y[at] = x[at[:axis] + (k,) + at[axis + 1:]]
    return y


@op("scatter_along")
def scatter_along(c):
    x, index, u = c.x
    axis, mode = c.int("axis") % x.ndim, c.text("mode", "set")
    f = {"set": lambda a, b: b, "add": lambda a, b: a + b, "max": max, "min": min}[mode]

    def run(x, u):
        y = x.copy()
        for at in np.ndindex(*index.shape):
            k = int(index[at])
            if 0 <= k < x.shape[axis]:
                place = at[:axis] + (k,) + at[axis + 1:]
                y[place] = f(y[place], u[at])
        return y
    if mode == "add" and is_float(x):
        return Sum(run(x.astype(wide), u.astype(wide)), run(np.abs(x), np.abs(u)), 1)
    return run(x, u)


@op("one_hot")
def one_hot(c):
    return numbers(c, c.x[0][..., None] == np.arange(c.int("classes", 4)))


# ---- reductions, scans, order


def axes_of(c, key="axes"):
    axes = tuple(a % c.x[0].ndim for a in c.ints(key)) if c.x[0].ndim else ()
    return axes if axes or key in c.keys else tuple(range(c.x[0].ndim))


def count(shape, axes):
    return int(np.prod([shape[a] for a in axes]))


def least(dtype):
    """What max gives of nothing: -inf, or the least there is."""
    if dtype == "bool":
        return False
    if dtype in formats.INTS:
        return np.iinfo(formats.INTS[dtype]).min
    return -np.inf if formats.FLOATS[dtype][2] else -formats.largest(dtype)


def most(dtype):
    if dtype == "bool":
        return True
    return np.iinfo(formats.INTS[dtype]).max if dtype in formats.INTS else -least(dtype)


def reduced(c, x, how, axes, keep=False):
    if how in ("max", "min"):
        if count(x.shape, axes) > 0:
            return (np.max if how == "max" else np.min)(x, axis=axes, keepdims=keep)
        shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
        return np.full(shape, least(c.dtype) if how == "max" else most(c.dtype), dtype=x.dtype)
    f = np.sum if how == "sum" else np.prod
    if not is_float(x):
        return f(x, axis=axes, keepdims=keep, dtype=x.dtype)
    return Sum(f(x.astype(wide), axis=axes, keepdims=keep), f(np.abs(x), axis=axes, keepdims=keep), count(x.shape, axes))


for name in ("sum", "prod", "max", "min"):
    op(name)(lambda c, how=name: reduced(c, c.x[0], how, axes_of(c), c.flag("keep")))
op("any")(lambda c: np.any(c.x[0], axis=axes_of(c), keepdims=c.flag("keep")))
op("all")(lambda c: np.all(c.x[0], axis=axes_of(c), keepdims=c.flag("keep")))
op("reduce")(lambda c: reduced(c, c.x[0], c.text("reduce", "sum"), tuple(c.ints("axes"))))


@op("mean")
def mean(c):
    x, axes = c.x[0].astype(wide), axes_of(c)
    n = count(x.shape, axes)
    return Sum(x.sum(axis=axes, keepdims=c.flag("keep")) / n, np.abs(x).sum(axis=axes, keepdims=c.flag("keep")) / n, n)


@op("var", "std", kind="compound")
def var(c):
    v = np.var(c.x[0].astype(wide), axis=axes_of(c), keepdims=c.flag("keep"), ddof=c.int("correction"))
    return np.sqrt(v) if c.op == "std" else v


@op("logsumexp", kind="compound")
def logsumexp(c):
    return special.logsumexp(c.x[0], axis=axes_of(c), keepdims=c.flag("keep"))


@op("argmax", "argmin")
def argmax(c):
    f = np.argmax if c.op == "argmax" else np.argmin
    return f(c.x[0], axis=c.int("axis"), keepdims=c.flag("keep"))


op("argreduce")(lambda c: (np.argmax if c.text("reduce") == "max" else np.argmin)(c.x[0], axis=c.int("axis")))


def scanned(x, how, axis, reverse):
    f = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[how]

    def run(x):
        x = np.flip(x, axis) if reverse else x
        y = f.accumulate(x, axis=axis, dtype=x.dtype) if x.size else x
        return np.flip(y, axis) if reverse else y
    if is_float(x) and how in ("sum", "prod"):
        return Sum(run(x.astype(wide)), run(np.abs(x)), x.shape[axis])
    return run(x)


for name in ("sum", "prod", "max", "min"):
    op("cum" + name)(lambda c, how=name: scanned(c.x[0], how, c.int("axis"), False))
op("scan")(lambda c: scanned(c.x[0], c.text("reduce", "sum"), c.int("axis"), c.flag("reverse")))


def order(x, axis, descending):
    """Indices that sort each lane; equal ones stay in order, NaN is greatest."""
    lanes = np.moveaxis(x, axis, -1)
    index = np.zeros(lanes.shape, np.int64)
    for at in np.ndindex(*lanes.shape[:-1]):
        lane = lanes[at].tolist()
        key = lambda i: (lane[i] != lane[i], 0 if lane[i] != lane[i] else lane[i])  # noqa: E731
        index[at] = sorted(range(len(lane)), key=key, reverse=descending)
    return np.moveaxis(index, -1, axis)


@op("sort")
def sort(c):
    index = order(c.x[0], c.int("axis"), c.flag("descending"))
    return [np.take_along_axis(c.x[0], index, c.int("axis")), index]


op("argsort")(lambda c: order(c.x[0], c.int("axis"), c.flag("descending")))


@op("topk")
def topk(c):
    axis = c.int("axis")
    index = order(c.x[0], axis, not c.flag("smallest"))
    index = np.take(index, range(c.int("k", 2)), axis)
    return [np.take_along_axis(c.x[0], index, axis), index]


# ---- contraction


def contract(spec, *xs):
    """einsum with the sum of |terms|."""
    if not is_float(xs[0]):
        return np.einsum(spec, *xs)
    inputs = spec.split("->")[0].split(",")
    sizes = {k: n for s, x in zip(inputs, xs) for k, n in zip(s, x.shape)}
    out = spec.split("->")[1] if "->" in spec else ""
    terms = int(np.prod([n for k, n in sizes.items() if k not in out]))
    return Sum(np.einsum(spec, *[x.astype(wide) for x in xs]), np.einsum(spec, *[np.abs(x) for x in xs]), terms)


@op("matmul")
def matmul(c):
    a, b = c.x
    if not is_float(a):
        return np.matmul(a, b)
    return Sum(np.matmul(a.astype(wide), b.astype(wide)), np.matmul(np.abs(a), np.abs(b)), a.shape[-1])


@op("linear")
def linear(c):
    y = contract("...i,oi->...o", c.x[0], c.x[1])
    bias = c.get(2)
    if bias is None:
        return y
    return Sum(y.value + bias, y.scale + np.abs(bias), y.terms, True) if is_float(c.x[0]) else y + bias


def letters(spec):
    """A spec with names in brackets as one with letters, in the names' order."""
    names = sorted(set(re.findall(r"\[(.*?)\]", spec)))
    return re.sub(r"\[(.*?)\]", lambda m: string.ascii_letters[26:][names.index(m[1])], spec)


op("einsum")(lambda c: contract(letters(c.text("spec")), *c.x))

COMBINE = {"mul": lambda a, b: a * b, "add": lambda a, b: a + b, "max": maximum, "min": minimum}


def contract_over(c, inputs, out, xs, how, combine):
    """Every operand spread over all indices, combined, and reduced over those that the result lacks; integers wrap at each
    step."""
    every = out + "".join(sorted(set("".join(inputs)) - set(out)))
    sizes = {k: n for s, x in zip(inputs, xs) for k, n in zip(s, x.shape)}
    total = None
    for s, x in zip(inputs, xs):
        x = x.astype(wide) if is_float(x) else x.astype(np.int64) if x.dtype.kind == "i" else x.astype(np.uint64) if x.dtype.kind == "u" else x
        x = np.transpose(x, [s.index(k) for k in every if k in s])
        x = np.broadcast_to(x.reshape([sizes[k] if k in s else 1 for k in every]), [sizes[k] for k in every])
        total = x if total is None else COMBINE[combine](total, x)
        total = total if is_float(total) else total.astype(xs[0].dtype).astype(total.dtype)
    y = reduced(c, total, how, tuple(range(len(out), len(every))))
    return y if is_float(total) else y.astype(xs[0].dtype)


@op("einsum_over")
def einsum_over(c):
    inputs, out = letters(c.text("spec")).split("->")
    return contract_over(c, inputs.split(","), out, c.x, c.text("reduce", "sum"), c.text("combine", "mul"))


@op("dot")
def dot(c):
    a, b = c.x
    pool = iter(string.ascii_letters)
    a_names, b_names = [next(pool) for _ in a.shape], [next(pool) for _ in b.shape]
    for i, j in list(zip(c.ints("a_batch"), c.ints("b_batch"))) + list(zip(c.ints("a_sum"), c.ints("b_sum"))):
        b_names[j] = a_names[i]
    batch, gone = [a_names[i] for i in c.ints("a_batch")], [a_names[i] for i in c.ints("a_sum")]
    out = batch + [k for k in a_names if k not in batch + gone] + [k for k in b_names if k not in batch + gone]
    return contract_over(c, ["".join(a_names), "".join(b_names)], "".join(out), c.x, c.text("reduce", "sum"),
                         c.text("combine", "mul"))
