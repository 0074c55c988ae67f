"""Section 6 of SPEC.md once more, one number at a time in plain Python: no code shared with auditkit/numerics.

Python's float is binary64. A sum, product, quotient or root of binary32 numbers computed in binary64 and rounded to
binary32 is the correctly rounded result (Figueroa 1995: 53 >= 2 * 24 + 2), as none of the quotients here is subnormal.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

NAN = math.nan
F = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561


def w32(word: int) -> float:
    """The binary32 number with this bit pattern."""
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


def w64(word: int) -> float:
    """The binary64 number with this bit pattern."""
    return float(struct.unpack("<d", struct.pack("<Q", word))[0])


def bits32(x: float) -> int:
    """The bit pattern of a binary32 number, NaN as 7fc00000."""
    return 0x7FC00000 if math.isnan(x) else int(struct.unpack("<I", struct.pack("<f", x))[0])


def bits64(x: float) -> int:
    """The bit pattern of a binary64 number, NaN as 7ff8000000000000."""
    return 0x7FF8000000000000 if math.isnan(x) else int(struct.unpack("<Q", struct.pack("<d", x))[0])


def rn(x: float) -> float:
    """x rounded once to binary32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def rint(x: float) -> int:
    """The nearest integer, ties to even."""
    return int(Decimal(x).to_integral_value(ROUND_HALF_EVEN))


def horner32(x: float, words: Sequence[int]) -> float:
    """6.1 in binary32."""
    v = w32(words[-1])
    for word in words[-2::-1]:
        v = rn(rn(v * x) + w32(word))
    return v


def horner64(x: float, coefficients: Sequence[float]) -> float:
    """6.1 in binary64."""
    v = coefficients[-1]
    for c in coefficients[-2::-1]:
        v = v * x
        v = v + c
    return v


def exp(x: float) -> float:
    """6.2."""
    if math.isnan(x):
        return NAN
    x = min(max(x, -105.0), 89.0)
    t = rn(rn(x * w32(0x3FB8AA3B)) + w32(0x4B400000))
    n = rn(t - w32(0x4B400000))
    r = rn(x - rn(n * w32(0x3F317200)))
    r = rn(r - rn(n * w32(0x35BFBE8E)))
    q = horner32(r, [0x3EFFFFFD, 0x3E2AAA48, 0x3D2AACFE, 0x3C091D90, 0x3AB4C11B])
    p = rn(rn(rn(rn(q * r) * r) + r) + 1.0)
    h = int(n) // 2
    return rn(rn(p * 2.0**h) * 2.0 ** (int(n) - h))


def log(x: float) -> float:
    """6.3."""
    if math.isnan(x) or x < 0:
        return NAN
    if x == 0 or x == math.inf:
        return math.inf if x else -math.inf
    j = 0
    if x < 2.0**-126:
        x, j = x * 2.0**23, 23
    shift = (bits32(x) - 0x3F3504F3) >> 23
    m = w32(bits32(x) - (shift << 23))
    k = float(shift - j)
    f = rn(m - 1.0)
    s = rn(f / rn(2.0 + f))
    z = rn(s * s)
    r = rn(z * horner32(z, [0x3F2AAAAB, 0x3ECCCCCD, 0x3E924925, 0x3E638E39]))
    h = rn(rn(0.5 * f) * f)
    inner = rn(rn(s * rn(h + r)) + rn(k * w32(0x35BFBE8E)))
    return rn(rn(k * w32(0x3F317200)) - rn(rn(h - inner) - f))


S = [(-1) ** i / math.factorial(2 * i + 1) for i in range(1, 9)]
C = [(-1) ** (i + 1) / math.factorial(2 * i + 2) for i in range(1, 9)]


def sin_cos_kernels(a: float, b: float) -> tuple[float, float]:
    """6.5: sin_kernel and cos_kernel."""
    z = a * a
    u = (z * a) * horner64(z, S)
    sine = a + (u + b * (1 - 0.5 * z))
    h = 0.5 * z
    w = 1 - h
    return sine, w + (((1 - w) - h) + ((z * z) * horner64(z, C) - a * b))


def by_quadrant(quadrant: int, kernels: tuple[float, float], negative: bool) -> tuple[float, float]:
    """6.4: the table of quadrants, and the sign of the sine."""
    s, c = kernels
    sine, cosine = [(s, c), (c, -s), (-s, -c), (-c, s)][quadrant % 4]
    return (-sine if negative else sine), cosine


def sin_cos(x: float) -> tuple[float, float]:
    """6.4: sin and cos of a binary32 number."""
    if math.isnan(x) or math.isinf(x):
        return NAN, NAN
    w = bits32(x) & 0x7FFFFFFF
    quadrant, rest = 0, abs(x)
    if w > 0x3F490FDA:
        window = (F >> (312 - (w >> 23))) % (1 << 96)
        turns = (((1 << 23) + w % (1 << 23)) * window >> 32) % (1 << 64)
        quadrant = (turns + (1 << 61)) >> 62
        rest = (float(turns - (quadrant << 62)) * 2.0**-62) * w64(0x3FF921FB54442D18)
    sine, cosine = by_quadrant(quadrant, sin_cos_kernels(rest, 0.0), math.copysign(1, x) < 0)
    return rn(sine), rn(cosine)


def exp64(x: float) -> float:
    """6.5."""
    if math.isnan(x):
        return NAN
    x = min(max(x, -746.0), 710.0)
    n = rint(x * w64(0x3FF71547652B82FE))
    a = x - n * w64(0x3FE62E42FEE00000)
    b = n * w64(0x3DEA39EF35793C76)
    r = a - b
    tail = (r * r) * horner64(r, [1 / math.factorial(k) for k in range(2, 15)]) - b
    o = 1 + a
    p = o + ((a - (o - 1)) + tail)
    return (p * 2.0 ** (n // 2)) * 2.0 ** (n - n // 2)


def log64(x: float) -> float:
    """6.5."""
    if math.isnan(x) or x < 0:
        return NAN
    if x == 0 or x == math.inf:
        return math.inf if x else -math.inf
    j = 0
    if x < 2.0**-1022:
        x, j = x * 2.0**54, 54
    shift = (bits64(x) - 0x3FE6A09E667F3BCD) >> 52
    f = w64(bits64(x) - (shift << 52)) - 1
    k = float(shift - j)
    s = f / (2 + f)
    z = s * s
    r = z * horner64(z, [2 / i for i in range(3, 22, 2)])
    h = (0.5 * f) * f
    return k * w64(0x3FE62E42FEE00000) - ((h - (s * (h + r) + k * w64(0x3DEA39EF35793C76))) - f)


def two_sum(a: float, b: float) -> tuple[float, float]:
    """6.5."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def sin_cos64(x: float) -> tuple[float, float]:
    """6.5: sin64 and cos64 within their domain."""
    n = rint(abs(x) * w64(0x3FE45F306DC9C883))
    a = abs(x) - n * w64(0x3FF921FB54400000)
    b, eb = two_sum(a, -(n * w64(0x3DD0B4611A600000)))
    c, ec = two_sum(b, -(n * w64(0x3BA3198A2E000000)))
    tail = (eb + ec) - n * w64(0x397B839A252049C1)
    hi = c + tail
    return by_quadrant(n, sin_cos_kernels(hi, tail - (hi - c)), math.copysign(1, x) < 0)


def philox(seed: int, stream: int, block: int) -> tuple[int, int, int, int]:
    """6.6."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = block & mask, block >> 32, stream & mask, stream >> 32
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & mask, (a >> 32) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def normal_pair(x: int, y: int, std: float) -> tuple[float, float]:
    """6.7: the two elements from a pair of words."""
    u1, u2 = (x // 256 + 1) * 2.0**-24, (y // 256) * 2.0**-24
    r = rn(math.sqrt(rn(-2.0 * log(u1))))
    sine, cosine = sin_cos(rn(u2 * w32(0x40C90FDB)))
    return rn(rn(r * cosine) * std), rn(rn(r * sine) * std)
