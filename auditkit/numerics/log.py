"""Natural logarithm in binary32 (SPEC.md section 6.3), within 1 ulp for every positive number.

x = 2^k m, m in [sqrt(1/2), sqrt 2); f = m - 1, s = f / (2 + f): log m = 2 atanh s = f - (f^2/2 - s (f^2/2 + R)) with
R = 2/3 s^2 + 2/5 s^4 + ... (arranged as in FreeBSD's e_log.c: f itself is exact, so only small terms round).
"""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, I32
from auditkit.numerics.elementwise import CANONICAL_NAN, apply_blocks, f32

ONE = f32(0x3F800000)
TWO = f32(0x40000000)
HALF = f32(0x3F000000)
SUBNORMAL_SCALE = f32(0x4B000000)  # 2^23 makes every subnormal normal, exactly
SQRT_HALF = 0x3F3504F3  # bits of sqrt(1/2), where m begins
LN2_HI = f32(0x3F317200)  # 15 significant bits, so k * LN2_HI is exact for |k| < 2^9
LN2_LO = f32(0x35BFBE8E)  # ln 2 - LN2_HI
L1 = f32(0x3F2AAAAB)  # 2/3
L2 = f32(0x3ECCCCCD)  # 2/5
L3 = f32(0x3E924925)  # 2/7
L4 = f32(0x3E638E39)  # 2/9; the next term would be below 0.02 ulp

_SMALLEST_NORMAL = f32(0x00800000)
_INF = f32(0x7F800000)


def log(x: F32, out: F32 | None = None) -> F32:
    """ln x, elementwise.

    x: float32, any shape and strides, not changed unless out is x. out: float32 of the same shape, or None.
    Returns float32 of x's shape: -inf for +-0, inf for inf, NaN 0x7fc00000 for a negative number or NaN.
    """
    return apply_blocks(_log_block, x, out)


def _log_block(x: F32, out: F32) -> None:
    zero, infinite = x == 0, x == _INF
    invalid = ~(x >= 0)
    k, f = _split(x)
    np.subtract(k * LN2_HI, _minus_log1p(f, k * LN2_LO), out=out)
    out[zero] = -_INF
    out[infinite] = _INF
    out.view(np.uint32)[invalid] = CANONICAL_NAN


def _split(x: F32) -> tuple[F32, F32]:
    """k and f, exact, with x = 2^k (1 + f) and 1 + f in [sqrt(1/2), sqrt 2); anything for other x."""
    subnormal = x < _SMALLEST_NORMAL
    bits: I32 = np.where(subnormal, x * SUBNORMAL_SCALE, x).view(np.int32)
    k: I32 = (bits - np.int32(SQRT_HALF)) >> np.int32(23)
    m = (bits - (k << np.int32(23))).view(np.float32)
    k -= np.where(subnormal, np.int32(23), np.int32(0))
    return k.astype(np.float32), m - ONE


def _minus_log1p(f: F32, low: F32) -> F32:
    """-(ln(1 + f) + low): ((h - (s (h + R) + low)) - f), h = f^2/2."""
    s = f / (TWO + f)
    z = s * s
    r = z * (L1 + z * (L2 + z * (L3 + z * L4)))
    h = (HALF * f) * f
    result: F32 = (h - (s * (h + r) + low)) - f
    return result
