"""A pool of device memory under a limit that takes one block from the device, and gives parts of it out.

A pool that gives blocks back to have others waits for the device with each (cudaFree does), and a plan that fills most
of its limit did so 80 times for four micro-batches. Here nothing is given back before `free_all_blocks`.

Blocks of 400 MiB or more are taken from the end of what is free, smaller ones from its beginning, so that a small one
that stays does not divide the room for large ones: what plans need then fits into 0.88 to 0.98 of what they count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any

from auditkit.kernels.whole_blocks import LARGE, UNIT, WholeBlocks

FROM_THE_END = 400 << 20  # bytes
BESIDE, SHARE = 64 << 20, 64  # what is left for small blocks: bytes of the limit, and one part in so many of it
LEFT = 64 << 20  # bytes of the card that are left to the driver, if the card has less than the limit


class _Part:
    """A part of the block, which it keeps alive; goes back with its last reference."""

    __slots__ = ("_size", "_to", "mem", "ptr")

    def __init__(self, whole: Any, ptr: int, size: int, to: deque[tuple[int, int]]) -> None:
        self.mem, self.ptr, self._size, self._to = whole.mem, ptr, size, to

    def __del__(self) -> None:
        self._to.append((self.ptr, self._size))


class Slab:
    """Has the methods of `cupy.cuda.MemoryPool` that `Device` calls.

    What finds no place in the block gets one of its own, as far as the limit allows; so does everything where the
    device has no such block. All calls come from one thread, but a part may be given back from any.
    """

    def __init__(self, cupy: Any, small: Any, limit: int, *, at_once: bool) -> None:
        """small: a pool of CuPy's, which may hold blocks already. limit: bytes of all together, used or kept.

        at_once: whether there is one block; else this is WholeBlocks.
        """
        self._cupy, self._small, self._at_once = cupy, small, at_once
        self._source = cupy.cuda.MemoryPool()
        self._others = WholeBlocks(cupy, small, limit)
        self._limit, self._taken, self._used = limit, 0, 0
        self._whole: Any = None
        self._free: list[tuple[int, int]] = []  # address and bytes, by address; no two are neighbours
        self._returned: deque[tuple[int, int]] = deque()  # whoever collects garbage may be in the middle of `malloc`
        self._largest = 0

    @property
    def limit(self) -> int:
        """Bytes of all together, those of pools beside this one included; may be set again."""
        return self._limit

    @limit.setter
    def limit(self, size: int) -> None:
        """Of this pool alone."""
        self._limit = size
        self._others.limit = max(0, size - self._taken)

    @property
    def peak(self) -> int:
        """The most bytes that there were of large blocks."""
        return max(self._largest, self._taken + self._others.peak)

    def beside(self) -> WholeBlocks:
        """Another pool under the same limit: what either has, the other cannot get."""
        self.free_all_blocks()
        made = self._others.beside(self)
        made.limit = self._limit
        return made

    def set_limit(self, size: int, *, at_once: bool) -> None:
        """Of this pool and of those beside it; at_once: as at the beginning, from the next large array on."""
        self.free_all_blocks()
        self._others.set_limit(size)
        self.limit, self._at_once = size, at_once

    def malloc(self, size: int) -> Any:
        """A block of at least so many bytes. Raises CuPy's OutOfMemoryError beyond the limit."""
        if self._whole is None and self._at_once and size >= LARGE:
            self._take()
        if self._whole is None:
            return self._others.malloc(size)
        if size < LARGE:
            return self._small_block(size)
        return self._part(-(-size // UNIT) * UNIT) or self._others.malloc(size)

    def _small_block(self, size: int) -> Any:
        """From CuPy's pool, as long as there is room beside the block; then a part of that; then what others keep."""
        self._small.set_limit(size=max(1, self.get_limit() - self._taken - self._others.large_bytes))
        try:
            return self._small.malloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError:
            return self._part(-(-size // UNIT) * UNIT) or self._others.malloc(size)

    def _take(self) -> None:
        """Get the block, if there is room for one."""
        self._others.free_all_blocks()
        limit, (free, _) = self.get_limit(), self._cupy.cuda.runtime.memGetInfo()
        beside = max(self._others.total_bytes(), BESIDE + limit // SHARE)
        room = min(limit - beside, int(free) - LEFT) // UNIT * UNIT
        try:
            self._whole = self._source.malloc(room) if room >= LARGE else None
        except self._cupy.cuda.memory.OutOfMemoryError:
            self._whole = None
        self._at_once = self._whole is not None
        if self._at_once:
            self._taken, self._free = room, [(int(self._whole.ptr), room)]
            self._largest = max(self._largest, room)
            self.limit = self._limit

    def _part(self, size: int) -> _Part | None:
        """So many bytes of the block; None if they are not free in one piece, or the limit is smaller now."""
        self._collect()
        limit = self.get_limit()
        if self.total_bytes() > limit and self._used + self._others.total_bytes() + size > limit:
            return None
        free, large = self._free, size >= FROM_THE_END
        for at in range(len(free) - 1, -1, -1) if large else range(len(free)):
            address, there = free[at]
            if there >= size:
                break
        else:
            return None
        left = there - size
        if not left:
            del free[at]
        elif large:
            free[at] = address, left
            address += left
        else:
            free[at] = address + size, left
        self._used += size
        return _Part(self._whole, address, size, self._returned)

    def _collect(self) -> None:
        """Take parts back that nobody holds any more, and join neighbours."""
        while self._returned:
            self._put_back(*self._returned.popleft())

    def _put_back(self, address: int, size: int) -> None:
        self._used -= size
        free, at = self._free, bisect_left(self._free, (address, 0))
        if at < len(free) and free[at][0] == address + size:
            size += free.pop(at)[1]
        if at and sum(free[at - 1]) == address:
            free[at - 1] = free[at - 1][0], free[at - 1][1] + size
        else:
            free.insert(at, (address, size))

    def get_limit(self) -> int:
        """Bytes that this pool may have now; at least 1, for 0 would be no limit."""
        return max(1, self._limit - self._others.elsewhere)

    def total_bytes(self) -> int:
        """Bytes that are used or kept."""
        return self._taken + self._others.total_bytes()

    def used_bytes(self) -> int:
        """Bytes of blocks that arrays hold."""
        self._collect()
        return self._used + self._others.used_bytes()

    def free_bytes(self) -> int:
        """Bytes that are kept for later."""
        return self.total_bytes() - self.used_bytes()

    def free_all_blocks(self) -> None:
        """Give back what is kept: of the block nothing as long as an array lies in it."""
        self._collect()
        if not self._used:
            self._whole, self._taken, self._free = None, 0, []
            self.limit = self._limit
        self._source.free_all_blocks()
        self._others.free_all_blocks()
