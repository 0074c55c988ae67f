"""The memory of one device, and how it is given back."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from typing import Any

from auditkit.kernels import faults
from auditkit.kernels.slab import Slab
from auditkit.kernels.whole_blocks import WholeBlocks


class Memory:
    """A pool of memory of one device, given back when no device, recording or array holds it any more.

    CuPy's own pool would keep what is free in it for the rest of the process.
    """

    def __init__(self, cupy: Any, device: Any, *kept: Any, beside: Memory | None = None) -> None:
        """kept: what else of CUDA goes with it. beside: whose limit, if it has one, is for both together."""
        self._cupy, self._device = cupy, device
        pool = None if beside is None else beside.pool
        self.pool: Any = pool.beside() if isinstance(pool, (Slab, WholeBlocks)) else cupy.cuda.MemoryPool()
        self.kept = list(kept)
        self._most: int = 0 if beside is None else beside._most
        self._give_back_at_the_end()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit besides the environment's."""
        return isinstance(self.pool, (Slab, WholeBlocks))

    @property
    def most(self) -> int:
        """The environment's limit in bytes, 0 for none."""
        return self._most if self.is_limited else int(self.pool.get_limit())

    def limit(self, size: int, *, at_once: bool) -> None:
        """Let all that is used or kept have so many bytes at most, and the environment's limit; at_once: see Slab."""
        self._most = self.most
        allowed = min(size, self._most) if self._most else size
        if isinstance(self.pool, Slab):
            self.pool.set_limit(allowed, at_once=at_once)
        elif isinstance(self.pool, WholeBlocks):
            self.pool.set_limit(allowed)
        else:
            self._giving_back.detach()
            self.pool = Slab(self._cupy, self.pool, allowed, at_once=at_once)
            self._give_back_at_the_end()

    def _give_back_at_the_end(self) -> None:
        self._giving_back = weakref.finalize(self, _give_back, self._device, self.pool, faults.kinds(self._cupy))
        self._giving_back.atexit = False  # the process's end does it as well

    def abandon(self) -> None:
        """Never give anything back: the device is lost, CUDA would refuse, and CuPy would print that."""
        self._giving_back.detach()
        for held in (self.pool, *self.kept):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _give_back(device: Any, pool: Any, errors: tuple[type[Exception], ...]) -> None:
    with suppress(*errors), device:
        device.synchronize()  # copies may be under way, from and to what goes with the pool
        pool.free_all_blocks()
