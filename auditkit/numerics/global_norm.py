"""Global gradient norm as an exact sum in two limbs, and the clip factor (SPEC.md section 13)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from auditkit.numerics.arrays import F32, ieee
from auditkit.numerics.exact_sum import BlockSums
from auditkit.numerics.nonfinite import NonFinite

HIGH_UNIT = 30
LOW_UNIT = 62
_BLOCK = 32_768


@ieee
def squares(grad: F32) -> int:
    """Exact sum of the squares of a tensor's elements, an integer in units 2^-62.

    x = g * g in binary32; high = rint(x * 2^30), low = rint((x * 2^30 - high) * 2^32); both sums are exact. Raises
    NonFinite.
    """
    flat = grad.reshape(-1)
    highs, lows = BlockSums(()), BlockSums(())
    for start in range(0, flat.size, _BLOCK):
        g = flat[start : start + _BLOCK]
        x = (g * g).astype(np.float64)
        x *= float(1 << HIGH_UNIT)
        if not x.max() < 2.0**62:
            raise NonFinite("a squared gradient is not finite or reaches 2^32")
        high = np.rint(x)
        x -= high
        x *= float(1 << (LOW_UNIT - HIGH_UNIT))
        low = np.rint(x, out=x).astype(np.int64)
        highs.add(high.astype(np.int64))
        lows.add(low)
    return (highs.integer() << (LOW_UNIT - HIGH_UNIT)) + lows.integer()


def norm_from_squares(totals: Iterable[int]) -> np.float32:
    """sqrt of the sum: to binary64 correctly rounded, sqrt in binary64, once to binary32. Raises NonFinite from 2^32
    on.
    """
    total = sum(totals)
    if total >= 1 << (LOW_UNIT + 32):
        raise NonFinite("the squared gradient norm reaches 2^32")
    return np.float32(math.sqrt(total / (1 << LOW_UNIT)))


def clip_factor(norm: np.float32, clip_norm: np.float32) -> np.float32:
    """clip_norm / norm in binary32 where the norm is larger, else 1; clip_norm 0 switches clipping off."""
    if clip_norm > 0 and norm > clip_norm:
        return np.float32(clip_norm / norm)
    return np.float32(1)
