"""Cosine in binary32 (SPEC.md section 6.4): reduced in integers, evaluated in binary64, rounded once."""

from __future__ import annotations

import numpy as np

from auditkit.numerics.angle import sin_cos
from auditkit.numerics.arrays import F32
from auditkit.numerics.elementwise import CANONICAL_NAN, apply_blocks


def cos(x: F32, out: F32 | None = None) -> F32:
    """cos x, elementwise, x in radians.

    x: float32, any shape and strides, not changed unless out is x. out: float32 of the same shape, or None.
    Returns float32 of x's shape: cos(+-0) = 1, NaN 0x7fc00000 for inf or NaN.
    """
    return apply_blocks(_cos_block, x, out)


def _cos_block(x: F32, out: F32) -> None:
    _, cosine = sin_cos(x)
    out[...] = cosine.astype(np.float32)
    out.view(np.uint32)[np.isnan(cosine)] = CANONICAL_NAN
