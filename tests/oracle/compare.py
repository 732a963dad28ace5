#!/usr/bin/env python3
"""Checks operation results by NumPy and SciPy.

usage: compare.py FOLDER     reads FOLDER/cases.bin, as querntest --mode value writes it; writes FOLDER/verdicts.txt
       compare.py --selftest checks the reference itself: right results pass, planted wrong ones are flagged

The references in reference*.py are written from the definitions of the operations; nothing of Quern is used. A reference
says how near a result must be:
  exact     one rounding of the true value: equal, with signs of zeros, in every dtype
  near      one rounding of a function that libraries compute within an ulp: f64 4 ulp, f32 1 ulp, narrower equal
  sum       error within a bound times the sum of |terms|: f64 1e-12, f32 1e-6 (1e-5 for more than 1000 terms); narrower 1 ulp
            of the result beside the bound of f32, in which they are added (where terms cancel, an ulp of f16 is less than what
            f32 is allowed), or 1 ulp of the sum of |terms| where terms are rounded before they are added
  compound  several roundings: max |error| <= bound times max(1, max |reference|); f64 1e-12, f32 1e-6, narrower one
            unit of their precision (inside they compute in f32), each times the factor the reference states
Integers and bools are equal; NaN and infinities stand at the same places.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import formats  # noqa: E402
import reference  # noqa: E402
import reference_nn  # noqa: E402,F401

BOUNDS = {"f64": 1e-12, "f32": 1e-6}


class Case:
    """One case of the stream: operands with their views applied, keys, and the outputs to check."""

    def __init__(self, number, op, dtype, words):
        self.number, self.op, self.dtype = number, op, dtype
        self.shapes = [parse_shape(s) for s in words[0].split(",")]
        self.keys = dict(w.split("=", 1) for w in words[1:])
        self.bits, self.x, self.dtypes, self.outputs = [], [], [], []

    def text(self, key, default=""):
        return self.keys.get(key, default)

    def int(self, key, default=0):
        return int(self.keys.get(key, default), 0) if key in self.keys else default

    def real(self, key, default):
        return float(self.keys.get(key, default))

    def ints(self, key):
        text = self.keys.get(key, "")
        if "x" in text or text in ("-", "()"):
            return parse_shape(text)
        return tuple(int(v) for v in text.split(",") if v)

    def flag(self, key):
        return self.int(key, 0) != 0

    def get(self, i):
        return self.x[i] if i < len(self.x) else None

    @property
    def is_float(self):
        return formats.is_float(self.dtype)


def parse_shape(text):
    return () if text in ("-", "()") else tuple(int(d) for d in text.split("x"))


def apply_view(view, array, shape):
    """The operand that a view of the leaf is."""
    if view == "T":
        return array.transpose()
    if view == "flip":
        return array[(slice(None, None, -1),) * array.ndim]
    if view == "step2":
        return array[(slice(None, None, 2),) * array.ndim]
    if view == "bcast":
        return np.broadcast_to(array, shape)
    return array


def read_bits(file, dtype, shape, n):
    return np.frombuffer(file.read(int(n)), dtype=formats.BITS[formats.SIZES[dtype]]).reshape(parse_shape(shape))


def read_cases(path):
    case = None
    with open(path, "rb") as file:
        while line := file.readline().decode():
            word, *rest = line.split()
            if word == "case":
                case = Case(int(rest[0]), rest[1], rest[2], rest[3:])
            elif word == "leaf":
                _, view, dtype, shape, n = rest
                bits = read_bits(file, dtype, shape, n)
                bits = np.ascontiguousarray(apply_view(view, bits, case.shapes[len(case.x)]))
                bits = bits.reshape(case.shapes[len(case.x)])
                case.bits.append(bits)
                case.dtypes.append(dtype)
                case.x.append(formats.decode(dtype, bits))
            elif word == "out":
                dtype, shape, n = rest
                case.outputs.append((dtype, formats.decode(dtype, read_bits(file, dtype, shape, n))))
            else:
                yield case


def worst(error, allowed, got, want):
    """None when every error is allowed, else a message about the worst; errors are of finite elements."""
    if error.size == 0:
        return None
    excess = np.where(error <= allowed, 0, error)
    if not excess.any():
        return None
    at = np.unravel_index(np.argmax(np.where(error <= allowed, -1, error)), error.shape)
    bound = np.broadcast_to(allowed, error.shape)[at]
    return f"element {list(map(int, at))} is {got[at]!r}, expected {want[at]!r}: error {float(error[at]):.3g}, bound {float(bound):.3g}"


def check_equal(dtype, got, want):
    if formats.is_float(dtype):
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
    else:
        same = got == want
    if np.all(same):
        return None
    at = np.unravel_index(np.argmin(same), same.shape)
    return f"element {list(map(int, at))} is {got[at]!r}, expected {want[at]!r} exactly ({np.size(same) - np.sum(same)} differ)"


def check_near(dtype, got, want, ulps):
    rounded = formats.round_to(dtype, want)
    if dtype not in BOUNDS:
        return check_equal(dtype, got + 0.0, rounded + 0.0)
    return check_places(got, rounded) or worst(distance(got, want), ulps[dtype] * formats.ulp(dtype, finite(rounded)), got, want)


def finite(x):
    return np.where(np.isfinite(x), x, 0)


def distance(got, want):
    both = np.isfinite(got) & np.isfinite(want)
    return np.abs(np.where(both, got, 0) - np.where(both, want, 0)).astype(float)


def check_places(got, want):
    """NaN and infinities stand where they should."""
    special = ~(np.isfinite(got) & np.isfinite(want))
    same = (got == want) | np.isnan(got) & np.isnan(want) | ~special
    if np.all(same):
        return None
    at = np.unravel_index(np.argmin(same), same.shape)
    return f"element {list(map(int, at))} is {got[at]!r}, expected {want[at]!r}"


def check_sum(dtype, got, want, scale, terms, rounded_terms):
    rounded = formats.round_to(dtype, want)
    places = check_places(got, rounded)
    bound = BOUNDS["f64" if dtype == "f64" else "f32"] * (10 if dtype != "f64" and terms > 1000 else 1)
    if dtype in BOUNDS:
        allowed = bound * np.maximum(1, finite(scale)).astype(float)
    elif rounded_terms:
        allowed = formats.ulp(dtype, finite(scale))
    else:
        allowed = formats.ulp(dtype, finite(rounded)) + bound * finite(scale).astype(float)
    return places or worst(distance(got, want), allowed, got, want)


def check_compound(dtype, got, want, factor):
    rounded = formats.round_to(dtype, want)
    bound = BOUNDS.get(dtype, formats.epsilon(dtype)) * factor
    allowed = bound * max(1.0, float(np.max(np.abs(finite(rounded)), initial=0)))
    return check_places(got, rounded) or worst(distance(got, want), np.full(got.shape, allowed), got, want)


def check(ref, dtype, got, want):
    """None, or what is wrong with an output."""
    scale = bound = None
    if isinstance(want, reference.Within):
        want, bound = want
    elif isinstance(want, reference.Sum):
        want, scale, terms, rounded_terms = want
    want = np.asarray(want)
    if got.shape != want.shape:
        return f"the shape is {got.shape}, expected {want.shape}"
    if not formats.is_float(dtype):
        if want.dtype.kind == "f":
            return f"the dtype is {dtype}, expected a float"
        if want.dtype.kind != got.dtype.kind:
            return f"the dtype is {dtype}, expected {want.dtype}"
        return check_equal(dtype, got, want)
    if want.dtype.kind != "f":
        return f"the dtype is {dtype}, expected {want.dtype}"
    if bound is not None:
        return check_places(got, formats.round_to(dtype, want)) or worst(distance(got, want), bound, got, want)
    if scale is not None:
        return check_sum(dtype, got, want, scale, terms, rounded_terms)
    if ref.kind == "exact":
        return check_equal(dtype, got, formats.round_to(dtype, want))
    if ref.kind == "near":
        return check_near(dtype, got, want, {"f64": 4, "f32": 1})
    return check_compound(dtype, got, want, ref.factor)


def check_case(case):
    ref = reference.OPS.get(case.op)
    if ref is None:
        return "the reference does not know this operation"
    with np.errstate(all="ignore"):
        wants = ref.function(case)
        wants = wants if isinstance(wants, list) else [wants]
        if len(wants) != len(case.outputs):
            return f"{len(case.outputs)} results, expected {len(wants)}"
        for i, (want, (dtype, got)) in enumerate(zip(wants, case.outputs)):
            wrong = check(ref, dtype, got, want)
            if wrong:
                return f"result {i}: {wrong}"
    return None


def run(folder):
    with open(os.path.join(folder, "verdicts.txt"), "w") as out:
        for case in read_cases(os.path.join(folder, "cases.bin")):
            try:
                wrong = check_case(case)
            except Exception as error:  # a reference that breaks must fail its case, not the run
                wrong = f"the reference failed: {type(error).__name__}: {error}"
            out.write(f"{case.number} fail {wrong}\n" if wrong else f"{case.number} ok\n")
    return 0


def selftest():
    """Right outputs pass; each planted defect is flagged, for each way of comparing."""
    rng = np.random.default_rng(1)

    def case(op, dtype, words, arrays, outputs):
        c = Case(0, op, dtype, words.split())
        for a in arrays:
            c.dtypes.append(dtype)
            c.x.append(formats.round_to(dtype, a) if formats.is_float(dtype) else a)
        c.outputs = outputs
        return c

    x = formats.round_to("bf16", rng.standard_normal((5, 7)))
    y = formats.round_to("bf16", rng.standard_normal((5, 7)))
    total = 0
    for name, dtype, words, arrays, right, step in [
            ("add", "bf16", "5x7,5x7", [x, y], formats.round_to("bf16", x + y), 2.0 ** -7),
            ("add", "f64", "5x7,5x7", [x, y], x + y, 2.0 ** -52),
            ("exp", "f32", "5x7", [x], formats.round_to("f32", np.exp(x)), 2.0 ** -21),
            ("exp", "f64", "5x7", [x], np.exp(x), 2.0 ** -47),
            ("sum", "f32", "5x7 axes=1", [x], formats.round_to("f32", x.sum(1)), 1e-4),
            ("sum", "bf16", "5x7 axes=1", [x], formats.round_to("bf16", x.sum(1)), 0.05),
            ("softmax", "f64", "5x7 axis=1", [x], np.exp(x) / np.exp(x).sum(1, keepdims=True), 1e-10),
            ("softmax", "f32", "5x7 axis=1", [x], np.exp(x) / np.exp(x).sum(1, keepdims=True), 1e-5),
            ("add", "i32", "5x7,5x7", [np.arange(35, dtype=np.int32).reshape(5, 7)] * 2,
             2 * np.arange(35, dtype=np.int32).reshape(5, 7), 1)]:
        is_float = formats.is_float(dtype)
        planted = [right.copy() for _ in range(4)]
        first = (0,) * right.ndim
        planted[0][first] = planted[0][first] * (1 + 4 * step) if is_float else planted[0][first] + 1
        planted[1] = planted[1].reshape(-1)[:-1]
        if is_float:
            planted[2][first] = np.nan
            planted[3] = -planted[3]
        else:
            planted[2][first] -= 1
            planted[3] = planted[3].astype(np.uint8)
        wrong = check_case(case(name, dtype, words, arrays, [(dtype, right)]))
        if wrong:
            print(f"selftest: right {name} {dtype} is flagged: {wrong}")
            return 1
        for k, bad in enumerate(planted):
            given = "u8" if bad.dtype == np.uint8 else dtype
            if not check_case(case(name, dtype, words, arrays, [(given, bad)])):
                print(f"selftest: planted defect {k} of {name} {dtype} passes")
                return 1
            total += 1
    for dtype in formats.FLOATS:  # rounding: every pattern of a format is itself, and midpoints go to even
        size = formats.SIZES[dtype]
        if size > 2:
            continue
        bits = np.arange(1 << 8 * size, dtype=formats.BITS[size])
        values = formats.decode(dtype, bits)
        keep = np.isfinite(values)
        if check_equal(dtype, formats.round_to(dtype, values)[keep], values[keep]):
            print(f"selftest: rounding changes values of {dtype}")
            return 1
        positive = np.sort(values[keep & (values > 0)])
        middle = (positive[:-1] + positive[1:]) / 2
        even = np.where(np.arange(len(middle)) % 2 == 0, positive[1:], positive[:-1])
        if check_equal(dtype, formats.round_to(dtype, middle), even):
            print(f"selftest: midpoints of {dtype} do not go to even")
            return 1
        total += 2
    print(f"{total} passed, 0 failed")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__)
        sys.exit(2)
    sys.exit(selftest() if sys.argv[1] == "--selftest" else run(sys.argv[1]))
