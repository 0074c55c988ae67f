"""Philox4x32-10: random words as a pure function of (seed, stream, block) (SPEC.md section 6.6).

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011; constants as in Random123.
"""

from __future__ import annotations

import numpy as np

from auditkit.errors import UsageError
from auditkit.numerics.elementwise import U32, U64

ROUNDS = 10
MULTIPLIER_0 = np.uint64(0xD2511F53)
MULTIPLIER_1 = np.uint64(0xCD9E8D57)
WEYL_0 = 0x9E3779B9  # golden ratio: what the first key word grows by from round to round
WEYL_1 = 0xBB67AE85  # sqrt 3 - 1: the same for the second

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: U32, key: tuple[int, int]) -> U32:
    """Ten rounds over counters (n, 4) uint32 with two 32-bit key words -> (n, 4) uint32. counter is not changed."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0 = c0 * MULTIPLIER_0
        product_1 = c2 * MULTIPLIER_1
        c0, c1 = (product_1 >> _HALF) ^ c1 ^ np.uint64(k0), product_1 & _LOW
        c2, c3 = (product_0 >> _HALF) ^ c3 ^ np.uint64(k1), product_0 & _LOW
        k0, k1 = (k0 + WEYL_0) & 0xFFFFFFFF, (k1 + WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def philox(seed: int, stream: int, start: int, count: int) -> U32:
    """Words of blocks start .. start + count - 1 of a stream -> (count, 4) uint32.

    Counter words: block low 32 bits, block high, stream low, stream high; key words: seed low, seed high.
    Raises UsageError unless seed, stream and every block lie in [0, 2^64).
    """
    for what, value in (("seed", seed), ("stream", stream), ("block", start), ("block", start + count)):
        if not 0 <= value < 1 << 64:
            raise UsageError(f"random numbers: {what} {value} is outside 0 .. 2^64 - 1")
    blocks: U64 = np.arange(count, dtype=np.uint64) + np.uint64(start)
    counter = np.empty((count, 4), np.uint32)
    counter[:, 0] = blocks & _LOW
    counter[:, 1] = blocks >> _HALF
    counter[:, 2] = stream & 0xFFFFFFFF
    counter[:, 3] = stream >> 32
    return philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
