"""Causal attention on the device (cuda/attention.cu around cuda/exact_dot.cu); SPEC.md section 8.

Scores and weights of all groups are matrices in memory: (groups, queries, tokens), a group being one sequence and one
key head with its R query heads stacked, queries = R * T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot import dot, quantise
from auditkit.kernels.exact_dot_planes import PLANES, DeviceRows, empty_planes, padded_length
from auditkit.numerics.attention import attention_scale

_BLOCK = 128  # four rows a block
_COLUMN_HEIGHT = 256


@dataclass(frozen=True)
class AttentionCache:
    """What backward needs; rows as in `auditkit.numerics.attention.AttentionCache`."""

    q: DeviceRows
    k: DeviceRows
    v: DeviceRows
    out: Array  # (groups, queries, D) float32
    row_max: Array  # (groups * queries,) float32
    row_sum: Array  # (groups * queries,) float32
    window: int

    @property
    def groups(self) -> int:
        """Sequences times key heads."""
        return self.k.batch

    @property
    def queries(self) -> int:
        """Rows of a group: query heads of a key head times tokens."""
        return self.q.rows

    @property
    def tokens(self) -> int:
        """Keys of a group."""
        return self.k.rows

    @property
    def dim(self) -> int:
        """Elements of a head."""
        return self.k.length


def attention_forward(
    device: Device, status: Array, q: Array, k: Array, v: Array, *, window: int, bits: int
) -> tuple[Array, AttentionCache]:
    """As `auditkit.numerics.attention.attention_forward`, on device arrays; a non-finite value sets `status`."""
    batch, heads, tokens, dim = q.shape
    groups = batch * k.shape[1]
    queries = heads * tokens * batch // groups
    rq = quantise(device, status, q.reshape((groups, queries, dim)), bits)
    rk = quantise(device, status, k.reshape((groups, tokens, dim)), bits)
    rv = quantise(device, status, v.reshape((groups, tokens, dim)), bits)
    scores = dot(device, rq, rk)
    rows = groups * queries
    row_max, row_sum = device.empty((rows,), np.float32), device.empty((rows,), np.float32)
    weights = _weight_rows(device, bits, groups, queries, tokens)
    _rows_kernel(
        device, f"attention_softmax_{bits}", weights, window, tokens, dim,
        (scores, rv.exponents, row_max, row_sum, weights.exponents, weights.planes, status),
    )  # fmt: skip
    total = dot(device, weights, _turned(device, rv))
    out = divide_rows(device, total, row_sum, dim).reshape((groups, queries, dim))
    return out.reshape(q.shape), AttentionCache(rq, rk, rv, out, row_max, row_sum, window)


def attention_backward(device: Device, status: Array, dout: Array, cache: AttentionCache) -> tuple[Array, Array, Array]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D)."""
    groups, queries, tokens, dim = cache.groups, cache.queries, cache.tokens, cache.dim
    bits, rows = cache.q.bits, groups * queries
    stacked = dout.reshape((groups, queries, dim))
    scores = dot(device, cache.q, cache.k)
    ds = dot(device, quantise(device, status, stacked, bits), cache.v)  # dP, becomes dS
    out_dots = out_dot(device, cache.out, stacked, rows, dim)
    weights = _weight_rows(device, bits, groups, queries, tokens)
    _rows_kernel(
        device, f"attention_score_gradient_{bits}", weights, cache.window, tokens, dim,
        (scores, ds, cache.row_max, cache.row_sum, out_dots, cache.k.exponents, weights.exponents, weights.planes,
        status),
    )  # fmt: skip
    dq = dot(device, weights, _turned(device, cache.k))
    scaled = divide_rows(device, stacked, cache.row_sum, dim).reshape((groups, queries, dim))
    rg = quantise(device, status, scaled, bits)
    of_ds, of_e = _column_bounds(device, cache, ds, rg)
    dk = dot(device, _columns(device, ds, cache.q, of_ds, tokens), _turned(device, cache.q))
    dv = dot(device, _columns(device, scores, rg, of_e, tokens), _turned(device, rg))
    shape = (dout.shape[0], groups // dout.shape[0], tokens, dim)
    return dq.reshape(dout.shape), dk.reshape(shape), dv.reshape(shape)


def divide_rows(device: Device, x: Array, sums: Array, dim: int) -> Array:
    """Each row of x (rows, dim) divided by its element of sums (rows,), as a new array (rows, dim)."""
    rows = int(sums.shape[0])
    y = device.empty((rows, dim), np.float32)
    grid = min(blocks_for(rows * dim, 256), 1 << 20)
    device.launch("attention", "attention_divide_rows", grid, 256, (x, sums, y, np.int64(rows), np.int64(dim)))
    return y


def _rows_kernel(
    device: Device, name: str, weights: DeviceRows, window: int, tokens: int, dim: int, arrays: tuple[Array, ...]
) -> None:
    rows = weights.batch * weights.rows
    sizes = (rows, weights.rows, tokens, window, weights.padded)
    args = (*arrays, *(np.int64(size) for size in sizes), attention_scale(dim))
    device.launch("attention", name, blocks_for(rows * 32, _BLOCK), _BLOCK, args)


def _weight_rows(device: Device, bits: int, groups: int, queries: int, tokens: int) -> DeviceRows:
    """Room for the weights of `queries` rows over `tokens` keys of each group."""
    planes = empty_planes(device, bits, groups, queries, padded_length(tokens))
    return DeviceRows(planes, device.empty((groups * queries,), np.int32), bits, groups, queries, tokens)


def _turned(device: Device, rows: DeviceRows) -> DeviceRows:
    """The D columns of the rows' integers, with exponents 0: the second operand of a weighted sum over the rows."""
    padded = padded_length(rows.rows)
    count = PLANES[rows.bits]
    planes = empty_planes(device, rows.bits, rows.batch, rows.length, padded)
    grid = count * rows.batch * blocks_for(rows.length, 64) * (padded // 64)
    sizes = (count, rows.batch, rows.rows, rows.length, rows.padded, padded)
    args = (rows.planes, planes, *(np.int64(size) for size in sizes))
    device.launch("attention", "attention_transpose_planes", grid, 256, args)
    exponents = device.zeros((rows.batch * rows.length,), np.int32)
    return DeviceRows(planes, exponents, rows.bits, rows.batch, rows.length, rows.rows)


def out_dot(device: Device, out: Array, dout: Array, rows: int, dim: int) -> Array:
    """(rows,) float32 row sums of dout * out."""
    width = 1 << (dim - 1).bit_length()
    result = device.empty((rows,), np.float32)
    args = (out, dout, result, np.int64(rows), np.int64(dim), np.int64(width))
    grid = blocks_for(rows * 32, _BLOCK)
    device.launch("attention", "attention_out_dot", grid, _BLOCK, args, shared=4 * width * (_BLOCK // 32))
    return result


def _column_bounds(device: Device, cache: AttentionCache, ds: Array, rg: DeviceRows) -> tuple[Array, Array]:
    """Bounds of every key, int32 (groups * tokens,): of dS against the rows of q, and of e against the rows of dO /
    l.
    """
    groups, queries, tokens = cache.groups, cache.queries, cache.tokens
    count = groups * tokens
    of_ds, of_e = device.empty((count,), np.int32), device.empty((count,), np.int32)
    preset = (of_ds, of_e, np.int64(count))
    device.launch("attention", "attention_preset_bounds", blocks_for(count, 256), 256, preset)
    sizes = tuple(np.int64(size) for size in (groups, queries, tokens, cache.window, _COLUMN_HEIGHT))
    grid = groups * blocks_for(tokens, 32) * blocks_for(queries, _COLUMN_HEIGHT)
    args = (ds, cache.q.exponents, rg.exponents, of_ds, of_e, *sizes)
    device.launch("attention", "attention_column_bounds", grid, 256, args)
    device.launch("attention", "attention_settle_bounds", blocks_for(count, 256), 256, (of_ds, np.int64(count)))
    return of_ds, of_e


def _columns(device: Device, weights: Array, rows: DeviceRows, bounds: Array, tokens: int) -> DeviceRows:
    """The transposed weights (groups, queries, tokens) as fixed-point rows over the queries, one for each key."""
    groups, queries, bits = rows.batch, rows.rows, rows.bits
    padded = padded_length(queries)
    planes = empty_planes(device, bits, groups, tokens, padded)
    grid = groups * blocks_for(tokens, 64) * (padded // 64)
    sizes = tuple(np.int64(size) for size in (groups, queries, tokens, padded))
    args = (weights, rows.exponents, bounds, planes, *sizes)
    device.launch("attention", f"attention_transposed_weights_{bits}", grid, 256, args)
    return DeviceRows(planes, bounds, bits, groups, tokens, queries)
