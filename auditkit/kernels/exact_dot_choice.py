"""Which kernel makes an exact dot, and from how many ranges of K, by what each takes; no choice changes a bit.

A product with fewer tiles than the device has multiprocessors leaves some of them idle. Its ranges of K can be products
of their own, whose exact sums are added up and rounded at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from auditkit.kernels import exact_dot_sm90
from auditkit.kernels.device import blocks_for
from auditkit.kernels.exact_dot_planes import PLANES

STEP = 128  # ranges of K are multiples
SUMS_BYTES = 32 << 20  # of the exact sums of all ranges, at most

_MOST_RANGES = 16
_GAIN = 0.9  # of the time without ranges: a model that is a tenth off shall not choose them in vain
# Cycles, and bytes in a cycle of a multiprocessor, from measurements on an H200 (docs/benchmarks.md). Cards differ, but
# the kernels' proportions hardly.
_ALONE = 1.3  # how much longer a tile takes without another block on its multiprocessor
_JOIN, _JOIN_BYTES = 8000, 20  # to launch the kernel that adds up sums; what it reads


@dataclass(frozen=True)
class Way:
    """A kernel of exact_dot.dot, and how many ranges of K are multiplied on their own."""

    kernel: str
    ranges: int = 1


@dataclass(frozen=True)
class Size:
    """A product: batch matrices, each `rows` by `columns`, rows of `padded` bytes a plane."""

    bits: int
    batch: int
    rows: int
    columns: int
    padded: int


@dataclass(frozen=True)
class _Cost:
    """What a kernel takes for a tile: cycles for 128 bytes of K of one plane, and to round and store it."""

    rows: int
    columns: int
    step: int
    end: int
    alone: float = 1.0


_COSTS = {
    "small": _Cost(64, 64, 413, 1200, _ALONE),
    "large64": _Cost(128, 128, 1060, 5000, _ALONE),
    "large128": _Cost(128, 128, 1060, 5000, _ALONE),
    "wgmma_short": _Cost(256, 256, 1140, 7000),  # the tiles of a cluster of two
    "wgmma_long": _Cost(256, 256, 1140, 7000),
    "wgmma_wide": _Cost(256, 128, 640, 3500),
}
_ROOMY = ("90", "100")  # two blocks of large128 fit a multiprocessor
_NO_LARGE_21 = 100  # from this architecture on the large tiles have too few registers for 21 bits


@functools.lru_cache(maxsize=4096)
def choose(architecture: str, multiprocessors: int, size: Size) -> Way:
    """The way that takes the fewest cycles; ranges only where they save a tenth."""
    cycles = {way: cycles_of(multiprocessors, size, way) for way in ways(architecture, size)}
    best = min(cycles, key=cycles.__getitem__)
    whole = min((way for way in cycles if way.ranges == 1), key=cycles.__getitem__)
    return best if cycles[best] < _GAIN * cycles[whole] else whole


def ways(architecture: str, size: Size) -> Iterator[Way]:
    """All that are considered."""
    for ranges in range(1, _MOST_RANGES + 1):
        if ranges == 1 or can_split(size, ranges):
            for kernel in kernels(architecture, size.bits, size.padded // ranges):
                yield Way(kernel, ranges)


def can_split(size: Size, ranges: int) -> bool:
    """Whether K is so many equal ranges, and memory for their sums is small."""
    few = ranges * size.rows * size.columns * 8 <= SUMS_BYTES
    return size.batch == 1 and size.padded % (ranges * STEP) == 0 and few


def kernels(architecture: str, bits: int, padded: int) -> Iterator[str]:
    """Those that may be chosen for rows of `padded` bytes, the best of each tile."""
    if architecture == exact_dot_sm90.ARCHITECTURE and (first := exact_dot_sm90.fitting(bits, padded)):
        yield first
        if first != "wgmma_wide":
            yield "wgmma_wide"
    large = "large128" if architecture in _ROOMY and padded % STEP == 0 else "large64"
    if large in compiled(architecture, bits):
        yield large
    yield "small"


def compiled(architecture: str, bits: int) -> tuple[str, ...]:
    """The kernels that cuda/exact_dot.cu has for an architecture."""
    if bits == 21 and int(architecture) >= _NO_LARGE_21:
        return "plain", "small"
    return "plain", "small", "large64", *(("large128",) if architecture in _ROOMY else ())


def cycles_of(multiprocessors: int, size: Size, way: Way) -> float:
    """Of the whole device, without what every way takes."""
    cost = _COSTS[way.kernel]
    tiles = size.batch * way.ranges * blocks_for(size.rows, cost.rows) * blocks_for(size.columns, cost.columns)
    together = multiprocessors // 2 if way.kernel.startswith("wgmma") else multiprocessors
    rounds = blocks_for(tiles, max(1, together))
    cycles = rounds * (size.padded / way.ranges / STEP * PLANES[size.bits] * cost.step + cost.end)
    if rounds == 1:
        cycles *= cost.alone
    if way.ranges > 1:
        cycles += _JOIN + way.ranges * size.rows * size.columns * 8 / (_JOIN_BYTES * multiprocessors)
    return cycles
