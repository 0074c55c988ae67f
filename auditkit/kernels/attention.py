"""Causal attention on the device (cuda/attention.cu around cuda/exact_dot.cu); SPEC.md section 8.

A group is one sequence and one key head with its R query heads, whose T * R rows are stacked token by token. Scores are
computed in chunks: of queries with the keys that they see, for the output and dQ; in the backward pass once more of keys
with the queries that see them, for dK and dV. What nobody sees is mostly not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.attention_chunks import Chunk, key_chunks, query_chunks
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot import dot, quantise
from auditkit.kernels.exact_dot_planes import PLANES, DeviceRows, empty_planes, padded_length
from auditkit.numerics.attention import attention_scale

_BLOCK = 128  # four rows of D elements a block
_HELD = 16  # columns of a chunk that a thread of a block holds
_THREADS = {"softmax": 1024, "query_gradient": 704, "key_gradient": 640}  # the most of a block


@dataclass(frozen=True)
class AttentionCache:
    """What backward needs."""

    q: DeviceRows  # (groups, T * R, D)
    k: DeviceRows  # (groups, T, D)
    v: DeviceRows  # (groups, T, D)
    out: Array  # (B, H, T, D) float32
    row_max: Array  # (groups * T * R,) float32
    row_sum: Array  # (groups * T * R,) float32
    window: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Groups, R, T and the window."""
        return self.k.batch, self.q.rows // max(1, self.k.rows), self.k.rows, self.window

    @property
    def dim(self) -> int:
        """D, elements of a head."""
        return self.k.length


def attention_forward(
    device: Device, status: Array, q: Array, k: Array, v: Array, *, window: int, bits: int
) -> tuple[Array, AttentionCache]:
    """As `auditkit.numerics.attention.attention_forward`, on device arrays; a non-finite value sets `status`."""
    batch, heads, tokens, dim = q.shape
    groups, share = batch * k.shape[1], heads // k.shape[1]
    rq = _stacked(device, status, q, groups, bits)
    rk = quantise(device, status, k.reshape((groups, tokens, dim)), bits)
    rv = quantise(device, status, v.reshape((groups, tokens, dim)), bits)
    rows = groups * tokens * share
    row_max, row_sum = device.empty((rows,), np.float32), device.empty((rows,), np.float32)
    values = _turned(device, [rv])
    total = device.empty((groups, tokens * share, dim), np.float32)
    for chunk in query_chunks(groups, share, tokens, window):
        part = _Part.of_queries(device, chunk, (groups, share, tokens, window))
        scores = (part.dot(rq, rk),)
        weights = part.weights("softmax", status, scores, (rv.exponents, row_max, row_sum), dim, bits)
        del scores
        part.weighted_sum(weights, values, total)
    out = _unstacked(device, total, row_sum, q.shape)
    return out, AttentionCache(rq, rk, rv, out, row_max, row_sum, window)


def attention_backward(device: Device, status: Array, dout: Array, cache: AttentionCache) -> tuple[Array, Array, Array]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D)."""
    rows = _gradient_rows(device, status, dout, cache)
    dq = _query_gradient(device, status, rows, cache)
    dkv = _key_gradient(device, status, rows, cache)
    shape = (dout.shape[0], cache.k.batch // max(1, dout.shape[0]), cache.k.rows, cache.dim)
    dv, dk = (dkv[at : at + cache.k.batch].reshape(shape) for at in (0, cache.k.batch))
    return _unstacked(device, dq, None, dout.shape), dk, dv


@dataclass(frozen=True)
class _GradientRows:
    """Of the rows dO: D, float32, and rows in fixed point; of z = dO / l rows in fixed point, and in `pairs`, int32, their
    exponents beside those of q. Vectors are (groups * T * R,).
    """

    inner: Array
    dout: DeviceRows
    z: DeviceRows
    pairs: Array


def _query_gradient(device: Device, status: Array, rows: _GradientRows, cache: AttentionCache) -> Array:
    """dQ (groups, T * R, D) float32."""
    keys = _turned(device, [cache.k])
    dq = device.empty((cache.k.batch, cache.q.rows, cache.dim), np.float32)
    vectors = (cache.row_max, cache.row_sum, rows.inner, cache.k.exponents)
    for chunk in query_chunks(*cache.sizes):
        part = _Part.of_queries(device, chunk, cache.sizes)
        scores = part.dot(cache.q, cache.k), part.dot(rows.dout, cache.v)
        weights = part.weights("query_gradient", status, scores, vectors, cache.dim, cache.q.bits)
        del scores
        part.weighted_sum(weights, keys, dq)
    return dq


def _key_gradient(device: Device, status: Array, rows: _GradientRows, cache: AttentionCache) -> Array:
    """dV and dK (2 * groups, T, D) float32."""
    queries = _turned(device, [rows.z, cache.q])
    dkv = device.empty((2 * cache.k.batch, cache.k.rows, cache.dim), np.float32)
    vectors = (cache.row_max, cache.row_sum, rows.inner, rows.pairs)
    for chunk in key_chunks(*cache.sizes):
        part = _Part.of_keys(device, chunk, cache.sizes)
        scores = part.dot(cache.k, cache.q), part.dot(cache.v, rows.dout)
        weights = part.weights("key_gradient", status, scores, vectors, cache.dim, cache.q.bits, results=2)
        del scores
        part.weighted_sum(weights, queries, dkv)
    return dkv


@dataclass(frozen=True)
class _Part:
    """A chunk on the device: which rows of their operands its dots take, and what its kernels take (CHUNK of
    cuda/attention_chunk.cuh).

    sizes: groups, R, T and the window of the whole attention.
    """

    device: Device
    groups: slice
    rows: slice
    columns: slice
    query: int
    key: int
    sizes: tuple[int, int, int, int]

    @classmethod
    def of_queries(cls, device: Device, chunk: Chunk, sizes: tuple[int, int, int, int]) -> _Part:
        """Rows are queries, columns keys."""
        rows, columns = _stacked_rows(chunk.rows, sizes[1]), chunk.columns
        return cls(device, chunk.groups, rows, columns, chunk.rows.start, chunk.columns.start, sizes)

    @classmethod
    def of_keys(cls, device: Device, chunk: Chunk, sizes: tuple[int, int, int, int]) -> _Part:
        """Rows are keys, columns queries."""
        rows, columns = chunk.rows, _stacked_rows(chunk.columns, sizes[1])
        return cls(device, chunk.groups, rows, columns, chunk.columns.start, chunk.rows.start, sizes)

    @property
    def batch(self) -> int:
        """Groups of this chunk."""
        return int(self.groups.stop - self.groups.start)

    def dot(self, a: DeviceRows, b: DeviceRows) -> Array:
        """(batch, rows, columns) or, for one group, (rows, columns): the chunk of the dots of a and b."""
        return dot(
            self.device,
            a.part(batches=self.groups, rows=self.rows),
            b.part(batches=self.groups, rows=self.columns),
        )

    def weights(
        self,
        name: str,
        status: Array,
        scores: tuple[Array, ...],
        vectors: tuple[Array, ...],
        dim: int,
        bits: int,
        *,
        results: int = 1,
    ) -> DeviceRows:
        """`results` * batch matrices of weights, made by a kernel from chunks of dots and vectors over all groups."""
        device, rows, columns = self.device, self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        groups, heads, tokens, window = self.sizes
        count, padded = results * self.batch, padded_length(columns)
        planes = empty_planes(device, bits, count, rows, padded)
        exponents = device.empty((count * rows,), np.int32)
        chunk = (self.batch, rows, columns, padded, tokens, heads, self.query, self.key, min(window, tokens))
        of_groups = (vector.reshape((groups, -1))[self.groups] for vector in vectors)
        arrays = (*scores, *of_groups, exponents, planes, status)
        threads = min(_THREADS[name], 32 * blocks_for(padded, 32 * _HELD))
        args = (*arrays, *(np.int32(size) for size in chunk), attention_scale(dim))
        device.launch("attention", f"attention_{name}_{bits}", self.batch * rows, threads, args)
        return DeviceRows(planes, exponents, bits, count, rows, columns)

    def weighted_sum(self, weights: DeviceRows, rows: DeviceRows, into: Array) -> None:
        """Weighted sums of rows, turned, to their place in `into`, whose matrices are those of `rows`."""
        groups, batch = self.sizes[0], self.batch
        results = weights.batch // batch
        for result in range(results) if batch < groups else [0]:
            size = batch if batch < groups else weights.batch  # all groups: the results lie side by side
            mine = slice(result * batch, result * batch + size)
            its = slice(result * groups + self.groups.start, result * groups + self.groups.start + size)
            operand = rows.part(batches=its, columns=self.columns)
            dot(self.device, weights.part(batches=mine), operand, into=into[its], at=(self.rows.start, 0))


def _stacked_rows(tokens: slice, heads: int) -> slice:
    """The rows of queries of some tokens."""
    return slice(tokens.start * heads, tokens.stop * heads)


def _stacked(device: Device, status: Array, x: Array, groups: int, bits: int) -> DeviceRows:
    """Rows of x (B, H, T, D) float32 in fixed point: (groups, T * R, D). A non-finite element sets `status`."""
    tokens, dim = (int(size) for size in x.shape[2:])
    rows = int(x.shape[0] * x.shape[1]) // max(1, groups) * tokens
    if rows == tokens:
        return quantise(device, status, x.reshape((groups, tokens, dim)), bits)
    made = _empty_rows(device, bits, groups, rows, dim)
    sizes = tuple(np.int64(size) for size in (groups, rows // max(1, tokens), tokens, dim, made.padded))
    args = (x, made.exponents, made.planes, status, *sizes)
    device.launch("attention", f"attention_stack_rows_{bits}", blocks_for(groups * rows * 32, _BLOCK), _BLOCK, args)
    return made


def _unstacked(device: Device, x: Array, sums: Array | None, shape: tuple[int, ...]) -> Array:
    """x (groups, T * R, D) float32 as (B, H, T, D), each row divided by its element of `sums`, if given."""
    groups, rows, dim = (int(size) for size in x.shape)
    tokens = int(shape[2])
    if sums is None and rows == tokens:
        return x.reshape(shape)
    y = device.empty(shape, np.float32)
    sizes = tuple(np.int64(size) for size in (groups, rows // max(1, tokens), tokens, dim))
    grid = min(blocks_for(groups * rows * blocks_for(dim, 4), 256), 1 << 20)
    divisor = np.uint64(0) if sums is None else sums
    device.launch("attention", "attention_unstack_rows", grid, 256, (x, divisor, y, *sizes))
    return y


def _turned(device: Device, sources: list[DeviceRows]) -> DeviceRows:
    """The D columns of each source's integers, with exponents 0: second operands of weighted sums over its rows.

    The matrices of all sources, which have the same sizes, follow one another.
    """
    first = sources[0]
    batch, padded = len(sources) * first.batch, padded_length(first.rows)
    planes = empty_planes(device, first.bits, batch, first.length, padded)
    count = PLANES[first.bits]
    grid = count * first.batch * blocks_for(first.length, 64) * (padded // 64)
    for number, rows in enumerate(sources):
        sizes = (count, rows.batch, rows.rows, rows.length, rows.padded, padded, batch, number * rows.batch)
        args = (rows.planes, planes, *(np.int64(size) for size in sizes))
        device.launch("attention", "attention_transpose_planes", grid, 256, args)
    exponents = device.zeros((batch * first.length,), np.int32)
    return DeviceRows(planes, exponents, first.bits, batch, first.length, first.rows)


def _gradient_rows(device: Device, status: Array, dout: Array, cache: AttentionCache) -> _GradientRows:
    """What the backward pass takes of the rows of dout (B, H, T, D)."""
    groups, heads, tokens, _ = cache.sizes
    rows, dim, bits = heads * tokens, cache.dim, cache.q.bits
    of_dout, of_z = (_empty_rows(device, bits, groups, rows, dim) for _ in range(2))
    inner = device.empty((groups * rows,), np.float32)
    width = 1 << (dim - 1).bit_length()
    sizes = tuple(np.int64(size) for size in (groups, heads, tokens, dim, of_dout.padded, width))
    # The exponents of z are not needed apart: they go into the pairs.
    results = (inner, of_dout.exponents, of_dout.planes, of_z.exponents, of_z.planes)
    args = (dout, cache.out, cache.row_sum, cache.q.exponents, *results, status, *sizes)
    grid = blocks_for(groups * rows * 32, _BLOCK)
    name = f"attention_gradient_rows_{bits}"
    device.launch("attention", name, grid, _BLOCK, args, shared=4 * width * (_BLOCK // 32))
    return _GradientRows(inner, of_dout, of_z, of_z.exponents)


def _empty_rows(device: Device, bits: int, batch: int, rows: int, length: int) -> DeviceRows:
    """Room for rows in fixed point."""
    planes = empty_planes(device, bits, batch, rows, padded_length(length))
    return DeviceRows(planes, device.empty((batch * rows,), np.int32), bits, batch, rows, length)
