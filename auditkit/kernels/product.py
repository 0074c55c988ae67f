"""The products a recipe can declare on the device, under one name each; as auditkit.numerics.product."""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.kernels import attention, exact_dot, f32_attention, f32_dot
from auditkit.kernels.attention import AttentionCache
from auditkit.kernels.device import Array, Device
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.kernels.f32_attention import F32AttentionCache
from auditkit.kernels.f32_dot import F32DeviceRows
from auditkit.numerics.f32_dot import BITS


def quantise(device: Device, status: Array, x: Array, bits: int) -> DeviceRows | F32DeviceRows:
    """The rows of x (..., M, K) float32 as operands of a product of `bits` bits. A non-finite one sets `status`."""
    if bits == BITS:
        return f32_dot.rows(device, status, x)
    return exact_dot.quantise(device, status, x, bits)


def quantise_t(device: Device, status: Array, x: Array, bits: int) -> DeviceRows | F32DeviceRows:
    """The rows of the transposes of x (..., M, K) float32. A non-finite element sets `status`."""
    if bits == BITS:
        return f32_dot.rows_t(device, status, x)
    return exact_dot.quantise_t(device, status, x, bits)


def quantise_both(
    device: Device, status: Array, x: Array, bits: int
) -> tuple[DeviceRows | F32DeviceRows, DeviceRows | F32DeviceRows]:
    """`quantise` and `quantise_t` of x (..., M, K) float32. A non-finite element sets `status`."""
    if bits == BITS:
        rows = f32_dot.rows(device, status, x)
        return rows, f32_dot.turned(rows)
    return exact_dot.quantise_both(device, status, x, bits)


def quantise_keep(
    device: Device, status: Array, x: Array, bits: int
) -> tuple[DeviceRows | F32DeviceRows, DeviceRows | F32DeviceRows | Array]:
    """`quantise` of x (..., M, K) float32, and what `kept_columns` makes `quantise_t` of x from.

    Columns of 14 bits are smaller than x, and cheaper made at the same time; for 21 bits x itself is kept.
    """
    if bits == 21:
        return exact_dot.quantise(device, status, x, bits), x
    return quantise_both(device, status, x, bits)


def kept_columns(
    device: Device, status: Array, kept: DeviceRows | F32DeviceRows | Array, bits: int
) -> DeviceRows | F32DeviceRows:
    """`quantise_t` of what `quantise_keep` was given; of an array that was kept without it, as well."""
    if isinstance(kept, (DeviceRows, F32DeviceRows)):
        return kept
    return quantise_t(device, status, kept, bits)


def dot(device: Device, a: DeviceRows | F32DeviceRows, b: DeviceRows | F32DeviceRows) -> Array:
    """Every row of a with every row of b: (batch, M, N) float32, (M, N) for a batch of one. Raises Unsupported."""
    if isinstance(a, F32DeviceRows) and isinstance(b, F32DeviceRows):
        return f32_dot.dot(device, a, b)
    if isinstance(a, DeviceRows) and isinstance(b, DeviceRows):
        return exact_dot.dot(device, a, b)
    raise ValueError("operands of different products")  # a programming error, never data


def attention_forward(
    device: Device, status: Array, q: Array, k: Array, v: Array, *, window: int, bits: int
) -> tuple[Array, AttentionCache | F32AttentionCache]:
    """Causal attention of q (B, H, T, D), k and v (B, G, T, D); a non-finite value sets `status`."""
    if bits == BITS:
        return f32_attention.attention_forward(device, status, q, k, v, window=window)
    return attention.attention_forward(device, status, q, k, v, window=window, bits=bits)


def attention_again(
    device: Device, status: Array, q: Array, k: Array, v: Array, kept: Sequence[Array], *, window: int, bits: int
) -> tuple[Array, AttentionCache | F32AttentionCache]:
    """What `attention_forward` gave, from the `out`, `row_max` and `row_sum` of its cache: no score is computed."""
    if bits == BITS:
        return f32_attention.attention_again(device, status, q, k, v, kept, window=window)
    return attention.attention_again(device, status, q, k, v, kept, window=window, bits=bits)


def attention_heads(
    device: Device, q: Array, k: Array, v: Array, cache: AttentionCache | F32AttentionCache
) -> list[Array]:
    """What is to be kept of the inputs of an attention, for `attention_restored`."""
    return [q, k, v] if isinstance(cache, F32AttentionCache) else attention.attention_heads(cache)


def attention_restored(
    device: Device,
    status: Array,
    heads: Sequence[Array],
    kept: Sequence[Array],
    shape: tuple[int, ...],
    keys: int,
    *,
    window: int,
    bits: int,
) -> tuple[Array, AttentionCache | F32AttentionCache]:
    """`attention_again` of q of `shape` and so many key heads, from what `attention_heads` gave."""
    if bits == BITS:
        q, k, v = heads
        return f32_attention.attention_again(device, status, q, k, v, kept, window=window)
    return attention.attention_restored(heads, kept, shape, keys, window=window, bits=bits)


def attention_backward(
    device: Device, status: Array, dout: Array, cache: AttentionCache | F32AttentionCache
) -> tuple[Array, Array, Array]:
    """Gradients of q, k, v from dout (B, H, T, D); a non-finite value sets `status`."""
    if isinstance(cache, F32AttentionCache):
        return f32_attention.attention_backward(device, status, dout, cache)
    return attention.attention_backward(device, status, dout, cache)
