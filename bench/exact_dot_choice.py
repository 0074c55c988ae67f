"""Whether auditkit/kernels/exact_dot_choice.py chooses kernels and ranges of K well on a card.

    python -m bench.exact_dot_choice [--near X]

For each product: the ways that the model puts within X times its best (default 1.6), each with the same bits; what a
measurement finds, and what the model said, as a part of the chosen way's.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np

from auditkit.kernels import exact_dot
from auditkit.kernels.device import Device
from auditkit.kernels.exact_dot_choice import Size, Way, choose, cycles_of, ways
from bench.exact_dot import fastest, same_bits

# bits, batch, M, N, K: weight gradients with few tiles, short K, small models, heads of attention
PRODUCTS = (
    (14, 1, 512, 2048, 16384),
    (21, 1, 512, 2048, 16384),
    (14, 1, 2048, 2048, 16384),
    (14, 1, 2048, 5632, 16384),
    (14, 1, 16384, 512, 2048),
    (14, 1, 16384, 2048, 512),
    (14, 1, 256, 512, 8192),
    (14, 1, 512, 512, 512),
    (14, 1, 64, 64, 8192),
    (14, 1, 1024, 1024, 1024),
    (14, 64, 2048, 2048, 128),
    (14, 64, 2048, 128, 2048),
)


def measure(device: Device, size: Size, near: float) -> None:
    """Print all ways of one product."""
    status, rng = device.zeros((1,), np.uint32), device.cupy.random.default_rng(1)
    a, b = (
        exact_dot.quantise(
            device, status, rng.standard_normal((size.batch, rows, size.padded), dtype=np.float32), size.bits
        )
        for rows in (size.rows, size.columns)
    )
    card = device.architecture, device.multiprocessors
    chosen, flops = choose(*card, size), 2 * size.batch * size.rows * size.columns * size.padded
    model: dict[Way, float] = {way: cycles_of(card[1], size, way) for way in ways(card[0], size)}
    considered = sorted((way for way in model if model[way] <= near * model[chosen]), key=model.__getitem__)
    want: Any = exact_dot.dot(device, a, b, kernel="small")
    times, wrong = {}, set()
    for way in {chosen: 0, **dict.fromkeys(considered)}:
        call = partial(exact_dot.dot, device, a, b, kernel=way.kernel, ranges=way.ranges)
        if not same_bits(device, call(), want):
            wrong.add(way)
        times[way] = fastest(device, call)
    print(f"fx{size.bits} {size.batch} x {size.rows},{size.columns},{size.padded}")
    for way, taken in times.items():
        note = ("  chosen" if way == chosen else "") + ("  WRONG BITS" if way in wrong else "")
        print(
            f"  {way.kernel:12} {way.ranges:2} ranges {flops / taken / 1e9:7.1f} TFLOP/s"
            f"  time {taken / times[chosen]:5.2f}  model {model[way] / model[chosen]:5.2f}{note}",
            flush=True,
        )


def main() -> None:
    """Measure all products."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--near", type=float, default=1.6)
    near = parser.parse_args().near
    device = Device()
    with device.use():
        for product in PRODUCTS:
            measure(device, Size(*product), near)
            device.pool.free_all_blocks()


if __name__ == "__main__":
    main()
