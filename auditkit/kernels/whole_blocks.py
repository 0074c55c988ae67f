"""A pool of device memory under a limit that never splits a large block.

CuPy's pool cuts what is free to the size that is asked for. The rests stay with their blocks as long as any part is
used, and under a limit they are lost: a step that needs 300 MB may fail with 400.
"""

from __future__ import annotations

import weakref
from typing import Any

LARGE = 1 << 20  # bytes; smaller blocks share one pool of CuPy's
UNIT = 128 << 10  # sizes of large blocks are whole multiples


class WholeBlocks:
    """Has the methods of `cupy.cuda.MemoryPool` that `Device` calls. Blocks of one size, rounded up, are a pool each.

    limit: bytes of all together, used or kept, those of `beside` included; may be set again. peak: the most that there
    were of large blocks.
    """

    def __init__(self, cupy: Any, small: Any, limit: int) -> None:
        """small: a pool of CuPy's, which may hold blocks already."""
        self._cupy, self._small, self.limit = cupy, small, limit
        self._pools: dict[int, Any] = {}  # by bytes of a block, the one used last at the end
        self.large_bytes = self.peak = 0  # of large blocks, used or kept: counted, for there may be a hundred pools
        self._beside: weakref.WeakSet[Any] = weakref.WeakSet()

    def beside(self, owner: Any = None) -> WholeBlocks:
        """Another pool under the same limit: what either has, the other cannot get. owner: what this one is part of."""
        self.free_all_blocks()
        made = WholeBlocks(self._cupy, self._cupy.cuda.MemoryPool(), self.limit)
        made._beside.add(owner or self)
        self._beside.add(made)
        return made

    def set_limit(self, size: int) -> None:
        """Of this pool and of those beside it."""
        for pool in (self, *self._beside):
            pool.limit = size

    def malloc(self, size: int) -> Any:
        """A block of at least so many bytes. Raises CuPy's OutOfMemoryError beyond the limit."""
        if size < LARGE:
            return self._small_block(size)
        rounded = -(-size // UNIT) * UNIT
        pool = self._pools.pop(rounded, None)
        if pool is None:
            pool = self._cupy.cuda.MemoryPool()
        self._pools[rounded] = pool
        if pool.free_bytes():
            return pool.malloc(rounded)
        if not self._make_room(rounded):
            raise self._cupy.cuda.memory.OutOfMemoryError(rounded, self.total_bytes(), self.get_limit())
        self.peak = max(self.peak, self.total_bytes() + rounded)
        try:
            found = pool.malloc(rounded)
        except self._cupy.cuda.memory.OutOfMemoryError:  # the card has less than the limit allows
            self.free_all_blocks()
            found = pool.malloc(rounded)
        self.large_bytes += rounded
        return found

    def _small_block(self, size: int) -> Any:
        self._make_room(size)  # or what is free in the pool suffices; its own limit decides
        self._small.set_limit(size=max(1, self.get_limit() - self.large_bytes))
        return self._small.malloc(size)

    def _make_room(self, size: int) -> bool:
        """Give back what is kept, the longest unused first, until a new block of `size` bytes fits; whether it does."""
        limit = self.get_limit()
        if self.total_bytes() + size <= limit:
            return True
        for pool in (*self._pools.values(), self._small):
            if pool.free_bytes():
                pool.free_all_blocks()
            self._count()
            if self.total_bytes() + size <= limit:
                return True
        return False

    def _count(self) -> None:
        self.large_bytes = sum(int(pool.total_bytes()) for pool in self._pools.values())

    @property
    def elsewhere(self) -> int:
        """Bytes of the pools beside this one."""
        return sum(int(pool.total_bytes()) for pool in self._beside) if len(self._beside) else 0

    @property
    def _all(self) -> list[Any]:
        return [self._small, *self._pools.values()]

    def get_limit(self) -> int:
        """Bytes that this pool may have now; at least 1, for 0 would be no limit."""
        return max(1, self.limit - self.elsewhere)

    def total_bytes(self) -> int:
        """Bytes that are used or kept."""
        return self.large_bytes + int(self._small.total_bytes())

    def used_bytes(self) -> int:
        """Bytes of blocks that arrays hold."""
        return sum(int(pool.used_bytes()) for pool in self._all)

    def free_bytes(self) -> int:
        """Bytes that are kept for later."""
        return sum(int(pool.free_bytes()) for pool in self._all)

    def free_all_blocks(self) -> None:
        """Give back what is kept."""
        for pool in self._all:
            pool.free_all_blocks()
        self._count()
