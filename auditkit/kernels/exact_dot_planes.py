"""Digit planes of fixed-point rows on the device (cuda/exact_dot_planes.cuh), and the parts that a dot reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for

PIECE = 64  # a row of planes is padded with zeros to this many bytes, or to a multiple of twice as many
PLANES = {14: 3, 21: 6}

_BLOCK_ROWS = 64  # planes lie in blocks of so many rows
_STEP = 2 * PIECE  # where a range of K may begin
_ALL = slice(None)


def padded_length(length: int) -> int:
    """`length` rounded up to one piece or to pairs of pieces; an empty row is a row of zeros."""
    return PIECE if length <= PIECE else blocks_for(length, _STEP) * _STEP


def plane_bytes(bits: int, batch: int, rows: int, padded: int) -> int:
    """Bytes of the digit planes of `batch` matrices of `rows` rows, and of a block of rows that is read beyond."""
    return (PLANES[bits] * batch * blocks_for(rows, _BLOCK_ROWS) + 1) * _BLOCK_ROWS * padded


def shaped_planes(memory: Array, bits: int, batch: int, rows: int, padded: int) -> Array:
    """The planes in `memory`, int8, of at least plane_bytes."""
    count, lines = PLANES[bits], batch * blocks_for(rows, _BLOCK_ROWS) * _BLOCK_ROWS
    return memory[: count * lines * padded].reshape((count, lines, padded))


def planes_memory(device: Device, bits: int, batch: int, rows: int, padded: int) -> Array:
    """Memory, int8, for the digit planes of `batch` matrices of `rows` rows, readable for a block of rows beyond."""
    return device.empty((plane_bytes(bits, batch, rows, padded),), np.int8)


def empty_planes(device: Device, bits: int, batch: int, rows: int, padded: int) -> Array:
    """The planes in memory of their own (`planes_memory`)."""
    return shaped_planes(planes_memory(device, bits, batch, rows, padded), bits, batch, rows, padded)


@dataclass(frozen=True)
class Operand:
    """Rows in fixed point that a dot reads where they lie: all of some DeviceRows, or a part.

    planes     int8, flat, from the part's first byte on
    exponents  int32, flat, from the part's first row on
    plane, matrix, block   bytes from one plane, matrix of the batch, block of 64 rows to the next
    heights    exponents from one matrix to the next
    share      consecutive matrices of the batch that are one in memory
    """

    planes: Array
    exponents: Array
    bits: int
    batch: int
    rows: int
    length: int
    plane: int
    matrix: int
    block: int
    heights: int
    share: int = 1

    @cached_property
    def padded(self) -> int:
        """Bytes that are read of a row of one plane."""
        return padded_length(self.length)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What a kernel takes: OPERAND of cuda/exact_dot_operand.cuh."""
        strides = (np.int64(size) for size in (self.plane, self.matrix, self.block, self.heights))
        return self.planes, self.exponents, *strides, np.int32(self.share)

    def part(self, *, batches: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> Operand:
        """Some of the matrices, rows and elements of K of these, without a copy; exponents are those of whole rows.

        Rows begin at a multiple of 64; columns begin at a multiple of 128 and end at one or with the row; matrices
        begin and end at multiples of `share`. Raises ValueError for others.
        """
        first, matrices = _range(batches, self.batch, self.share, self.share)
        row, height = _range(rows, self.rows, _BLOCK_ROWS, 1)
        column, length = _range(columns, self.length, _STEP, _STEP)
        of = first // self.share
        return replace(
            self,
            planes=self.planes[of * self.matrix + row // _BLOCK_ROWS * self.block + column * _BLOCK_ROWS :],
            exponents=self.exponents[of * self.heights + row :],
            batch=matrices,
            rows=height,
            length=length,
        )

    def ranges(self, count: int) -> Operand:
        """Equal ranges of K of one matrix, multiples of 128, as matrices of a batch."""
        length = self.padded // count
        return replace(self, batch=count, length=length, matrix=length * _BLOCK_ROWS, heights=0, share=1)

    def shared(self, share: int) -> Operand:
        """Each matrix `share` times, one after the other: several query heads may read one key head."""
        return replace(self, batch=self.batch * share, share=self.share * share)


@dataclass(frozen=True)
class DeviceRows:
    """Rows in fixed point on the device.

    planes     int8 (PLANES[bits], batch * rows rounded up to whole blocks, padded), zero beyond `length` elements of
               each row; in blocks, not row by row (cuda/exact_dot_planes.cuh)
    exponents  int32 (batch * rows,)
    memory     int8, flat, whose beginning the planes are, if it is of `planes_memory`
    """

    planes: Array
    exponents: Array
    bits: int
    batch: int
    rows: int
    length: int
    memory: Array | None = None

    @classmethod
    def of(cls, memory: Array, exponents: Array, bits: int, batch: int, rows: int, length: int) -> DeviceRows:
        """Rows in memory of `planes_memory`."""
        planes = shaped_planes(memory, bits, batch, rows, padded_length(length))
        return cls(planes, exponents, bits, batch, rows, length, memory)

    @cached_property
    def padded(self) -> int:
        """Bytes of a row of one plane."""
        return int(self.planes.shape[2])

    @cached_property
    def operand(self) -> Operand:
        """All of these rows for a dot."""
        block = _BLOCK_ROWS * self.padded
        matrix = blocks_for(self.rows, _BLOCK_ROWS) * block
        return Operand(
            self.planes.reshape((-1,)), self.exponents, self.bits, self.batch, self.rows, self.length,
            self.batch * matrix, matrix, block, self.rows,
        )  # fmt: skip

    def part(self, *, batches: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> Operand:
        """Operand.part of all of them."""
        return self.operand.part(batches=batches, rows=rows, columns=columns)

    def shared(self, share: int) -> Operand:
        """Operand.shared of all of them."""
        return self.operand.shared(share)


def _range(part: slice, size: int, begin: int, end: int) -> tuple[int, int]:
    """Where a slice of `size` things begins and how many it has; its ends at multiples, or the last with the things."""
    first, stop, step = part.indices(size)
    stop = max(first, stop)
    if step != 1 or first % begin or (stop % end and stop != size):
        raise ValueError(f"{part} of {size} does not begin at a multiple of {begin} and end at one of {end}")
    return first, stop - first
