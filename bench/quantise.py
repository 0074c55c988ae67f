"""Operands of exact dots on a CUDA card: bytes a second that rows, columns and both at once move, next to a copy; and
ops whose results are operands, made in one and one after the other.

    python -m bench.quantise [--held N]

Counted are the bytes that have to move: x is read once for rows, and twice for columns, whose exponents must be known
before the first of their integers. --held: the most cells that a thread holds of a row, a power of two up to 8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from auditkit.kernels import layout, operands, product, quantise, rms_norm, swiglu
from auditkit.kernels.device import Device
from auditkit.kernels.exact_dot_planes import PLANES
from bench.row_kernels import copy_case, normals, rate
from bench.rows import Row

TOKENS = 16_384
WIDTH, INNER = 2048, 5632
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
        found += made_rows(device, status, copy)
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


def made_rows(device: Device, status: Any, copy: float) -> Iterator[Row]:
    """Fused ops of 14 bits by the bytes that they move, and their parts one after the other by theirs."""
    x, weight = normals(device, TOKENS, WIDTH), normals(device, WIDTH)
    gate, up, dy = (normals(device, TOKENS, INNER) for _ in range(3))
    heads = normals(device, TOKENS, WIDTH).reshape(-1, WIDTH // 128, 4096, 128)
    eps, on, bits = np.float32(1e-5), (device, status), 14
    cache = swiglu.SwigluCache(gate, up)

    def norm_parts() -> Any:
        return product.quantise_keep(*on, rms_norm.rms_norm_forward(device, x, weight, eps)[0], bits)

    def heads_parts() -> Any:
        return product.quantise_both(*on, layout.merge_heads(device, heads), bits)

    def forward_parts() -> Any:
        return product.quantise_keep(*on, swiglu.swiglu_forward(device, gate, up)[0], bits)

    def backward_parts() -> Any:
        return [product.quantise_both(*on, made, bits) for made in swiglu.swiglu_backward(device, dy, cache)]

    cases: dict[str, tuple[int, int, Callable[[], Any]]] = {
        "rms_norm_keep": (14, x.size, partial(operands.rms_norm_keep, *on, x, weight, eps, bits)),
        "its parts": (8 + 14, x.size, norm_parts),
        "merge_heads_both": (14, heads.size, partial(operands.merge_heads_both, *on, heads, bits)),
        "merge_heads and quantise_both": (8 + 14, heads.size, heads_parts),
        "swiglu_keep": (12 + 10, gate.size, partial(operands.swiglu_keep, *on, gate, up, bits)),
        "its two parts": (12 + 14, gate.size, forward_parts),
        "swiglu_backward_both": (20 + 20, gate.size, partial(operands.swiglu_backward_both, *on, dy, cache, bits)),
        "its three parts": (20 + 28, gate.size, backward_parts),
    }
    for name, (moved, size, call) in cases.items():
        reached = rate(device, moved * size, call)
        note = f"{reached / copy:.0%} of a copy, {moved * size / reached / 1e3:.0f} us"
        yield Row(f"{name} fx14 {TOKENS},{size // TOKENS}", reached, "GB/s", note)


if __name__ == "__main__":
    if "--held" in sys.argv:
        most = int(sys.argv[sys.argv.index("--held") + 1])
        quantise.HELD = quantise.HELD[: quantise.HELD.index(most) + 1]
    for row in rows():
        print(f"{row.name:40} {row.value:8.0f} {row.unit}  {row.note}")
