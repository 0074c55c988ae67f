"""Weighted sums of attention's backward pass on sm_90 from e and dS in memory (cuda/attention_stored_sm90.cu)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.attention_pipe import TILE, Pipe
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows

SOURCE = "attention_stored_sm90"
KERNELS = ("query", "share", "slope")  # of dQ, dV and dK
PIPE = Pipe(products=1, scorers=3, row_stages=0, column_stages=0, sum_stages=4, vectors=0)
MOST = 1 << 27  # elements of e and of dS at a time, unless one group has more

Three = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Cells:
    """Room for e and dS, float32, of some groups at a time; elements of each for one group."""

    e: Array
    ds: Array
    of_group: int

    def parts(self, sizes: Sizes) -> Iterator[tuple[int, Sizes]]:
        """The first group of each part, and its sizes."""
        most = self.e.size // max(1, self.of_group)
        for first in range(0, sizes.groups, max(1, most)):
            yield first, replace(sizes, groups=min(most, sizes.groups - first))


@dataclass(frozen=True)
class Sums:
    """Of dQ, dV and dK: the turned columns and their exponents, the rows' bounds, where results go.

    on_queries, on_keys: SIZES of the source, for rows that are queries and for rows that are keys.
    """

    columns: tuple[DeviceRows, DeviceRows, DeviceRows]
    exponents: Three
    bounds: Three
    results: Three
    on_queries: tuple[Any, ...]
    on_keys: tuple[Any, ...]


def cells(device: Device, sizes: Sizes, rows: int) -> Cells:
    """Memory for as many groups of `rows` rows of queries as MOST allows, undefined."""
    of_group = TILE * TILE * blocks_for(rows, TILE) * blocks_for(sizes.tokens, TILE)
    count = min(max(1, MOST // max(1, of_group)), sizes.groups)
    e, ds = (device.empty((count * of_group,), np.float32) for _ in range(2))
    return Cells(e, ds, of_group)


def weighted_sums(device: Device, held: Cells, sums: Sums, first: int, sizes: Sizes, rows: int) -> None:
    """dQ, dV and dK of `sizes.groups` groups from `first` on, whose e and dS are held."""
    part = (np.int32(first), np.int32(sizes.groups))
    of_each = (
        (held.ds, rows, sums.on_queries),
        (held.e, sizes.tokens, sums.on_keys),
        (held.ds, sizes.tokens, sums.on_keys),
    )
    for number, (kernel, (given, height, numbers)) in enumerate(zip(KERNELS, of_each, strict=True)):
        arrays = (sums.exponents[number], sums.bounds[number], sums.results[number])
        args = (sums.columns[number].planes, given, *arrays, *part, *numbers)
        grid = PIPE.grid(device, sizes, height)
        device.launch(SOURCE, f"attention_stored_{kernel}", grid, PIPE.threads, args, shared=PIPE.shared)
