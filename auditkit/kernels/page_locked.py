"""Page-locked main memory, made quickly and no larger than asked for.

`cudaHostAlloc` touches and locks 2.4 GB in a second; huge pages that some threads touch, and that CUDA registers then,
come at 10 to 20 (docs/performance.md). And CuPy's pool rounds up to powers of two: sums of 92 MB take 134.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

LARGE = 2 << 20  # bytes, a huge page; smaller blocks are CuPy's
_PAGE, _MOST_THREADS = 4096, 8
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device of the process


class PageLocked:
    """Has the methods of `cupy.cuda.PinnedMemoryPool` that `Transfers` calls. Blocks are kept, and given out whole.

    All calls come from one thread, but what was given out may be given back from any.
    """

    def __init__(self, cuda: Any) -> None:
        """cuda: the module `cupy.cuda`."""
        self._runtime, self._small = cuda.runtime, cuda.PinnedMemoryPool()
        self._free: dict[int, list[_Block]] = {}  # by bytes
        self._registers = hasattr(mmap, "MADV_HUGEPAGE")  # Linux

    def malloc(self, size: int) -> Any:
        """A buffer of at least so many bytes, which goes back with its last reference. Raises what CUDA raises."""
        if size >= LARGE and self._registers:
            rounded = -(-size // _PAGE) * _PAGE
            kept = self._free.setdefault(rounded, [])
            block = kept.pop() if kept else self._made(rounded)
            if block is not None:
                return block.lent(kept.append)
        return self._small.malloc(size)

    def _made(self, size: int) -> _Block | None:
        try:
            return _Block(size, self._runtime)
        except (OSError, self._runtime.CUDARuntimeError):  # whatever the reason, CUDA's own way may do
            self._registers = False
            return None

    def free_all_blocks(self) -> None:
        """Give back what nobody uses."""
        self._small.free_all_blocks()
        for kept in self._free.values():
            while kept:
                kept.pop().unlock()


class _Block:
    """Memory that is locked as long as there is this object."""

    def __init__(self, size: int, runtime: Any) -> None:
        self._locked, self._runtime = False, runtime
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)  # or a child may keep the page that the device writes to
        with contextlib.suppress(OSError):  # a system without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        values = np.frombuffer(self._memory, np.uint8)
        _touch(values)
        self._address = int(values.ctypes.data)
        runtime.hostRegister(self._address, size, _PORTABLE)
        self._locked = True

    def lent(self, back: Callable[[_Block], None]) -> Any:
        """Its buffer; `back` is told when nobody has that any more."""
        buffer = (ctypes.c_uint8 * len(self._memory)).from_buffer(self._memory)
        weakref.finalize(buffer, back, self).atexit = False
        return buffer

    def unlock(self) -> None:
        """Before the memory goes. Raises what CUDA raises."""
        if self._locked:
            self._locked = False
            self._runtime.hostUnregister(self._address)

    def __del__(self) -> None:
        with contextlib.suppress(self._runtime.CUDARuntimeError):  # the device may be lost, or its driver at its end
            self.unlock()


def _touch(values: Any) -> None:
    """Let the system give all pages now, to several threads at a time."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    share = -(-values.size // threads // _PAGE) * _PAGE

    def one(at: int) -> None:
        values[at : at + share : _PAGE] = 0

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, range(0, values.size, share)))
    except RuntimeError:  # no thread can be started: what nobody has touched is given when it is registered
        return
