"""Exact fx14 products in C on int16 rows; rows of other widths are rounded in C for the reference's products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from auditkit.native.library import Library
from auditkit.native.threads import pool, product_threads
from auditkit.numerics import f32_dot, product
from auditkit.numerics.arrays import F32, I32, IntArray
from auditkit.numerics.exact_dot import Rows, row_integers
from auditkit.numerics.exact_dot import dot as exact_dot

BITS = 14
_LANES = 16  # rows are padded to a multiple of so many elements
_LATER_ELEMENTS = 1 << 21  # of a weight that are held as integers at a time
_LATER_ROWS = 64
TOO_LONG = 1 << 25  # elements of a row from which on sums may leave what source/dot.h makes binary64 of
_FOR_THREADS = 1 << 26  # multiplications that pay for handing parts to threads


@dataclass(frozen=True)
class NativeRows:
    """Rows rounded to 14-bit fixed point: values (M, padded K) int16, zeros at the end; exponents (M,) int32."""

    values: IntArray
    exponents: I32
    bits: ClassVar[int] = BITS


@dataclass(frozen=True)
class NativeLaterRows:
    """Operand whose rows are rounded when needed, as product.LaterRows: weight (N, K), or (K, N) with `columns`."""

    weight: F32
    bits: int
    columns: bool


def padded(length: int) -> int:
    """Elements of a row of integers."""
    return -(-length // _LANES) * _LANES


class Products:
    """Quantisation and products of one library."""

    OPS = (
        "quantise", "quantise_t", "quantise_both", "quantise_keep", "kept_columns", "weight_rows", "weight_rows_t",
        "dot",
    )  # fmt: skip

    def __init__(self, library: Library) -> None:
        self._library = library

    def quantise(self, x: F32, bits: int) -> Any:
        """As product.quantise."""
        if _is_left(x, bits, -1):
            return product.quantise(x, bits)
        x = _rows_in_order(x)
        rows, length = x.shape
        if bits != BITS:
            wide = Rows(np.empty(x.shape), np.empty(rows, np.int32), bits)
            self._library.call("quantise_wide", x, rows, length, x.strides[0] // 4, bits, wide.values, wide.exponents)
            return wide
        made = NativeRows(np.empty((rows, padded(length)), np.int16), np.empty(rows, np.int32))
        self._library.call("quantise", x, rows, length, x.strides[0] // 4, made.values, made.exponents)
        return made

    def quantise_t(self, x: F32, bits: int) -> Any:
        """As product.quantise_t."""
        if _is_left(x, bits, 0):
            return product.quantise_t(x, bits)
        x = _rows_in_order(x)
        rows, length = x.shape
        if bits != BITS:
            values, exponents, room = np.empty(x.shape), np.empty(length, np.int32), np.empty(2 * (length + 8))
            self._library.call("quantise_wide_t", x, rows, length, x.strides[0] // 4, bits, values, exponents, room)
            return Rows(values.T, exponents, bits)
        made = NativeRows(np.empty((length, padded(rows)), np.int16), np.empty(length, np.int32))
        work = np.empty(2 * (length + 8), np.float32)
        self._library.call("quantise_t", x, rows, length, x.strides[0] // 4, made.values, made.exponents, work)
        return made

    def quantise_both(self, x: F32, bits: int) -> tuple[Any, Any]:
        """As product.quantise_both; rows of 14 bits are so small that both are made at once."""
        if bits == BITS:
            return self.quantise(x, bits), self.quantise_t(x, bits)
        return self.weight_rows(x, bits), self.weight_rows_t(x, bits)

    def quantise_keep(self, x: F32, bits: int) -> tuple[Any, F32]:
        """As product.quantise_keep."""
        return self.quantise(x, bits), x

    def kept_columns(self, kept: F32, bits: int) -> Any:
        """As product.kept_columns."""
        return self.quantise_t(kept, bits)

    def weight_rows(self, weight: F32, bits: int) -> Any:
        """As product.weight_rows."""
        return product.weight_rows(weight, bits) if bits == f32_dot.BITS else NativeLaterRows(weight, bits, False)

    def weight_rows_t(self, weight: F32, bits: int) -> Any:
        """As product.weight_rows_t."""
        return product.weight_rows_t(weight, bits) if bits == f32_dot.BITS else NativeLaterRows(weight, bits, True)

    def dot(self, a: Any, b: Any) -> F32:
        """As product.dot."""
        if isinstance(a, NativeLaterRows):
            a = (self.quantise_t if a.columns else self.quantise)(a.weight, a.bits)
        if isinstance(b, NativeLaterRows):
            return self._later_dot(a, b)
        if not isinstance(a, NativeRows):
            return product.dot(a, b)
        out: F32 = np.empty((len(a.exponents), len(b.exponents)), np.float32)
        self._dot(a, b, out)
        return out

    def _dot(self, a: NativeRows, b: NativeRows, out: F32) -> None:
        """Into out (M, N), whose rows may lie further apart; rows of a are handed to threads where that pays."""
        threads = product_threads() if out.size * a.values.shape[1] >= _FOR_THREADS else 1
        if threads == 1:
            self._rows_dot(a, b, out)
            return
        size = -(-len(out) // threads)
        parts = [slice(start, start + size) for start in range(0, len(out), size)]
        cut = [NativeRows(a.values[at], a.exponents[at]) for at in parts]
        list(pool(threads).map(self._rows_dot, cut, [b] * len(parts), [out[at] for at in parts]))

    def _rows_dot(self, a: NativeRows, b: NativeRows, out: F32) -> None:
        m, n = out.shape
        work = np.empty(3 * (m + n + 8))
        operands = (a.values, a.exponents, m, b.values, b.exponents, n, a.values.shape[1])
        self._library.call("dot", *operands, out, out.strides[0] // 4, work)

    def _later_dot(self, a: Any, b: NativeLaterRows) -> F32:
        count, depth = b.weight.shape[:: -1 if b.columns else 1]
        out: F32 = np.empty((len(a.exponents), count), np.float32)
        size = max(_LATER_ROWS, _LATER_ELEMENTS // max(1, depth))
        integers = None if isinstance(a, NativeRows) else row_integers(a)
        for at in range(0, count, size):
            part = slice(at, at + size)
            rows = self.quantise_t(b.weight[:, part], b.bits) if b.columns else self.quantise(b.weight[part], b.bits)
            if isinstance(a, NativeRows):
                self._dot(a, rows, out[:, part])
            else:
                out[:, part] = exact_dot(a, rows, integers)
        return out


def _is_left(x: F32, bits: int, axis: int) -> bool:
    """Whether rows of x, or with axis 0 its columns, are left to the reference."""
    return bits == f32_dot.BITS or x.ndim != 2 or x.size == 0 or (bits == BITS and x.shape[axis] >= TOO_LONG)


def _rows_in_order(x: F32) -> F32:
    """x itself if the elements of a row are neighbours, else a copy."""
    return x if x.strides[1] == 4 and x.strides[0] % 4 == 0 and x.dtype == np.float32 else np.ascontiguousarray(x)
