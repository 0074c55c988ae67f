"""Sine in binary32 (SPEC.md section 6.4): reduced in integers, evaluated in binary64, rounded once."""

from __future__ import annotations

import numpy as np

from auditkit.numerics.angle import sin_cos
from auditkit.numerics.arrays import F32
from auditkit.numerics.elementwise import CANONICAL_NAN, apply_blocks


def sin(x: F32, out: F32 | None = None) -> F32:
    """sin x, elementwise, x in radians.

    x: float32, any shape and strides, not changed unless out is x. out: float32 of the same shape, or None.
    Returns float32 of x's shape: sin(+-0) = +-0, NaN 0x7fc00000 for inf or NaN.
    """
    return apply_blocks(_sin_block, x, out)


def _sin_block(x: F32, out: F32) -> None:
    sine, _ = sin_cos(x)
    out[...] = sine.astype(np.float32)
    out.view(np.uint32)[np.isnan(sine)] = CANONICAL_NAN
