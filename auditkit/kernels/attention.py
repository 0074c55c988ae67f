"""Causal attention on the device (cuda/attention.cu around cuda/exact_dot.cu); SPEC.md section 8.

Where `attention_pipe.fits`, other kernels do without scores in memory; what follows is for all other cases.

A group is one sequence and one key head with its R query heads, whose T * R rows are stacked token by token. Scores are
computed in chunks: of queries with the keys that they see, for the output and dQ; in the backward pass once more of
keys with the queries that see them, for dK and dV. What nobody sees is mostly not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.kernels import attention_backward_sm90, attention_forward_sm90, attention_pipe
from auditkit.kernels.attention_chunks import Chunk, Sizes, key_chunks, query_chunks
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot import dot, quantise
from auditkit.kernels.exact_dot_planes import (
    PLANES,
    DeviceRows,
    empty_planes,
    padded_length,
    plane_bytes,
    planes_memory,
    shaped_planes,
)
from auditkit.numerics.attention import attention_scale

_BLOCK = 128  # four rows of D elements a block
_HELD = 16  # columns of a chunk that a thread of a block holds
_HELD_WIDTH = 128  # of rows that a warp holds in registers while it sums dO * O (cuda/attention_inner.cuh)
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
    sizes: Sizes


def attention_forward(
    device: Device, status: Array, q: Array, k: Array, v: Array, *, window: int, bits: int, chunks: bool = False
) -> tuple[Array, AttentionCache]:
    """As `auditkit.numerics.attention.attention_forward`, on device arrays; a non-finite value sets `status`.

    chunks: scores in memory even where the fused kernels fit; the same bits.
    """
    sizes, rq, rk, rv = _operands(device, status, q, k, v, window, bits)
    if not chunks and attention_pipe.fits(device, sizes, int(q.shape[-1]), bits):
        columns = turned(device, [rv], ordered=True)
        out, row_max, row_sum = attention_forward_sm90.forward(device, status, (rq, rk, rv), columns, sizes, q.shape)
        return out, AttentionCache(rq, rk, rv, out, row_max, row_sum, sizes)
    row_max, row_sum = (device.empty((sizes.groups * rq.rows,), np.float32) for _ in range(2))
    work = _Work(device, status, "softmax", (rv.exponents, row_max, row_sum), sizes, query_chunks(sizes))
    total = work.weighted_sums([(rq, rk)], turned(device, [rv]))
    out = _unstacked(device, total, row_sum, q.shape, sizes)
    return out, AttentionCache(rq, rk, rv, out, row_max, row_sum, sizes)


def attention_again(
    device: Device, status: Array, q: Array, k: Array, v: Array, kept: Sequence[Array], *, window: int, bits: int
) -> tuple[Array, AttentionCache]:
    """What `attention_forward` gave, from the `out`, `row_max` and `row_sum` of its cache: no score is computed."""
    sizes, rq, rk, rv = _operands(device, status, q, k, v, window, bits)
    out, row_max, row_sum = kept
    return out, AttentionCache(rq, rk, rv, out, row_max, row_sum, sizes)


def attention_heads(cache: AttentionCache) -> list[Array]:
    """What q, k and v became: memory of planes and exponents of each, for `attention_restored`."""
    return [array for rows in (cache.q, cache.k, cache.v) for array in (rows.memory, rows.exponents)]


def attention_restored(
    heads: Sequence[Array], kept: Sequence[Array], shape: tuple[int, ...], keys: int, *, window: int, bits: int
) -> tuple[Array, AttentionCache]:
    """What `attention_forward` gave for q of `shape` and so many key heads, from `attention_heads` and the `out`,
    `row_max` and `row_sum` of its cache.
    """
    batch, count, tokens, dim = shape
    sizes = Sizes(batch * keys, count // keys, tokens, min(window, tokens))
    heights = (sizes.heads * tokens, tokens, tokens)
    rows = [
        DeviceRows.of(heads[2 * at], heads[2 * at + 1], bits, sizes.groups, height, dim)
        for at, height in enumerate(heights)
    ]
    out, row_max, row_sum = kept
    return out, AttentionCache(rows[0], rows[1], rows[2], out, row_max, row_sum, sizes)


def _operands(
    device: Device, status: Array, q: Array, k: Array, v: Array, window: int, bits: int
) -> tuple[Sizes, DeviceRows, DeviceRows, DeviceRows]:
    """Rows of q stacked, of k and of v."""
    batch, heads, tokens, dim = (int(size) for size in q.shape)
    groups = batch * int(k.shape[1])
    sizes = Sizes(groups, batch * heads // groups, tokens, min(window, tokens))
    rq = _stacked(device, status, q, sizes, bits)
    rk, rv = (quantise(device, status, x.reshape((groups, tokens, dim)), bits) for x in (k, v))
    return sizes, rq, rk, rv


def attention_backward(
    device: Device,
    status: Array,
    dout: Array,
    cache: AttentionCache,
    *,
    chunks: bool = False,
) -> tuple[Array, Array, Array]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D); `chunks` as in attention_forward."""
    rows, sizes, groups = _gradient_rows(device, status, dout, cache), cache.sizes, cache.sizes.groups
    if not chunks and attention_backward_sm90.fits(device, sizes, cache.q.length, cache.q.bits):
        return _fused_backward(device, status, dout, cache, rows)
    shared = (cache.row_max, cache.row_sum, rows.inner)
    vectors = (*shared, cache.k.exponents)
    work = _Work(device, status, "query_gradient", vectors, sizes, query_chunks(sizes))
    dq = work.weighted_sums([(cache.q, cache.k), (rows.dout, cache.v)], turned(device, [cache.k]))
    vectors = (*shared, rows.pairs)
    work = _Work(device, status, "key_gradient", vectors, sizes, key_chunks(sizes))
    found = work.weighted_sums([(cache.k, cache.q), (cache.v, rows.dout)], turned(device, [rows.z, cache.q]))
    shape = (dout.shape[0], groups // max(1, dout.shape[0]), sizes.tokens, cache.k.length)
    dv, dk = found[:groups].reshape(shape), found[groups:].reshape(shape)
    return _unstacked(device, dq, None, dout.shape, sizes), dk, dv


def _fused_backward(
    device: Device, status: Array, dout: Array, cache: AttentionCache, rows: _GradientRows
) -> tuple[Array, Array, Array]:
    """attention_backward by the kernels of sm_90."""
    sizes, dq = cache.sizes, device.empty(dout.shape, np.float32)
    of_keys, of_z, of_queries = (turned(device, [given], ordered=True) for given in (cache.k, rows.z, cache.q))
    found = attention_backward_sm90.backward(
        device,
        status,
        attention_backward_sm90.Rows(cache.q, cache.k, cache.v, rows.dout, rows.pairs),
        attention_backward_sm90.Softmax(cache.row_max, cache.row_sum, rows.inner),
        attention_backward_sm90.Turned(of_keys, of_z, of_queries),
        sizes,
        dq,
    )
    shape = (dout.shape[0], sizes.groups // max(1, dout.shape[0]), sizes.tokens, cache.k.length)
    dk, dv = (gradient.reshape(shape) for gradient in found)
    return dq, dk, dv


@dataclass(frozen=True)
class _Work:
    """One way through the scores, chunk by chunk: dots, a kernel of cuda/attention.cu that makes weights of them, and
    weighted sums.

    vectors: what the kernel takes besides the dots, each of all groups one after the other.
    """

    device: Device
    status: Array
    kernel: str
    vectors: tuple[Array, ...]
    sizes: Sizes
    chunks: list[Chunk]

    def weighted_sums(self, factors: list[tuple[DeviceRows, DeviceRows]], summed: DeviceRows) -> Array:
        """Weighted sums of rows, turned (`summed`): (its matrices, rows of all chunks, D) float32.

        factors: whose dots the kernel takes. The kernel makes one matrix of weights a group, or if `summed` has more
        matrices than there are groups, as many times more.
        """
        device, results = self.device, summed.batch // max(1, self.sizes.groups)
        most = max(chunk.scores for chunk in self.chunks)
        dots = [device.empty((most,), np.float32) for _ in factors]
        room = _Room(device, summed.bits, results, self.chunks)
        into = device.empty((summed.batch, self.chunks[-1].rows.stop, summed.rows), np.float32)
        for chunk in self.chunks:
            shape = (chunk.batch, chunk.height, chunk.width)
            scores = [held[: chunk.scores].reshape(shape) for held in dots]
            for (a, b), held in zip(factors, scores, strict=True):
                rows = a.part(batches=chunk.groups, rows=chunk.rows)
                dot(device, rows, b.part(batches=chunk.groups, rows=chunk.columns), into=held)
            weights = room.weights(chunk)
            self._launch(chunk, scores, weights, summed.rows)
            self._sum(chunk, weights, summed, into)
        return into

    def _launch(self, chunk: Chunk, scores: list[Array], weights: DeviceRows, dim: int) -> None:
        """The kernel on one chunk."""
        sizes = self.sizes
        of_groups = (vector.reshape((sizes.groups, -1))[chunk.groups] for vector in self.vectors)
        places = (sizes.tokens, sizes.heads, chunk.query, chunk.key, sizes.window)
        numbers = (np.int32(x) for x in (chunk.batch, chunk.height, chunk.width, weights.padded, *places))
        arrays = (*scores, *of_groups, weights.exponents, weights.planes, self.status)
        threads = min(_THREADS[self.kernel], 32 * blocks_for(weights.padded, 32 * _HELD))
        name = f"attention_{self.kernel}_{weights.bits}"
        grid = chunk.batch * chunk.height
        self.device.launch("attention", name, grid, threads, (*arrays, *numbers, attention_scale(dim)))

    def _sum(self, chunk: Chunk, weights: DeviceRows, summed: DeviceRows, into: Array) -> None:
        """Weighted sums to their place in `into`; of all groups at once, if the chunk has all."""
        groups, count = self.sizes.groups, chunk.batch
        at_once = weights.batch if count == groups else count
        for first in range(0, weights.batch, at_once):
            start = first // count * groups + chunk.groups.start
            its = slice(start, start + at_once)
            operand = summed.part(batches=its, columns=chunk.columns)
            dot(
                self.device,
                weights.part(batches=slice(first, first + at_once)),
                operand,
                into=into[its],
                at=(chunk.rows.start, 0),
            )


class _Room:
    """Memory for the weights of any one of some chunks, `results` matrices a group."""

    def __init__(self, device: Device, bits: int, results: int, chunks: list[Chunk]) -> None:
        self._bits, self._results = bits, results
        most = max(plane_bytes(bits, results * c.batch, c.height, padded_length(c.width)) for c in chunks)
        rows = max(results * chunk.batch * chunk.height for chunk in chunks)
        self._planes, self._exponents = device.empty((most,), np.int8), device.empty((rows,), np.int32)

    def weights(self, chunk: Chunk) -> DeviceRows:
        """The weights of a chunk, in place of those of another."""
        count, padded = self._results * chunk.batch, padded_length(chunk.width)
        planes = shaped_planes(self._planes, self._bits, count, chunk.height, padded)
        return DeviceRows(planes, self._exponents, self._bits, count, chunk.height, chunk.width)


def _stacked(device: Device, status: Array, x: Array, sizes: Sizes, bits: int) -> DeviceRows:
    """Rows of x (B, H, T, D) float32 in fixed point: (groups, T * R, D). A non-finite element sets `status`."""
    groups, rows, dim = sizes.groups, sizes.heads * sizes.tokens, int(x.shape[-1])
    if sizes.heads == 1:
        return quantise(device, status, x.reshape((groups, rows, dim)), bits)
    made = _empty_rows(device, bits, groups, rows, dim)
    args = (x, made.exponents, made.planes, status, *_numbers(sizes, dim, made.padded))
    device.launch("attention", f"attention_stack_rows_{bits}", blocks_for(groups * rows * 32, _BLOCK), _BLOCK, args)
    return made


def _unstacked(device: Device, x: Array, sums: Array | None, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """x (groups, T * R, D) float32 as (B, H, T, D), each row divided by its element of `sums`, if given."""
    if sums is None and sizes.heads == 1:
        return x.reshape(shape)
    y, dim = device.empty(shape, np.float32), int(shape[-1])
    rows = sizes.groups * sizes.heads * sizes.tokens
    grid = min(blocks_for(rows * blocks_for(dim, 4), 256), 1 << 20)
    divisor = np.uint64(0) if sums is None else sums
    device.launch("attention", "attention_unstack_rows", grid, 256, (x, divisor, y, *_numbers(sizes, dim)))
    return y


def turned(device: Device, sources: list[DeviceRows], *, ordered: bool = False) -> DeviceRows:
    """The D columns of each source's integers, with exponents 0: second operands of weighted sums over its rows.

    The matrices of all sources, which have the same sizes, follow one another.
    ordered: inside each 64 rows, row 8 i + 2 c + b stands at 16 c + 2 i + b (store_weights of attention_cells.cuh).
    """
    first = sources[0]
    batch, padded = len(sources) * first.batch, padded_length(first.rows)
    planes = empty_planes(device, first.bits, batch, first.length, padded)
    count = PLANES[first.bits]
    grid = count * first.batch * blocks_for(first.length, 64) * (padded // 64)
    for number, rows in enumerate(sources):
        sizes = (count, rows.batch, rows.rows, rows.length, rows.padded, padded, batch, number * rows.batch)
        args = (rows.planes, planes, *(np.int64(size) for size in sizes))
        device.launch("attention", f"attention_transpose_{'ordered' if ordered else 'planes'}", grid, 256, args)
    exponents = device.zeros((batch * first.length,), np.int32)
    return DeviceRows(planes, exponents, first.bits, batch, first.length, first.rows)


@dataclass(frozen=True)
class _GradientRows:
    """Of the rows dO: D, float32, and rows in fixed point; of z = dO / l rows in fixed point, whose exponents stand in
    `pairs`, int32, beside those of q. Vectors are (groups * T * R,).
    """

    inner: Array
    dout: DeviceRows
    z: DeviceRows
    pairs: Array


def _gradient_rows(device: Device, status: Array, dout: Array, cache: AttentionCache) -> _GradientRows:
    """What the backward pass takes of the rows of dout (B, H, T, D)."""
    groups, rows, dim, bits = cache.q.batch, cache.q.rows, cache.q.length, cache.q.bits
    of_dout, of_z = (_empty_rows(device, bits, groups, rows, dim) for _ in range(2))
    inner, pairs = device.empty((groups * rows,), np.float32), of_z.exponents  # nobody needs these alone
    width = 1 << (dim - 1).bit_length()
    given = (dout, cache.out, cache.row_sum, cache.q.exponents)
    results = (inner, of_dout.exponents, of_dout.planes, pairs, of_z.planes, status)
    args = (*given, *results, *_numbers(cache.sizes, dim, of_dout.padded, width))
    name, grid = f"attention_gradient_rows_{bits}", blocks_for(groups * rows * 32, _BLOCK)
    shared = 0 if width == _HELD_WIDTH else 4 * width * (_BLOCK // 32)
    device.launch("attention", name, grid, _BLOCK, args, shared=shared)
    return _GradientRows(inner, of_dout, of_z, pairs)


def _empty_rows(device: Device, bits: int, batch: int, rows: int, length: int) -> DeviceRows:
    """Room for rows in fixed point."""
    memory = planes_memory(device, bits, batch, rows, padded_length(length))
    return DeviceRows.of(memory, device.empty((batch * rows,), np.int32), bits, batch, rows, length)


def _numbers(sizes: Sizes, *more: int) -> tuple[np.int64, ...]:
    """What the kernels of rows take: groups, R, T, and what follows."""
    return tuple(np.int64(number) for number in (sizes.groups, sizes.heads, sizes.tokens, *more))
