"""exp, log, sin, cos and integer powers in binary64, for tables and scalars (SPEC.md section 6.5).

Same rules as the binary32 ops: + - * /, rint and powers of two, one rounding each, our own series. Within 1 ulp,
which is far more than RoPE tables, learning rates and bias corrections need: they are rounded once to binary32.
"""

from __future__ import annotations

import numpy as np

from auditkit.errors import UsageError
from auditkit.numerics.arrays import F64, I64
from auditkit.numerics.elementwise import f64

PI = 3.141592653589793  # binary64 400921fb54442d18
LOG2E = f64(0x3FF71547652B82FE)  # 1/ln 2
LN2_HI = f64(0x3FE62E42FEE00000)  # 32 significant bits, so n * LN2_HI is exact for |n| < 2^21
LN2_LO = f64(0x3DEA39EF35793C76)  # ln 2 - LN2_HI
TWO_OVER_PI = f64(0x3FE45F306DC9C883)
# pi/2 in three parts of 33 significant bits and a rest: n times a part is exact for |n| <= 2^20
HALF_PI_PARTS = tuple(f64(b) for b in (0x3FF921FB54400000, 0x3DD0B4611A600000, 0x3BA3198A2E000000))
HALF_PI_REST = f64(0x397B839A252049C1)
MAX_ANGLE = 1647099.0  # floor(2^20 pi/2): the largest |x| of sin64 and cos64

_MIN_EXP, _MAX_EXP = -746.0, 710.0  # e^x is 0 below, inf above
_SMALLEST_NORMAL = f64(0x0010000000000000)
_SQRT_HALF = 0x3FE6A09E667F3BCD
_MANTISSA_BITS = np.int64(52)
_BIAS = np.int64(1023)


def _reciprocal_factorials(first: int, last: int, stride: int) -> tuple[float, ...]:
    """1/k! for k = first, first + stride, .. last; k! is exact in binary64 up to 22!, so each has one rounding."""
    factorials, product = [], 1
    for k in range(1, last + 1):
        product *= k
        if k >= first and (k - first) % stride == 0:
            factorials.append(1.0 / float(product))
    return tuple(factorials)


EXP_SERIES = _reciprocal_factorials(2, 14, 1)  # 1/2!, 1/3!, ..., 1/14!
SIN_SERIES = tuple(c if i % 2 else -c for i, c in enumerate(_reciprocal_factorials(3, 17, 2)))  # -1/3!, .., 1/17!
COS_SERIES = tuple(-c if i % 2 else c for i, c in enumerate(_reciprocal_factorials(4, 18, 2)))  # 1/4!, .., -1/18!
LOG_SERIES = tuple(2.0 / (2 * k + 1) for k in range(1, 11))  # 2/3, 2/5, ..., 2/21


def horner(x: F64, coefficients: tuple[float, ...]) -> F64:
    """c0 + x (c1 + x (c2 + ...)): start with the last coefficient, then times x, plus the one before, and so on."""
    value = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


def exp64(x: F64 | float) -> F64:
    """e^x for binary64 x of any shape (a float gives a 0-d array); inf above 709.79, gradual underflow, NaN for NaN."""
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        clamped = np.minimum(np.maximum(x, _MIN_EXP), _MAX_EXP)
        n = np.rint(clamped * LOG2E)
        hi = clamped - n * LN2_HI
        lo = n * LN2_LO
        r = hi - lo
        tail = (r * r) * horner(r, EXP_SERIES) - lo
        one_plus = 1.0 + hi
        power = one_plus + ((hi - (one_plus - 1.0)) + tail)
        whole = np.where(np.isnan(x), 0.0, n).astype(np.int64)
        half = whole >> np.int64(1)
        result: F64 = (power * _power_of_two(half)) * _power_of_two(whole - half)
        return np.where(np.isnan(x), np.nan, result)


def log64(x: F64 | float) -> F64:
    """ln x for binary64 x of any shape (a float gives a 0-d array); -inf for 0, NaN for a negative number or NaN."""
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        subnormal = x < _SMALLEST_NORMAL
        bits = np.asarray(np.where(subnormal, x * 2.0**54, x)).view(np.int64)
        k = (bits - np.int64(_SQRT_HALF)) >> _MANTISSA_BITS
        f = np.asarray(bits - (k << _MANTISSA_BITS)).view(np.float64) - 1.0
        scale = (k - np.where(subnormal, np.int64(54), np.int64(0))).astype(np.float64)
        s = f / (2.0 + f)
        z = s * s
        r = z * horner(z, LOG_SERIES)
        h = (0.5 * f) * f
        finite = scale * LN2_HI - ((h - (s * (h + r) + scale * LN2_LO)) - f)
        special = np.where(x == 0, -np.inf, np.where(x == np.inf, np.inf, np.nan))
        return np.where((x > 0) & (x < np.inf), finite, special)


def sin64(x: F64 | float) -> F64:
    """sin x for binary64 x of any shape (a float gives a 0-d array). Raises UsageError unless |x| <= MAX_ANGLE."""
    x = np.asarray(x, np.float64)
    quadrant, hi, lo = _reduce(np.abs(x))
    sine, _ = rotate(quadrant, sin_kernel(hi, lo), cos_kernel(hi, lo))
    return np.where(np.signbit(x), -sine, sine)


def cos64(x: F64 | float) -> F64:
    """cos x for binary64 x of any shape (a float gives a 0-d array). Raises UsageError unless |x| <= MAX_ANGLE."""
    quadrant, hi, lo = _reduce(np.abs(np.asarray(x, np.float64)))
    return rotate(quadrant, sin_kernel(hi, lo), cos_kernel(hi, lo))[1]


def pow_int(base: float, exponent: int) -> float:
    """base^exponent in binary64 by square-and-multiply, lowest bit first: the order fixes the bits.

    result = 1; for each bit from the lowest: if it is 1, result *= base; while bits are left, base *= base.
    Raises UsageError for a negative exponent.
    """
    if exponent < 0:
        raise UsageError(f"power: exponent {exponent} is negative")
    result, square = 1.0, float(base)
    while exponent:
        if exponent & 1:
            result *= square
        exponent >>= 1
        if exponent:
            square *= square
    return result


def sin_kernel(hi: F64, lo: F64 | float) -> F64:
    """sin(hi + lo) for |hi| <= pi/4 and lo below half an ulp of hi."""
    z = hi * hi
    cubic = (z * hi) * horner(z, SIN_SERIES)
    return hi + (cubic + lo * (1.0 - 0.5 * z))


def cos_kernel(hi: F64, lo: F64 | float) -> F64:
    """cos(hi + lo) for |hi| <= pi/4 and lo below half an ulp of hi."""
    z = hi * hi
    h = 0.5 * z
    w = 1.0 - h
    return w + (((1.0 - w) - h) + ((z * z) * horner(z, COS_SERIES) - hi * lo))


def rotate(quadrant: I64, sine: F64, cosine: F64) -> tuple[F64, F64]:
    """(sin, cos) of an angle from those of its rest: quadrant 0 (s, c), 1 (c, -s), 2 (-s, -c), 3 (-c, s), modulo 4."""
    odd = (quadrant & 1) == 1
    s, c = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
    return np.where((quadrant & 2) == 2, -s, s), np.where(((quadrant + 1) & 2) == 2, -c, c)


def _reduce(x: F64) -> tuple[I64, F64, F64]:
    """n and (hi, lo) with x = n pi/2 + hi + lo for 0 <= x <= MAX_ANGLE; the rest keeps full relative accuracy."""
    if not bool(np.all(x <= MAX_ANGLE)):
        raise UsageError(f"sin64 and cos64 take finite angles up to {MAX_ANGLE:.0f} only")
    n = np.rint(x * TWO_OVER_PI)
    first, second, third = HALF_PI_PARTS
    a = x - n * first  # exact
    b, b_error = _two_sum(a, -(n * second))
    c, c_error = _two_sum(b, -(n * third))
    tail = (b_error + c_error) - n * HALF_PI_REST
    hi = c + tail
    lo = tail - (hi - c)
    return n.astype(np.int64), hi, lo


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """a + b rounded, and its exact error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _power_of_two(n: I64) -> F64:
    """2^n for -1022 <= n <= 1023, by its bits."""
    return np.asarray((n + _BIAS) << _MANTISSA_BITS).view(np.float64)
