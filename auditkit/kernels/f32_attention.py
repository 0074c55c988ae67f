"""Causal attention of the product f32 on the device (cuda/f32_attention.cu around cuda/f32_dot.cu); SPEC.md section 16.

Groups and stacked heads are those of auditkit.kernels.attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.f32_dot import F32DeviceRows, dot, finite_rows, rows, turned
from auditkit.numerics.attention import attention_scale

_BLOCK = 128  # four rows a block


@dataclass(frozen=True)
class F32AttentionCache:
    """What backward needs."""

    q: F32DeviceRows  # (groups, queries, D)
    k: F32DeviceRows  # (groups, tokens, D)
    v: F32DeviceRows  # (groups, tokens, D)
    out: Array  # (groups, queries, D) float32
    row_max: Array  # (groups * queries,) float32
    row_sum: Array  # (groups * queries,) float32
    window: int


def attention_forward(
    device: Device, status: Array, q: Array, k: Array, v: Array, *, window: int
) -> tuple[Array, F32AttentionCache]:
    """As `auditkit.numerics.f32_attention.attention_forward`; a non-finite value sets `status`."""
    rq, rk, rv = _operands(device, status, q, k, v)
    groups, queries, dim = rq.batch, rq.rows, rq.length
    e = dot(device, rq, rk)
    row_max = device.empty((groups * queries,), np.float32)
    row_sum = device.empty((groups * queries,), np.float32)
    _rows_kernel(device, "f32_attention_softmax", (e, row_max, row_sum, status), rq, rk, window)
    total = dot(device, _weights(e, rq, rk), turned(rv))
    out = _divide_rows(device, total, row_sum, dim).reshape((groups, queries, dim))
    return out.reshape(q.shape), F32AttentionCache(rq, rk, rv, out, row_max, row_sum, window)


def attention_again(
    device: Device, status: Array, q: Array, k: Array, v: Array, kept: Sequence[Array], *, window: int
) -> tuple[Array, F32AttentionCache]:
    """What `attention_forward` gave, from the `out`, `row_max` and `row_sum` of its cache."""
    out, row_max, row_sum = kept
    return out.reshape(q.shape), F32AttentionCache(*_operands(device, status, q, k, v), out, row_max, row_sum, window)


def _operands(
    device: Device, status: Array, q: Array, k: Array, v: Array
) -> tuple[F32DeviceRows, F32DeviceRows, F32DeviceRows]:
    """q (groups, queries, D), k and v (groups, tokens, D)."""
    batch, heads, tokens, dim = q.shape
    groups = batch * k.shape[1]
    shapes = (groups, heads * tokens * batch // groups, dim), (groups, tokens, dim), (groups, tokens, dim)
    rq, rk, rv = (rows(device, status, x.reshape(shape)) for x, shape in zip((q, k, v), shapes, strict=True))
    return rq, rk, rv


def attention_backward(
    device: Device, status: Array, dout: Array, cache: F32AttentionCache
) -> tuple[Array, Array, Array]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D)."""
    q, k = cache.q, cache.k
    groups, queries, tokens, dim = k.batch, q.rows, k.rows, k.length
    do = rows(device, status, dout.reshape((groups, queries, dim)))
    e = dot(device, q, k)
    ds = dot(device, do, cache.v)  # dP, becomes dS
    dots = _out_dot(device, cache.out, do.values, groups * queries, dim)
    arrays = (e, ds, cache.row_max, cache.row_sum, dots, status)
    _rows_kernel(device, "f32_attention_score_gradient", arrays, q, k, cache.window)
    g = _divide_rows(device, do.values, cache.row_sum, dim).reshape((groups, queries, dim))
    of_e, of_ds = _weights(e, q, k), _weights(ds, q, k)
    dq = dot(device, of_ds, turned(k))
    dk = dot(device, turned(of_ds), turned(q))
    dv = dot(device, turned(of_e), turned(rows(device, status, g)))
    shape = (dout.shape[0], groups // dout.shape[0], tokens, dim)
    return dq.reshape(dout.shape), dk.reshape(shape), dv.reshape(shape)


def _weights(x: Array, q: F32DeviceRows, k: F32DeviceRows) -> F32DeviceRows:
    """A matrix of scores, gradients or weights as rows over the keys."""
    return finite_rows(x.reshape((q.batch, q.rows, k.rows)))


def _rows_kernel(
    device: Device, name: str, arrays: tuple[Any, ...], q: F32DeviceRows, k: F32DeviceRows, window: int
) -> None:
    count = q.batch * q.rows
    sizes = tuple(np.int64(size) for size in (count, q.rows, k.rows, window))
    args = (*arrays, *sizes, attention_scale(k.length))
    device.launch("f32_attention", name, blocks_for(count * 32, _BLOCK), _BLOCK, args)


def _divide_rows(device: Device, x: Array, sums: Array, dim: int) -> Array:
    """Each row of x (rows, dim) divided by its element of sums (rows,), as a new array (rows, dim)."""
    rows = int(sums.shape[0])
    y = device.empty((rows, dim), np.float32)
    grid = min(blocks_for(rows * dim, 256), 1 << 20)
    device.launch("f32_attention", "f32_attention_divide_rows", grid, 256, (x, sums, y, np.int64(rows), np.int64(dim)))
    return y


def _out_dot(device: Device, out: Array, dout: Array, rows: int, dim: int) -> Array:
    """(rows,) float32 row sums of dout * out."""
    width = 1 << (dim - 1).bit_length()
    result = device.empty((rows,), np.float32)
    args = (out, dout, result, np.int64(rows), np.int64(dim), np.int64(width))
    grid = blocks_for(rows * 32, _BLOCK)
    device.launch("f32_attention", "f32_attention_out_dot", grid, _BLOCK, args, shared=4 * width * (_BLOCK // 32))
    return result
