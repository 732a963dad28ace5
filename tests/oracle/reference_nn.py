"""References of random numbers, activations, norms, convolution, pooling, attention, losses and control, by their definitions."""
import itertools

import numpy as np
from scipy import special

import formats
from reference import Sum, Within, op, maximum, minimum, table, wide

# ---- random: Philox-4x32-10 (Salmon et al., SC11)


def philox(counter, key):
    """Four arrays of words for arrays of counters."""
    c, k = [np.asarray(v, np.uint64) for v in counter], list(key)
    low = np.uint64(0xffffffff)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xd2511f53), c[2] * np.uint64(0xcd9e8d57)
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        c = [high_b ^ c[1] ^ np.uint64(k[0]), b & low, high_a ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9e3779b9) % 2 ** 32, (k[1] + 0xbb67ae85) % 2 ** 32]
    return c


def words(n, seed, step, stream):
    """Words 0..n-1 of a stream."""
    i = np.arange((n + 3) // 4, dtype=np.uint64)
    fixed = [np.full(i.shape, v, np.uint64) for v in (stream, step % 2 ** 32, step >> 32)]
    out = np.stack(philox([i] + fixed, [seed % 2 ** 32, seed >> 32]), axis=-1)
    return out.reshape(-1)[:n].astype(np.uint32)


def random_words(c, n):
    return words(n, c.int("seed", 1), c.int("step", 0), c.int("stream", 1))


def uniform(c, n):
    """In [0, 1): 24 bits of a word, or for f64 53 bits of two."""
    if c.dtype != "f64":
        return (random_words(c, n) >> np.uint32(8)) * 2.0 ** -24
    pair = random_words(c, 2 * n).reshape(n, 2)
    return ((pair[:, 0] >> np.uint32(5)) * 2.0 ** 26 + (pair[:, 1] >> np.uint32(6))) * 2.0 ** -53


def bernoulli(c, p, shape):
    """True for words below p 2^32."""
    return random_words(c, size(shape)).reshape(shape).astype(float) < np.floor(p * 2.0 ** 32)


def size(shape):
    return int(np.prod(shape, dtype=int))


op("random_bits")(lambda c: random_words(c, size(c.shapes[0])).reshape(c.shapes[0]))
op("random_bernoulli")(lambda c: bernoulli(c, c.real("p", 0.5), c.shapes[0]))


@op("random")
def random(c):
    shape = c.ints("shape")
    return words(size(shape), int(c.x[0]), int(c.x[1]), c.int("stream", 1)).reshape(shape)


@op("random_uniform", kind="compound")
def random_uniform(c):
    lo, hi = c.real("lo", 0), c.real("hi", 1)
    return lo + (hi - lo) * uniform(c, size(c.shapes[0])).reshape(c.shapes[0])


@op("random_normal")
def random_normal(c):
    """By Box and Muller from words 2i and 2i + 1, in f32 whatever the dtype."""
    bits = random_words(c, 2 * size(c.shapes[0])).reshape(-1, 2) >> np.uint32(8)
    z = np.sqrt(-2 * np.log((bits[:, 0] + 1.0) * 2.0 ** -24)) * np.cos(2 * np.pi * bits[:, 1] * 2.0 ** -24)
    z = z.reshape(c.shapes[0])
    precision = max(formats.epsilon("f32"), formats.epsilon(c.dtype))
    value = c.real("mean", 0) + c.real("std", 1) * z
    return Within(value, 4 * precision * (c.real("std", 1) * (1 + np.abs(z)) + abs(c.real("mean", 0))))


@op("dropout", kind="compound")
def dropout(c):
    p = c.real("p", 0.5)
    return np.where(bernoulli(c, 1 - p, c.x[0].shape), c.x[0] / (1 - p), 0.0)


# ---- activations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(np.zeros((), x.dtype), x)


def gelu(x):
    return x * special.ndtr(x.astype(float))


def gelu_tanh(x):
    return x * (1 + np.tanh(np.sqrt(2 / wide(np.pi)) * (x + wide(0.044715) * x ** 3))) / 2


def silu(x):
    return x * sigmoid(x)


def relu(x):
    return np.where(x <= 0, np.zeros((), x.dtype), x)


def softmax(x, axis):
    x = x.astype(wide)
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax(x, axis):
    x = x.astype(wide)
    x = x - np.max(x, axis=axis, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


table("exact", relu=relu)
table("compound", sigmoid=sigmoid, gelu=gelu, gelu_tanh=gelu_tanh, gelu_quick=lambda x: x * sigmoid(wide("1.702") * x), silu=silu,
      mish=lambda x: x * np.tanh(softplus(x)), softplus=softplus)
op("leaky_relu", kind="compound")(lambda c: np.where(c.x[0] > 0, c.x[0], c.real("slope", 0.01) * c.x[0]))
op("elu", kind="compound")(lambda c: np.where(c.x[0] > 0, c.x[0], c.real("alpha", 1) * np.expm1(np.minimum(c.x[0], 0))))
op("softmax", kind="compound")(lambda c: softmax(c.x[0], c.int("axis", -1)))
op("log_softmax", kind="compound")(lambda c: log_softmax(c.x[0], c.int("axis", -1)))

for name, f in {"glu": lambda a, b: a * sigmoid(b), "swiglu": lambda a, b: silu(a) * b, "geglu": lambda a, b: gelu(a) * b,
                "reglu": lambda a, b: relu(a) * b}.items():
    op(name, kind="compound")(lambda c, f=f: f(*np.split(c.x[0], 2, c.int("axis", -1))))


# ---- norms


def normalized(x, axes, eps):
    m = x.mean(axis=axes, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(axis=axes, keepdims=True) + eps)


def affine(c, y, shape=None):
    """Times weight plus bias, operands 1 and 2 where there."""
    for k, f in ((1, np.multiply), (2, np.add)):
        p = c.get(k)
        if p is not None:
            y = f(y, p if shape is None else p.reshape(shape))
    return y


def channels(x):
    return (1, -1) + (1,) * (x.ndim - 2)


@op("layer_norm", kind="compound", factor=4)
def layer_norm(c):
    x, n = c.x[0].astype(wide), c.int("n", 1)
    return affine(c, normalized(x, tuple(range(x.ndim - n, x.ndim)), c.real("eps", 1e-5)))


@op("rms_norm", kind="compound", factor=2)
def rms_norm(c):
    x, n = c.x[0].astype(wide), c.int("n", 1)
    y = x / np.sqrt((x ** 2).mean(axis=tuple(range(x.ndim - n, x.ndim)), keepdims=True) + c.real("eps", 1e-5))
    return y if c.get(1) is None else y * c.x[1]


@op("batch_norm", kind="compound", factor=4)
def batch_norm(c):
    x = c.x[0].astype(wide)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    eps, momentum, s = c.real("eps", 1e-5), c.real("momentum", 0.1), channels(x)
    if not c.flag("train"):
        return affine(c, (x - c.x[3].reshape(s)) / np.sqrt(c.x[4].reshape(s) + eps), s)
    running = [(1 - momentum) * c.x[3] + momentum * x.mean(axis=axes), (1 - momentum) * c.x[4] + momentum * x.var(axis=axes, ddof=1)]
    return [affine(c, normalized(x, axes, eps), s)] + running


@op("group_norm", "instance_norm", kind="compound", factor=4)
def group_norm(c):
    x = c.x[0].astype(wide)
    groups = x.shape[1] if c.op == "instance_norm" else c.int("groups", 1)
    y = normalized(x.reshape(x.shape[0], groups, -1), (2,), c.real("eps", 1e-5))
    return affine(c, y.reshape(x.shape), channels(x))


# ---- convolution and pooling


def spatial(c, key, n, default):
    v = c.ints(key)
    v = (v + (v[-1],) * n)[:n] if v else (0,) * n
    return tuple(a or default for a in v)


def convolved(x, w, stride, dilation, groups):
    n, taps = x.ndim - 2, w.shape[2:]
    out = [(x.shape[2 + i] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in range(n)]
    per, o = w.shape[1], w.shape[0] // groups
    y = np.zeros((x.shape[0], w.shape[0]) + tuple(out), x.dtype)
    for tap in itertools.product(*map(range, taps)):
        part = tuple(slice(t * d, t * d + (m - 1) * s + 1, s) for t, d, m, s in zip(tap, dilation, out, stride))
        for g in range(groups):
            xs = x[(slice(None), slice(g * per, (g + 1) * per)) + part]
            y[:, g * o:(g + 1) * o] += np.einsum("nc...,oc->no...", xs, w[(slice(g * o, (g + 1) * o), slice(None)) + tap])
    return y


def with_bias(c, f):
    """Result and sum of |terms| of a convolution f(x, w), bias added."""
    value, scale = f(c.x[0].astype(wide), c.x[1].astype(wide)), f(np.abs(c.x[0]), np.abs(c.x[1]))
    if c.get(2) is not None:
        bias = c.x[2].reshape(channels(c.x[0]))
        value, scale = value + bias, scale + np.abs(bias)
    return Sum(value, scale, size(c.x[1].shape[1:]), c.get(2) is not None)


@op("conv1d", "conv2d", "conv3d")
def conv(c):
    n = c.x[0].ndim - 2
    lo, hi = spatial(c, "lo", n, 0), spatial(c, "hi", n, 0)
    stride, dilation = spatial(c, "stride", n, 1), spatial(c, "dilation", n, 1)

    def f(x, w):
        x = np.pad(x, [(0, 0), (0, 0)] + list(zip(lo, hi)))
        return convolved(x, w, stride, dilation, c.int("groups", 0) or 1)
    return with_bias(c, f)


@op("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(c):
    n, groups = c.x[0].ndim - 2, c.int("groups", 0) or 1
    lo, hi, extra = spatial(c, "lo", n, 0), spatial(c, "hi", n, 0), spatial(c, "output_pad", n, 0)
    stride, dilation = spatial(c, "stride", n, 1), spatial(c, "dilation", n, 1)

    def f(x, w):  # every input element adds its weights to the output it touches
        taps, per, o = w.shape[2:], x.shape[1] // groups, w.shape[1]
        full = [(x.shape[2 + i] - 1) * stride[i] + dilation[i] * (taps[i] - 1) + 1 + extra[i] for i in range(n)]
        y = np.zeros((x.shape[0], o * groups) + tuple(full), x.dtype)
        for tap in itertools.product(*map(range, taps)):
            part = tuple(slice(t * d, t * d + (m - 1) * s + 1, s) for t, d, m, s in zip(tap, dilation, x.shape[2:], stride))
            for g in range(groups):
                piece = np.einsum("nc...,co->no...", x[:, g * per:(g + 1) * per], w[(slice(g * per, (g + 1) * per), slice(None)) + tap])
                y[(slice(None), slice(g * o, (g + 1) * o)) + part] += piece
        return y[(slice(None), slice(None)) + tuple(slice(a, m - b) for a, m, b in zip(lo, full, hi))]
    return with_bias(c, f)


def pooled(c, x, fill, f):
    """f of every window, given as an array whose last axis is the window."""
    n = x.ndim - 2
    taps = spatial(c, "window", n, 1)
    stride = tuple(s or t for s, t in zip(spatial(c, "stride", n, 0), taps))
    dilation = spatial(c, "dilation", n, 1)
    x = np.pad(x, [(0, 0), (0, 0)] + list(zip(spatial(c, "lo", n, 0), spatial(c, "hi", n, 0))), constant_values=fill)
    out = [(x.shape[2 + i] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in range(n)]
    parts = []
    for tap in itertools.product(*map(range, taps)):
        part = tuple(slice(t * d, t * d + (m - 1) * s + 1, s) for t, d, m, s in zip(tap, dilation, out, stride))
        parts.append(x[(slice(None), slice(None)) + part])
    return f(np.stack(parts, axis=-1))


@op("max_pool")
def max_pool(c):
    x = c.x[0]
    fill = -np.inf if c.is_float else np.iinfo(x.dtype).min
    return pooled(c, x, fill, lambda w: np.max(w, axis=-1))


@op("avg_pool", kind="compound")
def avg_pool(c):
    x = c.x[0].astype(wide)
    total = pooled(c, x, 0, lambda w: np.sum(w, axis=-1))
    if c.flag("count_pad"):
        return total / size(spatial(c, "window", x.ndim - 2, 1))
    return total / pooled(c, np.ones_like(x), 0, lambda w: np.sum(w, axis=-1))


def interpolated(x, axis, m, step, mode, align):
    """x with one axis of another size, an element of the result after another."""
    n, x = x.shape[axis], np.moveaxis(x, axis, 0)
    parts = []
    for i in range(m):
        ratio = wide(n) / wide(m) if step is None else step
        if mode in ("nearest", "nearest_exact"):
            at = (2 * i + (mode != "nearest")) * n // (2 * m)
            if step is not None:
                at = int(np.floor((i + (0.5 if mode != "nearest" else 0)) * step))
            parts.append(x[min(at, n - 1)])
            continue
        at = (wide(i) * (n - 1) / (m - 1) if m > 1 else wide(0)) if align else (i + wide(0.5)) * ratio - wide(0.5)
        if mode == "linear":
            at = min(max(at, wide(0)), wide(n - 1))
        low = int(np.floor(at))
        sum_ = 0
        for tap in range(low - 1, low + 3):
            far = abs(at - tap)
            if mode == "linear":
                weight = max(1 - far, wide(0))
            elif far <= 1:
                weight = wide(1.25) * far ** 3 - wide(2.25) * far ** 2 + 1
            else:
                weight = wide(-0.75) * (far ** 3 - 5 * far ** 2 + 8 * far - 4) if far < 2 else wide(0)
            sum_ = sum_ + weight * x[min(max(tap, 0), n - 1)]
        parts.append(sum_)
    return np.moveaxis(np.stack(parts), 0, axis)


@op("interpolate", kind="compound")
def interpolate(c):
    x, scale, mode = c.x[0], c.real("scale", 0), c.text("mode", "nearest")
    if mode in ("linear", "cubic"):
        x = x.astype(wide)
    sizes = [int(np.floor(n * scale)) for n in x.shape[2:]] if scale else spatial(c, "sizes", x.ndim - 2, 0)
    for i, m in enumerate(sizes):
        x = interpolated(x, 2 + i, m, 1 / scale if scale else None, mode, c.flag("align"))
    return x


@op("pixel_shuffle")
def pixel_shuffle(c):
    (n, k, h, w), r = c.x[0].shape, c.int("factor", 2)
    y = np.zeros((n, k // (r * r), h * r, w * r), c.x[0].dtype)
    for a, b in np.ndindex(r, r):
        y[:, :, a::r, b::r] = c.x[0][:, a * r + b::r * r]
    return y


@op("pixel_unshuffle")
def pixel_unshuffle(c):
    (n, k, h, w), r = c.x[0].shape, c.int("factor", 2)
    y = np.zeros((n, k * r * r, h // r, w // r), c.x[0].dtype)
    for a, b in np.ndindex(r, r):
        y[:, a * r + b::r * r] = c.x[0][:, :, a::r, b::r]
    return y


@op("adaptive_avg_pool", "adaptive_max_pool", kind="compound")
def adaptive_pool(c):
    x, sizes = c.x[0].astype(wide), c.ints("sizes")
    f = np.mean if c.op == "adaptive_avg_pool" else np.max
    y = np.zeros(x.shape[:2] + sizes, wide)
    for at in np.ndindex(*sizes):
        part = tuple(slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(at, x.shape[2:], sizes))
        y[(slice(None), slice(None)) + at] = f(x[(slice(None), slice(None)) + part], axis=tuple(range(2, x.ndim)))
    return y


# ---- attention and positions


@op("attention", "attention_mask", kind="compound", factor=2)
def attention(c):
    q, k, v = (x.astype(wide) for x in c.x[:3])
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, axis=1), np.repeat(v, repeat, axis=1)
    scores = np.einsum("bhsd,bhtd->bhst", q, k) * (c.real("scale", 0) or 1 / np.sqrt(wide(q.shape[3])))
    mask = c.get(3)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if c.flag("causal"):
        s, t = scores.shape[2:]
        scores = np.where(np.arange(t) <= np.arange(s)[:, None] + (t - s), scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    y = np.einsum("bhst,bhte->bhse", e / np.where(total == 0, 1, total), v)
    lse = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1, total)))[..., 0]
    return [y, lse] if c.flag("lse") else y


@op("rope", kind="compound", factor=4)
def rope(c):
    x = c.x[0].astype(wide)
    s, d = x.shape[-2:]
    start = 0 if c.get(1) is None else int(c.x[1])
    angle = (start + np.arange(s))[:, None] * wide(c.real("base", 10000)) ** (-2 * np.arange(d // 2) / wide(d))
    first = (slice(0, d, 2), slice(1, d, 2)) if c.flag("interleaved") else (slice(0, d // 2), slice(d // 2, d))
    y = np.empty_like(x)
    a, b = x[..., first[0]], x[..., first[1]]
    y[..., first[0]] = a * np.cos(angle) - b * np.sin(angle)
    y[..., first[1]] = a * np.sin(angle) + b * np.cos(angle)
    return y


@op("sinusoidal", kind="compound", factor=4)
def sinusoidal(c):
    s, d = c.shapes[0]
    angle = np.arange(s)[:, None] * wide(c.real("base", 10000)) ** (-2 * (np.arange(d) // 2) / wide(d))
    return np.where(np.arange(d) % 2 == 0, np.sin(angle), np.cos(angle))


# ---- losses


def reduction(c, loss, weight=None):
    how = c.text("reduction", "mean")
    if how == "none":
        return loss
    return loss.sum() if how == "sum" else loss.sum() / (loss.size if weight is None else weight)


def labeled(c, log_p, labels):
    """Minus the logarithm at the labels, those to ignore left out, smoothed."""
    classes, smoothing = log_p.shape[-1], c.real("smoothing", 0)
    counts = labels != c.int("ignore") if "ignore" in c.keys else np.ones(labels.shape, bool)
    picked = np.take_along_axis(log_p, np.where(counts, labels, 0)[..., None].astype(np.int64), -1)[..., 0]
    loss = -(1 - smoothing) * picked - smoothing * log_p.sum(axis=-1) / classes
    return reduction(c, np.where(counts, loss, 0), counts.sum())


op("cross_entropy", kind="compound")(lambda c: labeled(c, log_softmax(c.x[0], -1), c.x[1]))
op("nll_loss", kind="compound")(lambda c: labeled(c, c.x[0].astype(wide), c.x[1]))


@op("linear_cross_entropy", kind="compound", factor=2)
def linear_cross_entropy(c):
    logits = np.einsum("...i,oi->...o", c.x[0].astype(wide), c.x[1].astype(wide))
    return labeled(c, log_softmax(logits, -1), c.x[2])


def bce(x, t):
    return maximum(x, np.zeros_like(x)) - x * t + np.log1p(np.exp(-np.abs(x)))


def huber(c, x, t):
    d, delta = np.abs(x - t), c.real("delta", 1)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def focal(c, x, t):
    alpha, p = c.real("alpha", 0.25), sigmoid(x)
    loss = bce(x, t) * (1 - (p * t + (1 - p) * (1 - t))) ** c.real("gamma", 2)
    return loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss


def kl(c, log_p, t):
    return np.where(t == 0, 0, t * (np.log(np.where(t == 0, 1, t)) - log_p))


for name, f in {"mse_loss": lambda c, x, t: (x - t) ** 2, "l1_loss": lambda c, x, t: np.abs(x - t), "huber_loss": huber,
                "bce_loss": lambda c, x, t: bce(x, t), "kl_loss": kl, "focal_loss": focal}.items():
    op(name, kind="compound")(lambda c, f=f: reduction(c, f(c, *np.broadcast_arrays(*(x.astype(wide) for x in c.x)))))


def cosine(a, b, axis, eps):
    dot = (a * b).sum(axis=axis)
    return dot / (maximum(np.sqrt((a * a).sum(axis=axis)), wide(eps)) * maximum(np.sqrt((b * b).sum(axis=axis)), wide(eps)))


@op("cosine_similarity", kind="compound")
def cosine_similarity(c):
    return cosine(c.x[0].astype(wide), c.x[1].astype(wide), c.int("axis", -1), c.real("eps", 1e-8))


@op("cosine_loss", kind="compound")
def cosine_loss(c):
    cos = cosine(c.x[0].astype(wide), c.x[1].astype(wide), -1, 1e-8)
    return reduction(c, np.where(c.x[2] > 0, 1 - cos, maximum(cos - c.real("margin", 0), np.zeros_like(cos))))


@op("triplet_loss", kind="compound")
def triplet_loss(c):
    a, p, n = (x.astype(wide) for x in c.x)
    far = np.sqrt(((a - p) ** 2).sum(axis=-1)) - np.sqrt(((a - n) ** 2).sum(axis=-1))
    return reduction(c, maximum(far + c.real("margin", 1), np.zeros_like(far)))


# ---- control: the bodies of the driver, from their equations


def rounded(c, x):
    return formats.round_to(c.dtype, x) if c.is_float else x


def loop_step(c, body, i, carries, xs, captures):
    """(carries, stacked) after step i."""
    if body == "sum":
        y = rounded(c, carries[0] + xs[0])
        return [y], [y]
    if body == "max":
        y = maximum(carries[0], xs[0])
        return [y], [y]
    if body == "rnn":
        y = np.tanh(carries[0] @ captures[0] + xs[0])
        return [y], [y]
    if body == "index":
        return [rounded(c, rounded(c, carries[0] * captures[0]) + np.asarray(i).astype(carries[0].dtype))], []
    if body == "map":
        return [], [rounded(c, rounded(c, xs[0] * xs[0]) + np.asarray(i).astype(xs[0].dtype))]
    if body == "scale":
        return [rounded(c, carries[0] * captures[0])], []
    if body == "nested":
        y = np.sin(np.sin(carries[0]) + xs[0]) + xs[0]
        return [y], [y]
    if body == "mixed":
        y = carries[0] * captures[0] + xs[0] * captures[1] + carries[1]
        return [y, carries[1] + 1], [y]
    a, b = carries
    return [b, rounded(c, a + rounded(c, b * xs[0]))], [rounded(c, a * b), a]


LOOPS = {"sum": (1, 1), "max": (1, 1), "rnn": (1, 1), "index": (1, 0), "map": (0, 1), "scale": (1, 0), "nested": (1, 1), "pair": (2, 1),
         "mixed": (2, 1)}


@op("loop", kind="compound")
def loop(c):
    body, trip = c.text("body", "sum"), c.int("trip", 3)
    n_carries, n_scanned = LOOPS[body]
    operands = c.x[:1] + [np.array(2, np.int64)] + c.x[1:] if body == "mixed" else c.x
    carries, xs, captures = operands[:n_carries], operands[n_carries:n_carries + n_scanned], operands[n_carries + n_scanned:]
    shapes = [y.shape for y in loop_step(c, body, 0, carries, [np.zeros(x.shape[1:], x.dtype) for x in xs], captures)[1]]
    stacked = [np.zeros((trip,) + s, c.x[0].dtype) for s in shapes]
    for i in reversed(range(trip)) if c.flag("reverse") else range(trip):
        carries, ys = loop_step(c, body, i, carries, [x[i] for x in xs], captures)
        for k, y in enumerate(ys):
            stacked[k][i] = y
    return list(carries) + stacked


@op("while", kind="compound")
def while_(c):
    x, k = c.x
    if c.text("body", "count") == "count":
        return [maximum(x, k), np.array(3, np.int64)]
    while np.max(np.abs(x * x - k)) > 0.05:
        x = (x + k / x) / 2
    return [x]


@op("if", kind="compound")
def if_(c):
    cond, a, b = c.x
    if c.text("body", "pick") == "calc":
        return [a * b * np.sin(a), a + b] if cond else [a - b, a * b]
    return [maximum(a, b), a] if cond else [minimum(a, b), b]


@op("composite", kind="compound")
def composite(c):
    a, b = c.x
    return [a * a + np.tanh(b), a * b] if c.text("body", "pick") == "smooth" else [maximum(a, b), a]
