"""Attention's backward pass without scores in memory, on sm_90 (cuda/attention_backward_sm90.cu); SPEC.md section 8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.kernels import attention_pipe
from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.attention_pipe import DIM, MOST_KEYS, NORM_THREADS, TILE, Pipe
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows, padded_length
from auditkit.numerics.attention import attention_scale

SOURCE = "attention_backward_sm90"
# The choices of the classes of cuda/attention_backward_{queries,records,keys}.cuh.
SCAN = Pipe(products=2, scorers=3, row_stages=1, column_stages=1, sum_stages=0, vectors=4)
QUERY = Pipe(products=2, scorers=2, row_stages=1, column_stages=2, sum_stages=2, vectors=4)
SHARE = Pipe(products=1, scorers=2, row_stages=2, column_stages=3, sum_stages=2, vectors=3)
SLOPE = Pipe(products=2, scorers=2, row_stages=1, column_stages=2, sum_stages=2, vectors=7)

_THREADS = 128


@dataclass(frozen=True)
class Softmax:
    """Of each row of queries, float32 (groups * T * R,): its maximum m, its sum l, and D."""

    maxima: Array
    sums: Array
    inner: Array

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """As the kernels take them."""
        return self.maxima, self.sums, self.inner


@dataclass(frozen=True)
class Rows:
    """What the dots are of: q, dout (groups, T * R, D) and k, v (groups, T, D). pairs, int32: exponents of q and z."""

    q: DeviceRows
    k: DeviceRows
    v: DeviceRows
    dout: DeviceRows
    pairs: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Planes, then exponents, as the kernels take them."""
        four = (self.q, self.k, self.v, self.dout)
        return (*(rows.planes for rows in four), *(rows.exponents for rows in four))


@dataclass(frozen=True)
class Turned:
    """Columns of k, z and q as attention.turned makes them in the order of the weights."""

    k: DeviceRows
    z: DeviceRows
    q: DeviceRows


def fits(device: Device, sizes: Sizes, dim: int, bits: int) -> bool:
    """Whether these kernels take such an attention: sums over queries are as short as those over keys."""
    return attention_pipe.fits(device, sizes, dim, bits) and sizes.heads * sizes.tokens <= MOST_KEYS


def backward(
    device: Device,
    status: Array,
    rows: Rows,
    softmax: Softmax,
    turned: Turned,
    sizes: Sizes,
    dq: Array,
) -> tuple[Array, Array]:
    """Write the gradient of q (B, H, T, D) to `dq`; those of k and v, float32 (groups, T, D)."""
    work = _Work(device, rows, softmax, sizes)
    keys, key_norms, key_bounds = work.key_records()
    queries = work.query_records()
    query_bounds, tops = device.empty((sizes.groups * rows.q.rows,), np.int32), work.tops(queries.tops)
    given, of_keys = ((*rows.arrays, *_halves(norms)) for norms in (queries.norms, key_norms))
    dk, dv = (device.empty((sizes.groups, sizes.tokens, DIM), np.float32) for _ in range(2))
    work.on_queries(SCAN, "scan", (*given, keys, *softmax.arrays, query_bounds, key_bounds, status))
    work.on_queries(QUERY, "query", (*given, turned.k.planes, keys, *softmax.arrays, query_bounds, dq))
    share = (turned.z.planes, queries.shares, softmax.maxima, rows.pairs, tops, dv)
    work.on_keys(SHARE, "share", (*of_keys, *share))
    work.on_keys(SLOPE, "slope", (*of_keys, turned.q.planes, queries.slopes, *softmax.arrays, key_bounds, dk))
    return dk, dv


@dataclass(frozen=True)
class _Queries:
    """Of each 64 queries: records for dV and dK, norms of q and of dout, the largest exponent of z."""

    shares: Array
    slopes: Array
    norms: Array
    tops: Array


@dataclass(frozen=True)
class _Work:
    """One backward pass."""

    device: Device
    rows: Rows
    softmax: Softmax
    sizes: Sizes

    def key_records(self) -> tuple[Array, Array, Array]:
        """Records of each 64 keys, norms of k and of v, bounds of dK that are to be found."""
        device, rows, sizes = self.device, self.rows, self.sizes
        blocks = sizes.groups * blocks_for(sizes.tokens, TILE)
        records, norms = device.empty((blocks * QUERY.record,), np.int8), device.empty((2 * blocks,), np.float32)
        bounds = device.empty((sizes.groups * sizes.tokens,), np.int32)
        given = (rows.k.planes, rows.v.planes, rows.k.exponents, rows.v.exponents)
        numbers = (np.int32(sizes.groups), np.int32(sizes.tokens), attention_scale(DIM))
        device.launch(
            SOURCE, "attention_backward_keys", blocks, NORM_THREADS, (*given, records, norms, bounds, *numbers)
        )
        return records, norms, bounds

    def query_records(self) -> _Queries:
        """Of each 64 queries."""
        device, rows, groups = self.device, self.rows, self.sizes.groups
        blocks = groups * blocks_for(rows.q.rows, TILE)
        found = _Queries(
            device.empty((blocks * SHARE.record,), np.int8),
            device.empty((blocks * SLOPE.record,), np.int8),
            device.empty((2 * blocks,), np.float32),
            device.empty((blocks,), np.int32),
        )
        given = (
            rows.q.planes,
            rows.dout.planes,
            rows.pairs,
            rows.dout.exponents,
            *self.softmax.arrays,
            rows.q.exponents,
        )
        made = (found.shares, found.slopes, found.norms, found.tops)
        numbers = (np.int32(groups), np.int32(rows.q.rows), attention_scale(DIM))
        device.launch(SOURCE, "attention_backward_queries", blocks, NORM_THREADS, (*given, *made, *numbers))
        return found

    def tops(self, of_blocks: Array) -> Array:
        """The bounds of dV, int32 (groups * T,)."""
        keys = self.sizes.groups * self.sizes.tokens
        bounds = self.device.empty((keys,), np.int32)
        args = (self.rows.pairs, of_blocks, bounds, *self._numbers(self.rows.q.rows))
        self.device.launch(SOURCE, "attention_backward_tops", blocks_for(keys * 32, _THREADS), _THREADS, args)
        return bounds

    def on_queries(self, pipe: Pipe, kernel: str, args: tuple[Any, ...]) -> None:
        """A kernel of the pipeline whose rows are queries."""
        self._launch(pipe, kernel, self.rows.q.rows, (*args, *self._numbers(self.sizes.tokens)))

    def on_keys(self, pipe: Pipe, kernel: str, args: tuple[Any, ...]) -> None:
        """A kernel of the pipeline whose rows are keys."""
        self._launch(pipe, kernel, self.sizes.tokens, (*args, *self._numbers(self.rows.q.rows)))

    def _launch(self, pipe: Pipe, kernel: str, rows: int, args: tuple[Any, ...]) -> None:
        grid = pipe.grid(self.device, self.sizes, rows)
        self.device.launch(SOURCE, f"attention_backward_{kernel}", grid, pipe.threads, args, shared=pipe.shared)

    def _numbers(self, columns: int) -> tuple[Any, ...]:
        """SIZES of the source, where a group has so many columns."""
        sizes, queries = self.sizes, self.rows.q.rows
        numbers = (sizes.groups, sizes.tokens, sizes.heads, queries, padded_length(columns), sizes.window)
        return (*(np.int32(number) for number in numbers), attention_scale(DIM))


def _halves(norms: Array) -> tuple[Array, Array]:
    """Those of the first rows, and of the second."""
    return norms[: norms.size // 2], norms[norms.size // 2 :]
