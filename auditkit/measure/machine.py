"""The profile of a card by which plans are chosen, measured: products, attention, copies, page-locked memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.measure.clock import Clock, clock_of
from auditkit.measure.rates import fastest
from auditkit.numerics.arrays import F32
from auditkit.replay.backend import CudaBackend
from auditkit.replay.predict import CARD, Profile, attention_products
from auditkit.replay.sizes import Sizes, sizes_of

COPY, COPIES = 256 << 20, 4  # bytes of a copy, and how many are timed together
HEAD_ROWS = 16_384  # of the vocabulary table
REPEATS = 2


def measured_profile(recipe: Recipe, backend: CudaBackend, copy: int = COPY) -> Profile:
    """The declared profile of a card with what takes most of a micro-batch measured: a few seconds.

    copy: bytes of a copy. What it has allocated is given back. Raises Unsupported for too little memory.
    """
    clock, sizes = clock_of(backend), sizes_of(_one_sequence(recipe), cuda=True)

    def one() -> Profile:
        forward, backward = _attention(backend.ops, clock, sizes)
        to_host, to_device, lock = _copies(backend, copy)
        return replace(
            CARD,
            products=_product(backend.ops, clock, sizes, recipe.model.ffn_size, recipe.numerics.body_bits),
            head=_product(backend.ops, clock, sizes, HEAD_ROWS, recipe.numerics.head_bits),
            attention=attention_products(sizes) / forward,
            backward=backward / forward,
            to_host=to_host,
            to_device=to_device,
            lock=lock,
        )

    try:
        return backend.on_device(one)
    finally:
        backend.ops.device.release()


def _one_sequence(recipe: Recipe) -> Recipe:
    """The recipe with micro-batches of one sequence."""
    return replace(recipe, batch=replace(recipe.batch, micro_batch_sequences=1))


def _random(ops: Any, *shape: int) -> Any:
    values: F32 = np.random.default_rng(len(shape)).standard_normal(shape, np.float32)
    return ops.place(values)


def _product(ops: Any, clock: Clock, sizes: Sizes, rows: int, bits: int) -> float:
    """Multiplications a second of a micro-batch's tokens with so many rows of a weight."""
    width = sizes.recipe.model.hidden_size
    a, b = (ops.quantise(_random(ops, count, width), bits) for count in (sizes.tokens, rows))
    return sizes.tokens * rows * width / fastest(clock, lambda: ops.dot(a, b), REPEATS)


def _attention(ops: Any, clock: Clock, sizes: Sizes) -> tuple[float, float]:
    """Seconds of both passes of an attention."""
    model, bits = sizes.recipe.model, sizes.recipe.numerics.body_bits
    q = _random(ops, 1, model.num_heads, sizes.tokens, model.head_dim)
    k = _random(ops, 1, model.num_kv_heads, sizes.tokens, model.head_dim)

    def forward() -> Any:
        return ops.attention_forward(q, k, k, window=model.sliding_window, bits=bits)

    seconds, cache = fastest(clock, forward, REPEATS), forward()[1]
    return seconds, fastest(clock, lambda: ops.attention_backward(q, cache), REPEATS)


def _copies(backend: CudaBackend, size: int) -> tuple[float, float, float]:
    """Bytes a second to main memory and to the device, both at the same time, and of memory that is locked."""
    device, moved = backend.ops.device, backend.ops.device.transfers
    locked, (leaves, comes) = _seconds(lambda: [moved.host_array((size,), np.uint8) for _ in range(2)])
    array = device.zeros((size,), np.uint8)

    def both() -> None:
        for _ in range(COPIES):
            moved.send(array, leaves, 1 << 62)
            moved.bring(comes)()
        moved.finish()

    both()
    seconds, _ = _seconds(both)
    return COPIES * size / seconds, COPIES * size / seconds, 2 * size / locked


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds by the host's clock, and what the call returns."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found
