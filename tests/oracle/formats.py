"""Element formats, decoded and rounded by their definitions: sign, exponent, fraction; round to nearest even."""
import numpy as np

# name: (fraction bits, exponent bits, has infinities)
FLOATS = {"f64": (52, 11, True), "f32": (23, 8, True), "f16": (10, 5, True), "bf16": (7, 8, True),
          "f8e4m3": (3, 4, False), "f8e5m2": (2, 5, True)}
INTS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
         "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1}
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def is_float(dtype):
    return dtype in FLOATS


def epsilon(dtype):
    """The distance from 1 to the next number."""
    return 2.0 ** -FLOATS[dtype][0]


def largest(dtype):
    fraction, exponent, inf = FLOATS[dtype]
    bias = 2 ** (exponent - 1) - 1
    return (2 - 2.0 ** -fraction) * 2.0 ** bias if inf else 448.0


def smallest(dtype):
    """The least number above 0."""
    fraction, exponent, _ = FLOATS[dtype]
    return 2.0 ** (2 - 2 ** (exponent - 1) - fraction)


def decode(dtype, bits):
    """Values of bit patterns: float64 for floats, the integer type, or bool."""
    if dtype == "bool":
        return bits != 0
    if dtype in INTS:
        return bits.view(INTS[dtype])
    fraction, exponent, inf = FLOATS[dtype]
    if dtype == "f64":
        return bits.view(np.float64)
    word = bits.astype(np.int64)
    f = word & ((1 << fraction) - 1)
    e = word >> fraction & ((1 << exponent) - 1)
    sign = np.where(word >> (fraction + exponent) & 1, -1.0, 1.0)
    bias = 2 ** (exponent - 1) - 1
    value = np.where(e == 0, np.ldexp(f.astype(float), 1 - bias - fraction),
                     np.ldexp((f + (1 << fraction)).astype(float), e - bias - fraction))
    top = (1 << exponent) - 1
    if inf:
        value = np.where(e == top, np.where(f == 0, np.inf, np.nan), value)
    else:
        value = np.where((e == top) & (f == (1 << fraction) - 1), np.nan, value)
    return sign * value


def round_to(dtype, x):
    """Floats of any precision rounded once to a float dtype, as float64."""
    if dtype == "f64":
        return np.asarray(x).astype(np.float64)
    fraction, exponent, inf = FLOATS[dtype]
    x = np.asarray(x)
    least = 2 - 2 ** (exponent - 1)
    finite = np.isfinite(x)
    safe = np.where(finite, x, 0)
    _, e = np.frexp(safe)
    unit = np.maximum(e - 1, least) - fraction
    y = np.ldexp(np.rint(np.ldexp(safe, -unit)), unit)
    beyond = np.abs(y) > largest(dtype)
    y = np.where(beyond, np.copysign(np.inf, y) if inf else np.nan, y)
    y = np.where(finite, np.copysign(y, safe), x)
    if not inf:
        y = np.where(np.isinf(y), np.nan, y)
    return y.astype(np.float64)


def ulp(dtype, x):
    """The distance between neighbors near x, for finite x."""
    fraction, exponent, _ = FLOATS[dtype]
    _, e = np.frexp(np.abs(x))
    return np.ldexp(1.0, np.maximum(e - 1, 2 - 2 ** (exponent - 1)) - fraction)


def convert(to, dtype, x):
    """One conversion: float to integer truncates and saturates (NaN: 0), integers wrap, to bool x != 0."""
    if to == "bool":
        return x != 0
    if to in FLOATS:
        return round_to(to, x.astype(np.longdouble))
    if dtype in FLOATS:
        info = np.iinfo(INTS[to])
        whole = np.trunc(np.where(np.isnan(x), 0, x)).astype(object)
        clipped = [int(min(max(v, info.min), info.max)) if abs(v) != np.inf else (info.max if v > 0 else info.min)
                   for v in whole.ravel()]
        return np.array(clipped, dtype=INTS[to]).reshape(x.shape)
    return x.astype(INTS[to])
