"""Fixed inputs of the self-test, from Philox by integer operations alone, which a machine whose floating point is at
fault still makes right. They hold subnormal rows, rows of zeros and rows of every size: what flush-to-zero or a wrong
rounding would change.
"""

from __future__ import annotations

import functools

import numpy as np

from auditkit.numerics.arrays import F32
from auditkit.numerics.philox import philox

SEED = 2  # any number would do


@functools.cache
def floats(stream: int, *shape: int, low: int = -3, high: int = 1) -> F32:
    """Random signs and mantissas, exponents even between 2^low and 2^high; below 2^-126 the values are subnormal."""
    words = philox(SEED, stream, 0, -(-int(np.prod(shape)) // 2)).reshape(-1, 2)[: int(np.prod(shape))]
    exponent = low + (words[:, 1] % np.uint32(high - low + 1)).astype(np.int64)
    mantissa = (words[:, 0] & np.uint32(0x7FFFFF)).astype(np.int64)
    subnormal = (mantissa | 0x800000) >> np.clip(-126 - exponent, 0, 24)
    pattern = np.where(exponent < -126, subnormal, (exponent + 127 << 23) | mantissa)
    signed = pattern.astype(np.uint32) | (words[:, 0] & np.uint32(0x80000000))
    values: F32 = signed.view(np.float32).reshape(shape)
    values.flags.writeable = False
    return values


@functools.cache
def rows(width: int) -> F32:
    """Rows (8, width): two usual ones, subnormal, every exponent, large, zeros of either sign, all equal."""
    made = np.empty((8, width), np.float32)
    made[:2] = floats(1, 2, width)
    made[2] = floats(2, width, low=-149, high=-127)
    made[3] = floats(3, width, low=-149, high=20)
    made[4] = floats(4, width, low=50, high=62)
    made[5], made[6], made[7] = 0.0, -0.0, 0.7
    made.flags.writeable = False
    return made


@functools.cache
def attention_inputs() -> tuple[F32, F32, F32, F32]:
    """q, k, v, dout: four query heads over two key heads; value and gradient rows of very different size."""
    q, k = floats(17, 2, 4, 9, 6), floats(18, 2, 2, 9, 6)
    v, dout = floats(19, 2, 2, 9, 6).copy(), floats(20, 2, 4, 9, 6).copy()
    v[0, 0] = floats(21, 9, 6, low=-149, high=-100)
    v[0, 1, 2:5] = floats(22, 3, 6, low=60, high=80)
    v[1, 0, 4] = 0.0
    dout[0, 1] = floats(23, 9, 6, low=-149, high=-80)
    return q, k, v, dout
