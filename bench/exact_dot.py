"""Exact dots on a CUDA card: useful TFLOP/s of each kernel next to torch's float32 and bfloat16 in the same run.

    python -m bench.exact_dot [--quick] [--wgmma]

Rates count 2 M N K once, whatever the number of planes. All kernels must give the same bits, and one corner of the
result those of the kernel without tensor cores. The card is left idle before each measurement: in steady state its
power limit, not the kernel, decides.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from auditkit.kernels import exact_dot, exact_dot_sm90
from auditkit.kernels.device import Device
from auditkit.kernels.exact_dot_choice import compiled
from bench.rows import Row

SHAPES = (
    (8192, 8192, 8192),
    (16384, 2048, 2048),
    (16384, 11264, 2048),
    (2048, 5632, 16384),
    (16384, 2048, 5632),
)
KERNELS = ("large128", "large64", "small")
WGMMA = {14: ("wgmma_short", "wgmma_long", "wgmma_wide"), 21: ("wgmma_wide",)}  # with --wgmma, on sm_90
LONGEST = {name: kernel.longest for name, kernel in exact_dot_sm90.KERNELS.items()}
BAR = 4.0  # times torch's float32
CORNER = 128  # rows and columns that `plain` computes again
REST = 0.3  # seconds
REPEATS = 5
BUSY_BYTES, BUSY = 1 << 30, 16  # cleared so often before what is measured: some milliseconds
SUSTAINED = 250.0  # milliseconds, twice


def rows(shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> list[Row]:
    """Measure every kernel at every shape."""
    device = Device()
    found: list[Row] = []
    stream = torch.cuda.ExternalStream(device.stream.ptr)  # one stream, so that one clock measures both
    with device.use(), torch.cuda.stream(stream):
        for shape in shapes:
            found += shape_rows(device, *shape)
            device.pool.free_all_blocks()
            torch.cuda.empty_cache()
    return found


def shape_rows(device: Device, m: int, n: int, k: int) -> Iterator[Row]:
    """All measurements of one shape."""
    flops = 2 * m * n * k
    rng = torch.Generator("cuda").manual_seed(1)
    x, w = (torch.randn((size, k), generator=rng, device="cuda") for size in (m, n))
    where = f" {m},{n},{k}"
    torch.backends.cuda.matmul.allow_tf32 = False
    plain = flops / fastest(device, partial(torch.matmul, x, w.T)) / 1e9
    yield Row("torch float32" + where, plain, "TFLOP/s")
    half = partial(torch.matmul, x.bfloat16(), w.bfloat16().T)
    yield Row("torch bfloat16" + where, flops / fastest(device, half) / 1e9, "TFLOP/s")
    del half
    status = device.zeros((1,), np.uint32)
    xs, ws = device.cupy.asarray(x), device.cupy.asarray(w)
    for bits in (14, 21):
        yield from dot_rows(device, status, xs, ws, bits, where, plain)
    for name, call, made in (
        ("quantise", exact_dot.quantise, 3),
        ("quantise_t", exact_dot.quantise_t, 3),
        ("quantise_both", exact_dot.quantise_both, 6),
    ):
        milliseconds = fastest(device, partial(call, device, status, xs, 14))
        yield Row(f"{name} fx14 {m},{k}", (4 + made) * m * k / milliseconds / 1e6, "GB/s")  # x counted once


def dot_rows(device: Device, status: Any, xs: Any, ws: Any, bits: int, where: str, plain: float) -> Iterator[Row]:
    """The kernels of one precision."""
    flops = 2 * xs.shape[0] * ws.shape[0] * xs.shape[1]
    a, b = (exact_dot.quantise(device, status, operand, bits) for operand in (xs, ws))
    corner = [exact_dot.quantise(device, status, operand[:CORNER], bits) for operand in (xs, ws)]
    want = exact_dot.dot(device, *corner, kernel="plain")
    first = None
    wide = [name for name in WGMMA[bits] if "--wgmma" in sys.argv and a.padded <= LONGEST[name].get(bits, 0)]
    there = [name for name in KERNELS if name in compiled(device.architecture, bits)]
    for kernel in (*there, *wide):
        c = exact_dot.dot(device, a, b, kernel=kernel)
        same = same_bits(device, c[:CORNER, :CORNER], want) and (first is None or same_bits(device, c, first))
        first = c if first is None else first
        del c
        reached = flops / fastest(device, partial(exact_dot.dot, device, a, b, kernel=kernel)) / 1e9
        note = f"{reached / plain:.2f} of float32" + ("" if same else ", WRONG BITS")
        yield Row(
            f"fx{bits} {kernel}{where}", reached, "TFLOP/s", note, f"{BAR} x float32", same and reached >= BAR * plain
        )


def same_bits(device: Device, a: Any, b: Any) -> bool:
    """Whether two arrays hold the same words."""
    words = [device.cupy.ascontiguousarray(x).view(np.uint32) for x in (a, b)]
    return bool((words[0] == words[1]).all())


def fastest(device: Device, call: Callable[[], Any]) -> float:
    """Milliseconds of the fastest of some calls, after a rest and one that warms up.

    The card is busy until all are launched, as it is in a step: else a call of several short kernels would take as long
    as Python needs to launch them.
    """
    call()
    before = device.empty((BUSY_BYTES,), np.uint8)
    device.synchronize()
    time.sleep(REST)
    events = [device.cupy.cuda.Event() for _ in range(REPEATS + 1)]
    for _ in range(BUSY):
        device.clear(before)
    for event in events[:-1]:
        event.record()
        call()
    events[-1].record()
    events[-1].synchronize()
    elapsed = device.cupy.cuda.get_elapsed_time
    return float(min(elapsed(a, b) for a, b in zip(events, events[1:], strict=False)))


def sustained(device: Device, call: Callable[[], Any]) -> float:
    """Milliseconds of a call in a row of them that lasts long enough for the card's power limit to decide."""
    once = fastest(device, call)
    begin, end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
    count = max(1, int(SUSTAINED / once))
    for _ in range(count):
        call()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(device.cupy.cuda.get_elapsed_time(begin, end)) / count


if __name__ == "__main__":
    for row in rows(SHAPES[:2] if "--quick" in sys.argv else SHAPES):
        print(f"{row.name:40} {row.value:8.1f} {row.unit}  {row.note}")
