"""A model of CuPy's pool of device memory that has addresses and no memory."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20


class OutOfMemory(Exception):
    """As CuPy's OutOfMemoryError."""


class Memory:
    """A block that goes back to its pool with its last reference."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Pointer:
    """What `malloc` returns."""

    def __init__(self, mem: Memory) -> None:
        self.mem, self.ptr = mem, mem.ptr


class Card:
    """A card of so many bytes, whose blocks lie one behind the other."""

    def __init__(self, size: int) -> None:
        self.size, self.used, self._next = size, 0, 1 << 32

    def malloc(self, size: int) -> int:
        """As cudaMalloc."""
        if self.used + size > self.size:
            raise OutOfMemory
        self.used += size
        self._next += size
        return self._next - size

    def free(self, size: int) -> None:
        """As cudaFree."""
        self.used -= size


class Keeping:
    """A pool that keeps whole blocks and gives one out again for the same size."""

    def __init__(self, card: Card) -> None:
        self._card, self._limit, self._used = card, 0, 0
        self._free: dict[int, list[int]] = {}  # addresses by bytes

    def malloc(self, size: int) -> Pointer:
        """Raises OutOfMemory beyond the limit or the card's memory."""
        kept = self._free.get(size)
        if not kept and self._limit and self.total_bytes() + size > self._limit:
            self.free_all_blocks()
            if self.total_bytes() + size > self._limit:
                raise OutOfMemory
        memory = Memory(kept.pop() if kept else self._card.malloc(size))
        self._used += size
        weakref.finalize(memory, self._back, memory.ptr, size)
        return Pointer(memory)

    def _back(self, ptr: int, size: int) -> None:
        self._used -= size
        self._free.setdefault(size, []).append(ptr)

    def set_limit(self, size: int) -> None:
        """Bytes, 0 for none."""
        self._limit = size

    def get_limit(self) -> int:
        """Bytes, 0 for none."""
        return self._limit

    def total_bytes(self) -> int:
        """Used or kept."""
        return self._used + self.free_bytes()

    def used_bytes(self) -> int:
        """Of blocks that are held."""
        return self._used

    def free_bytes(self) -> int:
        """Kept for later."""
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def free_all_blocks(self) -> None:
        """Give back what is kept."""
        for size, blocks in self._free.items():
            self._card.free(size * len(blocks))
        self._free.clear()


def cupy(size: int) -> Any:
    """What a pool needs of the module `cupy`, with a card of so many bytes."""
    card = Card(size)
    runtime = SimpleNamespace(memGetInfo=lambda: (card.size - card.used, card.size))
    memory = SimpleNamespace(OutOfMemoryError=OutOfMemory)
    return SimpleNamespace(cuda=SimpleNamespace(MemoryPool=lambda: Keeping(card), memory=memory, runtime=runtime))
