"""Plain binary32 dot products in a fixed order (SPEC.md section 16), for a recipe whose product is f32.

    acc = +0;  for k = 0, 1, .., K-1:  acc = acc + a_k * b_k          product and sum each rounded to binary32

Every element of a product has its own accumulator, so the code runs over k once and over all elements of a block at
the same time: one multiplication and one addition of arrays for each k, never a library's sum or matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, ieee
from auditkit.numerics.nonfinite import NonFinite

BITS = 24  # the significand of binary32: what a recipe calls the bits of this product

_BLOCK = 32_768  # elements of a block of accumulators: with its products 256 KiB, which a core's L2 cache holds
_WIDEST = 4_096


@dataclass(frozen=True)
class F32Rows:
    """Operand of an f32 dot: `values` (..., M, K) float32, finite, unrounded; the array itself or a view of it."""

    values: F32


def rows(x: F32) -> F32Rows:
    """The rows of x (..., M, K) float32. Raises NonFinite."""
    if not np.isfinite(x).all():
        raise NonFinite("non-finite value in an operand of an f32 dot product")
    return F32Rows(x)


def rows_t(x: F32) -> F32Rows:
    """The rows of the transpose of x (..., M, K) float32: (..., K, M). Raises NonFinite."""
    return F32Rows(np.swapaxes(rows(x).values, -1, -2))


@ieee
def dot(a: F32Rows, b: F32Rows) -> F32:
    """Every row of a with every row of b: (..., M, K) x (..., N, K) -> (..., M, N) float32.

    K = 0 gives +0. A partial sum that overflows is infinite and may become NaN, as binary32 has it.
    """
    x, y = a.values, b.values
    if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:
        raise ValueError(f"operands of shapes {x.shape} and {y.shape}")  # a programming error, never data
    out: F32 = np.zeros((*x.shape[:-1], y.shape[-2]), np.float32)
    if out.size == 0 or x.shape[-1] == 0:
        return out
    flat = out.reshape(-1, *out.shape[-2:])
    left, right = _by_k(x, len(flat)), _by_k(y, len(flat))
    if flat.shape[-2] > flat.shape[-1]:  # NumPy's inner loop is over the last axis: let it be the longer one
        flat, left, right = flat.swapaxes(-1, -2), right, left
    for at in _blocks(*flat.shape):
        group, row, column = at
        flat[at] = _accumulate(left[:, group, row], right[:, group, column])
    return out


def _by_k(x: F32, batch: int) -> F32:
    """(..., M, K) -> (K, batch, M), contiguous: what one k multiplies lies together."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(batch, *x.shape[-2:]), -1, 0))


def _blocks(batch: int, rows_: int, columns: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices that cut (batch, rows, columns) into blocks; each element is computed alone, so no bit depends on them."""
    width = max(1, min(columns, _WIDEST))
    height = max(1, min(rows_, _BLOCK // width))
    depth = max(1, _BLOCK // (height * width))
    for b in range(0, batch, depth):
        for r in range(0, rows_, height):
            for c in range(0, columns, width):
                yield slice(b, b + depth), slice(r, r + height), slice(c, c + width)


def _accumulate(left: F32, right: F32) -> F32:
    """(K, g, r) x (K, g, c) -> (g, r, c), k ascending. A product does not depend on the order of its two factors."""
    total: F32 = np.zeros((*left.shape[1:], right.shape[-1]), np.float32)
    term = np.empty_like(total)
    for a, b in zip(left[..., :, None], right[..., None, :], strict=True):
        np.multiply(a, b, out=term)
        np.add(total, term, out=total)
    return total
