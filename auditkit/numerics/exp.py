"""e^x in binary32 (SPEC.md section 6.2): within 1 ulp over the whole range, gradual underflow, exp(+-0) = 1.

x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial; times 2^n. The hottest elementwise op (softmax, SiLU), so the
passes over memory are counted: 23 for a block whose results are all normal, 26 where some are subnormal or 0.
"""

from __future__ import annotations

import threading

import numpy as np

from auditkit.numerics.arrays import F32, I32
from auditkit.numerics.elementwise import BLOCK, CANONICAL_NAN, apply_blocks, f32

# 0-d arrays: NumPy passes them to a ufunc without the cost of wrapping a scalar.
LOG2E = np.array(f32(0x3FB8AA3B))  # 1/ln 2
MAGIC = np.array(f32(0x4B400000))  # 1.5 * 2^23: adding it rounds to an integer, ties to even, kept in the low bits
LN2_HI = np.array(f32(0x3F317200))  # 15 significant bits, so n * LN2_HI is exact for |n| < 2^9
LN2_LO = np.array(f32(0x35BFBE8E))  # ln 2 - LN2_HI
# e^r = 1 + r + r^2 (C2 + C3 r + ... + C6 r^4): minimax in ulp over |r| <= 0.3476, see the specification
C2 = np.array(f32(0x3EFFFFFD))
C3 = np.array(f32(0x3E2AAA48))
C4 = np.array(f32(0x3D2AACFE))
C5 = np.array(f32(0x3C091D90))
C6 = np.array(f32(0x3AB4C11B))
ONE = np.array(f32(0x3F800000))
LOWEST = np.array(f32(0xC2D20000))  # -105: everything below gives 0 as well
HIGHEST = np.array(f32(0x42B20000))  # 89: everything above gives inf as well
SHIFT = np.array(23, np.int32)

_LARGEST_FINITE = 0x42B17217  # bits of 88.72283: the largest x whose result is finite
_SMALLEST_NORMAL = 0xC2AEAC4F  # bits of -87.33654: the smallest x whose result is normal
_LARGEST_LIFTED = 0x42300000  # bits of 44: up to here 2^64 e^x is finite
_MINUS_INF = 0xFF800000
_LIFT = np.array(64 << 23, np.int32)  # added to the bits of a number: times 2^64
_UNLIFT = np.array(f32(0x1F800000))  # 2^-64


class _Scratch(threading.local):
    """Four temporaries of one block for each thread: fresh pages at every call would cost as much as the sums."""

    def __init__(self) -> None:
        self.clamped = np.empty(BLOCK, np.float32)
        self.rounded = np.empty(BLOCK, np.float32)
        self.reduced = np.empty(BLOCK, np.float32)
        self.power = np.empty(BLOCK, np.float32)


_scratch = _Scratch()


def exp(x: F32, out: F32 | None = None) -> F32:
    """e^x, elementwise.

    x: float32, any shape and strides, not changed unless out is x. out: float32 of the same shape, or None.
    Returns float32 of x's shape: inf above 88.72283, 0 below -103.97208, NaN 0x7fc00000 for a NaN.
    """
    return apply_blocks(_exp_block, x, out)


def _exp_block(x: F32, out: F32) -> None:
    """Choose the cheapest of three ways to scale by 2^n; they give the same bits where more than one applies.

    Extremes are taken over the words: an integer maximum is one cheap pass and lets no NaN slip through.
    """
    largest = x.view(np.int32).max()  # of the numbers above zero
    smallest = x.view(np.uint32).max()  # of the numbers below zero, whose words grow as they fall
    if largest <= _LARGEST_FINITE and smallest <= _SMALLEST_NORMAL:
        _scale_normal(_polynomial(x), out)
    elif largest <= _LARGEST_LIFTED and smallest <= _MINUS_INF:
        _scale_lifted(_polynomial(np.maximum(x, LOWEST, out=_scratch.clamped[: x.size])), out)
    else:
        is_nan = np.isnan(x)
        clamped = np.maximum(x, LOWEST, out=_scratch.clamped[: x.size])
        _scale_any(_polynomial(np.minimum(clamped, HIGHEST, out=clamped)), out)
        out.view(np.uint32)[is_nan] = CANONICAL_NAN


def _polynomial(x: F32) -> F32:
    """Leave e^r in the thread's `power` and return n + MAGIC; x must lie in [-105, 89]."""
    t, r, p = (a[: x.size] for a in (_scratch.rounded, _scratch.reduced, _scratch.power))
    np.multiply(x, LOG2E, out=t)
    np.add(t, MAGIC, out=t)
    np.subtract(t, MAGIC, out=r)  # n
    np.multiply(r, LN2_HI, out=p)
    np.subtract(x, p, out=p)
    np.multiply(r, LN2_LO, out=r)
    np.subtract(p, r, out=r)  # r = (x - n LN2_HI) - n LN2_LO
    np.multiply(r, C6, out=p)
    np.add(p, C5, out=p)
    for c in (C4, C3, C2):
        np.multiply(p, r, out=p)
        np.add(p, c, out=p)
    np.multiply(p, r, out=p)
    np.multiply(p, r, out=p)
    np.add(p, r, out=p)
    np.add(p, ONE, out=p)  # ((q r) r + r) + 1: r enters late, which costs half the error of 1 + r (1 + r q)
    return t


def _scale_normal(shifted: F32, out: F32) -> None:
    """out = power 2^n where every result is normal: n joins the exponent field. shifted (n + MAGIC) is overwritten."""
    bits = shifted.view(np.int32)
    np.left_shift(bits, SHIFT, out=bits)  # the bits of MAGIC leave at the top: n 2^23 is left
    np.add(bits, _scratch.power[: bits.size].view(np.int32), out=out.view(np.int32))


def _scale_lifted(shifted: F32, out: F32) -> None:
    """out = (power 2^(n + 64)) 2^-64 for n <= 63: the first is exact, the second rounds once, into the subnormals."""
    bits = shifted.view(np.int32)
    np.left_shift(bits, SHIFT, out=bits)
    np.add(bits, _scratch.power[: bits.size].view(np.int32), out=bits)
    np.add(bits, _LIFT, out=bits)
    np.multiply(shifted, _UNLIFT, out=out)


def _scale_any(shifted: F32, out: F32) -> None:
    """out = (power 2^h) 2^(n - h), h = floor(n / 2): the first product is exact, only the last rounds or overflows."""
    n = shifted.view(np.int32) - MAGIC.view(np.int32)
    h = n >> np.int32(1)
    power = _scratch.power[: n.size]
    np.multiply(power, _power_of_two(h), out=power)
    np.multiply(power, _power_of_two(n - h), out=out)


def _power_of_two(n: I32) -> F32:
    """2^n for -126 <= n <= 127, by its bits; other n, which only a NaN brings, give any value."""
    return ((n + np.int32(127)) << SHIFT).view(np.float32)
