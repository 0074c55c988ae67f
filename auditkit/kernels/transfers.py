"""Copies between the device and main memory that go on beside the device's own work.

They run on a stream of their own, one after the other. A copy begins when the work that was launched before it is done;
work that needs its result waits on the device, not here.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auditkit.errors import Unsupported
from auditkit.kernels import faults

if TYPE_CHECKING:
    from auditkit.kernels.device import Array, Device


class Transfers:
    """The copies of one device. All calls come from the device's thread."""

    def __init__(self, device: Device, kept: list[Any]) -> None:
        """kept: takes what goes with the device's memory only, since on a lost device CUDA would refuse."""
        self._device: Device = weakref.proxy(device)  # which has these: it goes with the last of its arrays
        with device.use():
            self.stream = device.cupy.cuda.Stream(non_blocking=True)
        kept.append(self.stream)
        self._under_way: list[tuple[Any, npt.NDArray[Any]]] = []  # the end of a copy, and its array in main memory
        self._coming: list[tuple[Any, Array]] = []  # the end of a copy to the device, and the array it writes
        self._leaving: list[tuple[Any, Array]] = []  # the end of a copy to main memory, and the array it reads

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Page-locked main memory with undefined contents; of the ordinary kind where the system gives no such."""
        found = self.page_locked(shape, dtype)
        return np.empty(shape, dtype) if found is None else found

    def page_locked(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Page-locked main memory with undefined contents; None where the system gives no such."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        cuda = self._device.cupy.cuda
        try:
            with self._device.use():
                memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, size)), 0)
        except Unsupported:
            return None
        return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)

    def bring(self, values: npt.NDArray[Any]) -> Callable[[], Array]:
        """Begin to copy a C-contiguous host array, which must not change meanwhile, to the device.

        The result, called once, gives the device array, for work that is launched from then on. Raises Unsupported for
        too little memory.
        """
        array = self._device.empty(values.shape, values.dtype)
        with self._device.use():
            self._after_work()
            array.data.copy_from_host_async(values.ctypes.data, values.nbytes, self.stream)
            done = self.stream.record()
        self._under_way.append((done, values))
        entry = done, array
        self._coming.append(entry)  # or its memory could be used again while it is written, if nobody asks for it

        def arrived() -> Array:
            with self._device.use():
                self._device.stream.wait_event(done)
            self._coming = [other for other in self._coming if other is not entry]
            return array

        return arrived

    def send(self, array: Array, values: npt.NDArray[Any], most: int) -> None:
        """Begin to copy a device array, which must not change any more, to a host array of its size.

        `values`, C-contiguous, is for `bring` alone until `finish`. most: bytes of device arrays that may be kept for
        copies under way; what is launched next waits for the oldest beyond.
        """
        self.send_all([(array, values)], most)

    def send_all(self, pairs: Sequence[tuple[Array, npt.NDArray[Any]]], most: int) -> None:
        """As `send` for each pair of a device array and a host array, which end together."""
        with self._device.use():
            self._after_work()
            for array, values in pairs:
                array.data.copy_to_host_async(values.ctypes.data, array.nbytes, self.stream)
            done = self.stream.record()
        self._under_way += [(done, values) for _, values in pairs]
        self._leaving += [(done, array) for array, _ in pairs]
        self._let_go(most)

    def finish(self) -> None:
        """Wait here for all copies."""
        with self._device.use():
            self.stream.synchronize()
        self._let_go(0)

    def end(self) -> Callable[[], None]:
        """What waits for the copies begun so far. It may be called in any thread, and raises what CUDA says of them."""
        cuda, errors, index = self._device.cupy.cuda, self._device.errors, self._device.index
        with self._device.use():
            done = cuda.Event(block=True, disable_timing=True)  # its wait leaves the processor to others
            done.record(self.stream)

        def wait() -> None:
            try:
                with cuda.Device(index):  # a thread begins on device 0, which may be another rank's
                    done.synchronize()
            except errors as error:
                raise faults.verdict_of(error, f"CUDA device {index}") from error

        return wait

    def tidy(self) -> None:
        """Let go of the device arrays whose copies are done; without waiting."""
        with self._device.use():
            self._forget_done()

    def _after_work(self) -> None:
        """Let the next copy begin after what was launched: memory that it writes or reads may be in use there."""
        self._forget_done()
        self.stream.wait_event(self._device.stream.record())

    def _forget_done(self) -> None:
        self._under_way = [(done, values) for done, values in self._under_way if not done.done]
        self._leaving = [(done, array) for done, array in self._leaving if not done.done]
        self._coming = [(done, array) for done, array in self._coming if not done.done]

    def _let_go(self, most: int) -> None:
        held = sum(array.nbytes for _, array in self._leaving)
        while self._leaving and held > most:
            done, array = self._leaving.pop(0)
            held -= array.nbytes
            with self._device.use():
                self._device.stream.wait_event(done)  # so that whoever gets this memory next writes after the copy
