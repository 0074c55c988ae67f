"""Ordered sum of each row: pad to a power of two, add the upper half to the lower half (SPEC.md section 5)."""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, ieee

_NARROW = (
    64  # up to this width rows are turned first: NumPy's inner loop then runs over many rows, not over a short one
)


@ieee
def row_sum(x: F32) -> F32:
    """Sum x (..., K) over its last axis by the halving tree -> (...,) float32; K = 0 gives +0. x is not changed."""
    width = x.shape[-1]
    if width == 0:
        return np.zeros(x.shape[:-1], np.float32)
    half = 1 << (width - 1).bit_length() >> 1  # the padded width is 2 * half, or 1
    if half == 0:
        return x[..., 0].copy()
    terms = x.transpose(-1, *range(x.ndim - 1))
    if width <= _NARROW:
        terms = np.ascontiguousarray(terms)
    low: F32 = terms[:half].copy("K")
    low[: width - half] += terms[half:]
    low[width - half :] += np.float32(0)  # the padding is added too: it turns -0 into +0
    while half > 1:
        half //= 2
        low = low[:half] + low[half:]
    total: F32 = low[0]
    return total
