"""A device that computes nothing and counts what it holds, for the memory of steps that no test could compute."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from auditkit.kernels.returned import Returned
from auditkit.kernels.transfers import Coming
from auditkit.kernels.whole_blocks import LARGE, UNIT
from auditkit.kernels.zero_pages import ZeroPages
from tests.kernels.emulator.device import EmulatedArray
from tests.kernels.pools import OutOfMemory

_ZEROED = 1 << 16  # bytes up to which zeros are written: what a test reads


class VirtualTransfers:
    """Copies that are under way for ever, until they must end: as much memory as they may hold is held."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device: VirtualDevice = weakref.proxy(device)
        self._leaving: list[tuple[EmulatedArray, int]] = []

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """As Transfers."""
        return np.empty(shape, dtype)

    def bring(self, values: npt.NDArray[Any], parts: int = 1) -> Coming:
        """As Transfers."""
        coming: Any = Coming(cast(Any, self), values, cast(Any, self._device.empty(values.shape, values.dtype)), parts)
        coming.begin()
        return coming

    def begin(self, pieces: Sequence[tuple[Any, Any, int, int]]) -> list[Any]:
        """As Transfers."""
        return list(pieces)

    def arrived(self, copies: Sequence[Any]) -> None:
        """As Transfers."""
        assert copies

    def bring_all(self, values: Sequence[npt.NDArray[Any]]) -> Callable[[], list[EmulatedArray]]:
        """As Transfers."""
        arrays = [self._device.empty(each.shape, each.dtype) for each in values]
        return lambda: arrays

    def send_all(self, pairs: Sequence[tuple[EmulatedArray, Any]], most: int, sender: int = 0) -> None:
        """As Transfers."""
        self._leaving += [(array, sender) for array, _ in pairs]
        own = [one for one in self._leaving if one[1] == sender]
        held = sum(array.nbytes for array, _ in own)
        while own and held > most:
            oldest = own.pop(0)
            held -= oldest[0].nbytes
            self._leaving = [one for one in self._leaving if one is not oldest]

    def finish(self) -> None:
        """As Transfers."""
        self._leaving = []


class VirtualDevice:
    """Has what CudaOps asks of a Device. Memory is not touched, so that the system gives none.

    peak: the most bytes at a time, by what `part` said then; blocks as those of a pool under a limit. pool: what the
    memory is taken from, if it may run out.
    """

    index, name, architecture, multiprocessors, recording = 0, "virtual", "90", 132, False

    def __init__(self, pool: Any = None) -> None:
        self._pool = pool
        self.used, self.part = 0, ""
        self.peaks: dict[str, int] = {}
        self.returned = Returned()
        self._zeros = ZeroPages()
        self.transfers = VirtualTransfers(self)

    @property
    def peak(self) -> int:
        """Of all parts."""
        return max(self.peaks.values())

    @contextmanager
    def use(self) -> Iterator[None]:
        """As Device.use."""
        yield

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> EmulatedArray:
        """As Device.empty."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        held, made = size if size < LARGE else -(-size // UNIT) * UNIT, np.empty(shape, dtype)
        self.used += held
        self.peaks[self.part] = max(self.peaks.get(self.part, 0), self.used)
        weakref.finalize(made, self._free, held, self._pool and self._block(size))
        return made.view(EmulatedArray)

    def _block(self, size: int) -> Any:
        """As Device: if there is nothing, once more when all copies have let go of what they hold."""
        try:
            return self._pool.malloc(size)
        except OutOfMemory:
            self.transfers.finish()
            return self._pool.malloc(size)

    def _free(self, size: int, block: Any) -> None:
        self.used -= size

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> EmulatedArray:
        """As Device.zeros, for small arrays."""
        made = self.empty(shape, dtype)
        if made.nbytes <= _ZEROED:
            made.view(np.ndarray)[...] = 0
        return made

    def zero_words(self, count: int, *, kept: bool = False) -> EmulatedArray:
        """As Device.zero_words: parts of pages, which lie where other arrays do."""
        return self._zeros.take(count, lambda size: self.empty((size,), np.uint32), kept=kept)

    def upload(self, array: npt.NDArray[Any]) -> EmulatedArray:
        """Memory for the array."""
        return self.empty(array.shape, array.dtype)

    def download(self, array: EmulatedArray) -> npt.NDArray[Any]:
        """Zeros of its shape."""
        self.returned.check(self)  # type: ignore[arg-type]  # it plays a Device
        return np.zeros(array.shape, array.dtype)

    def address(self, array: EmulatedArray) -> int:
        """As Device.address."""
        return int(array.ctypes.data)

    def nothing(self, *_: Any, **__: Any) -> None:
        """Copies and launches."""

    clear = copy = write = launch = nothing
