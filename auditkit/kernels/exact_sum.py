"""Fixed point, exact sums and back on the device (cuda/exact_sum.cu); SPEC.md section 4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import launch_quads
from auditkit.kernels.tensor_table import BLOCK, TensorTable

SUM_BITS = 62  # a sum lies in [-2^62, 2^62)
_THREADS = 2048  # for each multiprocessor: a block looks at many tiles before it tells what it found


def small_term(terms: int) -> int:
    """2^62 / terms or less, a power of two: terms below it need no check when `terms` of them are added."""
    return 1 << (SUM_BITS - max(0, terms - 1).bit_length())


def to_fixed(
    device: Device, status: Array, x: Array, unit: int, *, total: Array | None = None, block: int | None = None
) -> Array:
    """rint(x * 2^unit) elementwise: float32 -> int64 of the same shape.

    total: an int64 array of that shape, to which the terms are added in place; it is then the result. A term that is
    not finite or reaches 2^62 in size sets bit 0 of `status`, a sum out of range bit 1.
    """
    made = device.empty(x.shape, np.int64) if total is None else total
    kernel = "to_fixed" if total is None else "add_fixed"
    launch_quads(device, "exact_sum", kernel, x.size, (x, made, status, np.float32(2.0**unit)), block)
    return made


def from_fixed(
    device: Device, status: Array, sums: Sequence[Array], unit: int, *, block: int | None = None
) -> list[Array]:
    """sum * 2^-unit rounded once to binary32, for each int64 array: float32 arrays of the same shapes, one launch.

    A sum outside [-2^62, 2^62) sets bit 1 of `status`.
    """
    rounded = [device.empty(array.shape, np.float32) for array in sums]
    table = TensorTable.of(device, sums, rounded)
    table.launch(device, "exact_sum", "from_fixed", (status, np.float32(2.0**-unit)), block=block)
    return rounded


def add_sums(
    device: Device,
    status: Array,
    totals: Sequence[Array],
    terms: Sequence[Array],
    *,
    out: Sequence[Array] | None = None,
    block: int | None = None,
) -> list[Array]:
    """totals + terms elementwise for each pair of int64 arrays, in one launch.

    out: where the sums go, e.g. totals; new arrays by default. An operand or a sum outside [-2^62, 2^62) sets bit 1 of
    `status`.
    """
    sums = list(out) if out is not None else [device.empty(array.shape, np.int64) for array in totals]
    TensorTable.of(device, totals, terms, sums).launch(device, "exact_sum", "add_sums", (status,), block=block)
    return sums


def largest(device: Device, sums: Sequence[Array], *, block: int | None = None, blocks: int | None = None) -> Array:
    """max |element| over all int64 arrays, in one launch -> uint64 (1,), 0 for no elements."""
    found = device.zeros((1,), np.uint64)
    most = blocks or device.multiprocessors * (_THREADS // (block or BLOCK))
    TensorTable.of(device, sums).launch(device, "exact_sum", "largest", (found,), block=block, blocks=most)
    return found
