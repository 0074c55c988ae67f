"""Array types of the reference and the cache-sized row blocks it works in."""

from __future__ import annotations

import ctypes
import functools
import sys
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

# Decorates every op that can overflow: an infinity is a result (a step that cannot use it ends with NonFinite), so a
# caller's np.seterr, or warnings turned into errors, must not end the step in another way.
ieee = np.errstate(all="ignore")


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep what a step frees, once in a process: the pages of a temporary are needed again at once.

    glibc returns a freed block to the system, page faults and all, while it is larger than any mapped block freed
    before; this one, never touched, has the largest size that counts (mallopt(3), M_MMAP_THRESHOLD). A step of a small
    model has 100 page faults instead of 2,000 to 3,000 and takes 3 to 5 % less time. Elsewhere nothing happens.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)


@functools.cache
def give_freed_memory_back() -> None:
    """Let the C library return what is freed to the system at once, once in a process: the opposite, for little memory.

    Blocks of 1 MiB and more get pages of their own (mallopt(3), M_MMAP_THRESHOLD). Only glibc has this.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


_MMAP_THRESHOLD = -3
_BLOCK_ELEMENTS = 32_768  # 128 KiB of binary32: a few such temporaries stay in a core's L2 cache


@functools.lru_cache(maxsize=64)
def row_blocks(rows: int, row_size: int) -> tuple[slice, ...]:
    """Slices that cut `rows` rows of `row_size` elements into cache-sized blocks.

    Used only around operations that treat every row alone, so the cut cannot change a bit.
    """
    size = max(1, _BLOCK_ELEMENTS // max(1, row_size))
    return tuple(slice(start, min(rows, start + size)) for start in range(0, rows, size))
