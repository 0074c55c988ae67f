"""The exact dots of one model's step on a CUDA card: useful TFLOP/s over all of them, next to torch's in the same run.

    python -m bench.exact_dot_model [--tokens N] [--kernel NAME] [--sustained]

The model: 24 layers of width 2048, 16 query and 4 key-value heads of 128, 5632 in the feed-forward part, an untied
vocabulary of 128,256, in micro-batches of 16,384 tokens. Each matrix has three products: forward, gradient of the
inputs, gradient of the weights; the head's have 21 bits, all others 14. The averages weigh a product by its work (all
of it over all time). `with quantise` counts making both operands' planes anew for every product. `as in a step` counts
them as a step makes them: activations and gradients once by rows and by columns in one go, where they come from (what
that adds to the op: bench/step_rounding.py), shared by the products that read them, and the weights once a step, not
once a micro-batch. `by kernels of their own` counts each of these as a kernel that only rounds. Attention's own
products are not among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from auditkit.kernels import exact_dot
from auditkit.kernels.device import Device
from auditkit.kernels.exact_dot_choice import compiled
from bench.exact_dot import CORNER, fastest, same_bits, sustained
from bench.rows import Row
from bench.step_rounding import layer_roundings

WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY, LAYERS = 2048, 16, 4, 128, 5632, 128_256, 24
TOKENS = 16_384
CHOSEN = "chosen"  # what exact_dot.dot chooses by itself
BARS = {14: 0.62, 21: 4.0}  # times torch's bfloat16, float32
ROUNDED_BAR = 0.55  # times torch's bfloat16, with operands rounded as in a step
STEP_TOKENS = 4_718_592  # 1,152 sequences of 4,096
# Widths of what a layer rounds for products: before q, k, v; before o; before gate, up; before down; and the gradients
# of what q, k, v, o, gate, up and down give.
ROUNDED = (WIDTH, WIDTH, WIDTH, FFN, WIDTH, KV_HEADS * HEAD, KV_HEADS * HEAD, WIDTH, FFN, FFN, WIDTH)


@dataclass(frozen=True)
class Product:
    """Products of one shape: how many in a step, and which operands are transposes of what the step holds."""

    m: int
    n: int
    k: int
    bits: int
    count: int
    turned: tuple[bool, bool]

    @property
    def work(self) -> int:
        """Operations of one."""
        return 2 * self.m * self.n * self.k

    @property
    def name(self) -> str:
        """Its shape in words."""
        return f"{self.m},{self.n},{self.k}"


def products(tokens: int) -> list[Product]:
    """All products of a micro-batch, equal shapes together."""
    matrices = [  # outputs, inputs, how many, bits
        (WIDTH, WIDTH, 2 * LAYERS, 14),
        (KV_HEADS * HEAD, WIDTH, 2 * LAYERS, 14),
        (FFN, WIDTH, 2 * LAYERS, 14),
        (WIDTH, FFN, LAYERS, 14),
        (VOCABULARY, WIDTH, 1, 21),
    ]
    found = []
    for outputs, inputs, count, bits in matrices:
        found.append(Product(tokens, outputs, inputs, bits, count, (False, False)))
        found.append(Product(tokens, inputs, outputs, bits, count, (False, True)))
        found.append(Product(outputs, inputs, tokens, bits, count, (True, True)))
    return found


def measured(device: Device, product: Product, kernels: list[str], clock: Callable[..., float]) -> dict[str, float]:
    """Milliseconds of each way to compute one product. AssertionError where bits differ."""
    rng = torch.Generator("cuda").manual_seed(1)
    shapes = [(rows, product.k) for rows in (product.m, product.n)]
    held = [torch.randn(shape[::-1] if turned else shape, generator=rng, device="cuda")
            for shape, turned in zip(shapes, product.turned, strict=True)]  # fmt: skip
    x, w = (array.T if turned else array for array, turned in zip(held, product.turned, strict=True))
    torch.backends.cuda.matmul.allow_tf32 = False
    times = {"float32": clock(device, partial(torch.matmul, x, w.T))}
    halves = x.bfloat16(), w.bfloat16().T
    times["bfloat16"] = clock(device, partial(torch.matmul, *halves))
    del halves
    status, arrays = device.zeros((1,), np.uint32), [device.cupy.asarray(array) for array in held]

    def planes(which: int, rows: Any) -> Any:
        quantise = exact_dot.quantise_t if product.turned[which] else exact_dot.quantise
        return quantise(device, status, rows, product.bits)

    a, b = (planes(which, array) for which, array in enumerate(arrays))
    first = None
    for name in kernels:
        kernel = "" if name == CHOSEN else name
        c = exact_dot.dot(device, a, b, kernel=kernel)
        corner = device.cupy.ascontiguousarray(c[-CORNER:, -CORNER:])
        assert first is None or same_bits(device, corner, first), f"{name} gives other bits for {product.name}"
        first = corner
        del c
        times[name] = clock(device, partial(exact_dot.dot, device, a, b, kernel=kernel))
        times[name + " with quantise"] = clock(
            device, lambda kernel=kernel: exact_dot.dot(device, *map(planes, (0, 1), arrays), kernel=kernel)
        )
    return times


def roundings(device: Device, tokens: int, clock: Callable[..., float]) -> dict[str, float]:
    """Milliseconds in which a micro-batch's operands of 14 bits are rounded, its share of the weights' included: as in
    a step, and by kernels of their own.
    """
    status = device.zeros((1,), np.uint32)

    def both(height: int, width: int) -> float:
        array = device.cupy.asarray(torch.randn((height, width), device="cuda"))
        return clock(device, partial(exact_dot.quantise_both, device, status, array, 14))

    of_width = {width: both(tokens, width) for width in set(ROUNDED)}
    weights = sum(product.count * both(product.m, product.n) for product in products(tokens)
                  if product.bits == 14 and product.turned == (True, True))  # fmt: skip
    weights *= tokens / STEP_TOKENS
    in_step = layer_roundings(device, tokens, WIDTH, FFN, (HEADS, KV_HEADS), clock)
    alone = sum(of_width[width] for width in ROUNDED)
    return {"as in a step": LAYERS * in_step + weights, "by kernels of their own": LAYERS * alone + weights}


def rows(tokens: int, asked: list[str] | None, clock: Callable[..., float]) -> Iterator[Row]:
    """Each shape, then the averages by work for each number of bits."""
    device, all_of = Device(), products(tokens)
    portable = [name for name in ("large128",) if name in compiled(device.architecture, 21)]
    kernels = asked or [*portable, CHOSEN]
    totals: dict[tuple[int, str], float] = {}
    stream = torch.cuda.ExternalStream(device.stream.ptr)  # one stream, so that one clock measures both
    with device.use(), torch.cuda.stream(stream):
        for product in all_of:
            times = measured(device, product, kernels, clock)
            for way, milliseconds in times.items():
                key = (product.bits, way)
                totals[key] = totals.get(key, 0.0) + product.count * milliseconds
                yield Row(f"fx{product.bits} {product.name} {way}", product.work / milliseconds / 1e9, "TFLOP/s")
            device.pool.free_all_blocks()
            torch.cuda.empty_cache()
        rounded = roundings(device, tokens, clock)
    for kernel in kernels:
        for way, milliseconds in rounded.items():
            totals[14, f"{kernel}, {way}"] = totals[14, kernel] + milliseconds
    for (bits, way), milliseconds in totals.items():
        work = sum(product.count * product.work for product in all_of if product.bits == bits)
        of = "bfloat16" if bits == 14 else "float32"
        ratio = totals[bits, of] / milliseconds
        bar = BARS[bits] if way in kernels else ROUNDED_BAR if way.endswith("as in a step") else None
        passes = None if bar is None else ratio >= bar
        yield Row(f"fx{bits} average, {way}", work / milliseconds / 1e9, "TFLOP/s", f"{ratio:.3f} of {of}", "", passes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a micro-batch")
    parser.add_argument(
        "--kernel", action="append", help="of exact_dot.dot; default: large128 where the card has it, and chosen"
    )
    parser.add_argument("--sustained", action="store_true", help="without rests: at the card's power limit")
    asked = parser.parse_args()
    for row in rows(asked.tokens, asked.kernel, sustained if asked.sustained else fastest):
        print(f"{row.name:52} {row.value:8.1f} {row.unit}  {row.note}", flush=True)


if __name__ == "__main__":
    main()
