"""RMSNorm of rows, forward and backward (SPEC.md section 7; Zhang and Sennrich, 2019, without the re-centring)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, I64, ieee, row_blocks
from auditkit.numerics.exact_sum import GRADIENT_UNIT, BlockSums, to_fixed
from auditkit.numerics.row_sum import row_sum


@dataclass(frozen=True)
class RmsNormCache:
    """xhat (N, C) = x * rstd and rstd (N,), float32."""

    xhat: F32
    rstd: F32


@ieee
def rms_norm_forward(x: F32, weight: F32, eps: np.float32) -> tuple[F32, RmsNormCache]:
    """y = (x * rstd) * weight with rstd = 1 / sqrt(row_sum(x * x) / C + eps).

    x (N, C) float32, weight (C,) float32. Returns y (N, C) and the cache.
    """
    rows, width = x.shape
    y = np.empty_like(x)
    xhat = np.empty_like(x)
    rstd = np.empty(rows, np.float32)
    for at in row_blocks(rows, width):
        mean = row_sum(x[at] * x[at]) / np.float32(width)
        rstd[at] = np.float32(1) / np.sqrt(mean + eps)
        np.multiply(x[at], rstd[at, None], out=xhat[at])
        np.multiply(xhat[at], weight, out=y[at])
    return y, RmsNormCache(xhat, rstd)


@ieee
def rms_norm_backward(dy: F32, weight: F32, cache: RmsNormCache) -> tuple[F32, I64]:
    """dx = (g - xhat * (row_sum(g * xhat) / C)) * rstd with g = dy * weight; dweight is the exact sum of dy * xhat
    over rows.

    dy (N, C) float32. Returns dx (N, C) float32 and dweight (C,) int64 in units 2^-56. Raises NonFinite.
    """
    rows, width = dy.shape
    dx = np.empty_like(dy)
    dweight = BlockSums((width,))
    for at in row_blocks(rows, width):
        xhat = cache.xhat[at]
        dweight.add(to_fixed(dy[at] * xhat, GRADIENT_UNIT))
        g = dy[at] * weight
        mean = row_sum(g * xhat) / np.float32(width)
        g -= xhat * mean[:, None]
        np.multiply(g, cache.rstd[at, None], out=dx[at])
    return dx, dweight.total()
