"""What the back end itself reaches: bandwidth of a copy, rate of the exact dot, rate of digests. The floor is made of
these, not of a data sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.errors import Unsupported
from auditkit.formats import zstd
from auditkit.formats.digest import content_digest
from auditkit.kernels.backend import CudaOps
from auditkit.measure.clock import Clock, HostClock, clock_of
from auditkit.numerics.arrays import F32
from auditkit.replay.backend import Backend

REPEATS = 5
BITS = 14
# By back end: bytes of a copied buffer, side of the square product. Halved until there is room.
SIZES = {True: (1 << 30, 8192), False: (1 << 27, 1536)}
LEAST = 64
UNPACKED = 32 << 20


@dataclass(frozen=True)
class Rates:
    """The fastest of a few runs each.

    copy        bytes a second, read and written bytes both counted
    operations  of the kind that the products are made of, a second: int8 on a card, binary64 on a CPU. An addition and
                a multiplication are two
    digest      bytes a second
    unpack      bytes of a state a second, decompressed and hashed by this machine's processor as a verification does
    product     the side of the square product that gave `operations`
    """

    copy: float
    operations: float
    digest: float
    unpack: float
    product: int


def planes(bits: int, cuda: bool) -> int:
    """Elementary products that make an exact one: of digits in int8 on a card, in binary64 on a CPU."""
    return {14: 3, 21: 6}.get(bits, 1) if cuda else 1


def measure_rates(backend: Backend, cuda: bool) -> Rates:
    """Measure all three. Raises Unsupported where there is no room even for small arrays."""
    clock, ops = clock_of(backend), backend.ops
    size, side = SIZES[cuda]

    def one() -> Rates:
        copied, copy = _with_room(lambda size: _copy(ops, clock, size), size)
        multiplied, product = _with_room(lambda side: _product(ops, clock, side), side)
        hashed, digest = _with_room(lambda size: _digest(ops, clock, size), size)
        operations = 2 * planes(BITS, cuda) * multiplied**3
        return Rates(2 * copied / copy, operations / product, hashed / digest, _unpack(), multiplied)

    return backend.on_device(one)


def _with_room(measure: Callable[[int], float], size: int) -> tuple[int, float]:
    """The largest size that fits, and its seconds. Raises Unsupported."""
    while True:
        try:
            return size, measure(size)
        except Unsupported:
            if size <= LEAST:
                raise
        size //= 2  # outside the handler: its error holds frames, and they arrays


def _copy(ops: Any, clock: Clock, size: int) -> float:
    source, target = (_zeros(ops, size) for _ in range(2))
    if isinstance(ops, CudaOps):
        return fastest(clock, lambda: ops.device.copy(target, source))
    return fastest(clock, lambda: np.copyto(target, source))


def _digest(ops: Any, clock: Clock, size: int) -> float:
    array = _zeros(ops, size)
    return fastest(clock, lambda: ops.digests([array]))


def _product(ops: Any, clock: Clock, side: int) -> float:
    values: F32 = np.random.default_rng(1).standard_normal((side, side), np.float32)
    a, b = ops.quantise(ops.place(values), BITS), ops.quantise(ops.place(values[::-1].copy()), BITS)
    return fastest(clock, lambda: ops.dot(a, b))


def _unpack() -> float:
    """Bytes a second. Numbers as hard to compress as those of a state."""
    values: F32 = np.random.default_rng(1).standard_normal(UNPACKED // 4, np.float32)
    packed = zstd.compress(values)
    return UNPACKED / fastest(
        HostClock(), lambda: content_digest(zstd.decompress(packed, size=UNPACKED, what="numbers")), 2
    )


def _zeros(ops: Any, size: int) -> Any:
    """An array of `size` bytes where the ops compute; written, so that an operating system has given it pages."""
    shape = (size // 4,)
    if isinstance(ops, CudaOps):
        return ops.device.zeros(shape, np.float32)
    return np.full(shape, 1, np.float32)


def fastest(clock: Clock, call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of some calls, after two that warm up."""
    for _ in range(2):
        call()
    found = []
    for _ in range(repeats):
        begin = clock.mark()
        call()
        found.append(clock.seconds(begin, clock.mark()))
    return min(found)
