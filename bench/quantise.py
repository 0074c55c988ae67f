"""Operands of exact dots on a CUDA card: bytes a second that rows, columns and both at once move, next to a copy.

    python -m bench.quantise [--held N]

Counted are the bytes that have to move: x is read once for rows, and twice for columns, whose exponents must be known
before the first of their integers. --held: the most cells that a thread holds of a row, a power of two up to 8.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from auditkit.kernels import quantise
from auditkit.kernels.device import Device
from auditkit.kernels.exact_dot_planes import PLANES
from bench.row_kernels import copy_case, normals, rate
from bench.rows import Row

SHAPES = ((16_384, 2048), (16_384, 5632), (2048, 2048), (11_264, 2048), (16_385, 2047), (4096, 32_768), (2048, 128_256))
BAR = 0.8  # of the bandwidth of a copy


def rows() -> list[Row]:
    """Measure every shape."""
    device = Device()
    with device.use():
        copy = rate(device, *copy_case(device))
        status = device.zeros((1,), np.uint32)
        found = [Row("copy on the device", copy, "GB/s")]
        for shape in SHAPES:
            found += shape_rows(device, status, copy, *shape)
            device.pool.free_all_blocks()
    return found


def shape_rows(device: Device, status: Any, copy: float, m: int, k: int) -> Iterator[Row]:
    """Both precisions at one shape."""
    x = normals(device, m, k)
    for bits, planes in PLANES.items():
        long = k > quantise.longest_row()
        cases = {
            "rows": (quantise.quantise, planes + (8 if long else 4)),
            "columns": (quantise.quantise_t, planes + 8),
            "both": (quantise.quantise_both, 2 * planes + 8),
        }
        for name, (op, moved) in cases.items():
            reached = rate(device, moved * m * k, partial(op, device, status, x, bits))
            share = reached / copy
            note = f"{share:.0%} of a copy, {moved * m * k / reached / 1e3:.0f} us"
            yield Row(f"{name} fx{bits} {m},{k}", reached, "GB/s", note, f"{BAR:.0%} of a copy", share >= BAR)


if __name__ == "__main__":
    if "--held" in sys.argv:
        most = int(sys.argv[sys.argv.index("--held") + 1])
        quantise.HELD = tuple(held for held in quantise.HELD if held <= most)
    for row in rows():
        print(f"{row.name:40} {row.value:8.0f} {row.unit}  {row.note}")
