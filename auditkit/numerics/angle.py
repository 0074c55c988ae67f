"""Sine and cosine of binary32 angles, together, before the last rounding (SPEC.md section 6.4).

The angle modulo pi/2 comes from integers (Payne, Hanek: "Radian reduction for trigonometric functions", 1983), so it is
as good for 1e38 as for 1; then the binary64 kernels of float64.py. sin.py and cos.py round the result once.
"""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, F64, I64
from auditkit.numerics.elementwise import U64
from auditkit.numerics.float64 import cos_kernel, rotate, sin_kernel

# floor(2/pi * 2^256): its first 198 bits are enough for the largest binary32 exponent
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
HALF_PI = 1.5707963267948966  # binary64 3ff921fb54442d18
LAST_UNREDUCED = 0x3F490FDA  # bits of the largest binary32 below pi/4: up to here the angle is its own rest

_FIRST_EXPONENT = 126  # exponent field of the smallest angle that is reduced
_WORD = (1 << 32) - 1


def _windows() -> tuple[U64, U64, U64]:
    """For each exponent field 126 .. 254: 96 bits of 2/pi, in three words from the low end.

    A number with field E is m 2^(E - 150), m < 2^24; the window is floor(2/pi 2^(E - 150) 2^94) mod 2^96, so m times
    the window counts quarter turns in units of 2^-94, modulo 4.
    """
    rows = [TWO_OVER_PI >> (256 - (field - 150 + 94)) for field in range(_FIRST_EXPONENT, 255)]
    low, middle, high = ([(row >> shift) & _WORD for row in rows] for shift in (0, 32, 64))
    return np.array(low, np.uint64), np.array(middle, np.uint64), np.array(high, np.uint64)


_LOW, _MIDDLE, _HIGH = _windows()


def sin_cos(x: F32) -> tuple[F64, F64]:
    """sin x and cos x of one-dimensional float32 x, in binary64; NaN for inf and NaN."""
    bits = x.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    quadrant, rest = _reduce(magnitude.astype(np.uint64))
    unreduced = magnitude <= LAST_UNREDUCED
    rest = np.where(unreduced, magnitude.view(np.float32).astype(np.float64), rest)
    quadrant = np.where(unreduced, np.int64(0), quadrant)
    sine, cosine = rotate(quadrant, sin_kernel(rest, 0.0), cos_kernel(rest, 0.0))
    not_finite = magnitude >= 0x7F800000
    sine = np.where(not_finite, np.nan, np.where(bits != magnitude, -sine, sine))
    return sine, np.where(not_finite, np.nan, cosine)


def _reduce(magnitude: U64) -> tuple[I64, F64]:
    """Quadrant (modulo 4) and rest in [-pi/4, pi/4] of the numbers with these words; anything where the table ends."""
    field = magnitude >> np.uint64(23)
    row = np.clip(field.astype(np.int64) - _FIRST_EXPONENT, 0, _LOW.size - 1)
    m = (magnitude & np.uint64(0x7FFFFF)) | np.uint64(0x800000)
    p0 = m * _LOW[row]
    p1 = m * _MIDDLE[row] + (p0 >> np.uint64(32))
    p2 = m * _HIGH[row] + (p1 >> np.uint64(32))
    turns = (p2 << np.uint64(32)) | (p1 & np.uint64(_WORD))  # quarter turns in units of 2^-62, modulo 2^64
    quadrant = ((turns >> np.uint64(61)) + np.uint64(1)) >> np.uint64(1)  # to nearest; 4 means 0
    fraction = (turns - (quadrant << np.uint64(62))).view(np.int64)  # in [-2^61, 2^61)
    rest = (fraction.astype(np.float64) * 2.0**-62) * HALF_PI
    return quadrant.astype(np.int64), rest
