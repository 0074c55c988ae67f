"""Cache-sized blocks for the elementwise ops, and the one NaN they may return (SPEC.md section 6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from auditkit.numerics.arrays import F32

U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]

BLOCK = 32_768  # elements: 128 KiB of binary32, so that input, output and a few temporaries stay in a core's L2 cache

CANONICAL_NAN = 0x7FC00000  # machines disagree on the sign and payload of a NaN they make; every op writes this one


def f32(bits: int) -> np.float32:
    """The binary32 value with this bit pattern."""
    return np.float32(np.array(bits, np.uint32).view(np.float32).item())


def f64(bits: int) -> np.float64:
    """The binary64 value with this bit pattern."""
    return np.float64(np.array(bits, np.uint64).view(np.float64).item())


def apply_blocks(block_op: Callable[[F32, F32], None], x: F32, out: F32 | None) -> F32:
    """Run block_op(x block, out block) over flat C-order blocks; elements are treated alone, so the cut changes no bit.

    x: float32 of any shape and strides, not changed unless out is x. out: float32 of the same shape, or None for a new
    C-order array. Returns out. Raises TypeError for another dtype, ValueError for another shape of out.
    """
    if x.dtype != np.float32 or (out is not None and out.dtype != np.float32):
        raise TypeError("elementwise ops take and give float32 arrays")
    if out is not None and out.shape != x.shape:
        raise ValueError(f"out has shape {out.shape}, expected {x.shape}")
    result = out if out is not None and _writable_in_place(x, out) else np.empty(x.shape, np.float32)
    source, target = x.reshape(-1), result.reshape(-1)  # reshape copies x where its strides demand it
    with np.errstate(all="ignore"):  # inf and 0 are results here; a caller's seterr must not turn them into exceptions
        for start in range(0, source.size, BLOCK):
            block_op(source[start : start + BLOCK], target[start : start + BLOCK])
    if out is None or result is out:
        return result
    out[...] = result
    return out


def _writable_in_place(x: F32, out: F32) -> bool:
    """Whether blocks may be written straight to out: C order, and out is x itself or shares no memory with it."""
    if not out.flags.c_contiguous:
        return False
    same = x.flags.c_contiguous and x.ctypes.data == out.ctypes.data
    return same or not np.may_share_memory(x, out)
