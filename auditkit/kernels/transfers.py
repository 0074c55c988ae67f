"""Copies between the device and main memory that go on beside the device's own work.

Each direction has a stream of its own, on which copies run one after the other: both at once take no longer than one. A
copy begins when the work that was launched before it is done, and other copies of its host array; work that needs its
result waits on the device, not here.
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


Watch = Callable[[str, Callable[[], None]], object]  # told for what the device's work waits, and lets it wait


class Transfers:
    """The copies of one device. All calls come from the device's thread.

    watch: lets the device's work wait for copies; whoever measures may put another one in its place.
    """

    def __init__(self, device: Device, kept: list[Any]) -> None:
        """kept: takes what goes with the device's memory only, since on a lost device CUDA would refuse."""
        self._device: Device = weakref.proxy(device)  # which has these: it goes with the last of its arrays
        cuda = device.cupy.cuda
        with device.use():
            self.to_device, self.to_host = (cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned = cuda.PinnedMemoryPool()  # locking pages takes longer than a copy: the next step has them again
        kept += [self.to_device, self.to_host, self._pinned]
        self._under_way: list[tuple[Any, npt.NDArray[Any]]] = []  # the end of a copy, and its array in main memory
        self._coming: list[tuple[Any, Array]] = []  # the end of a copy to the device, and the array it writes
        self._leaving: list[tuple[Any, Array, int]] = []  # the end of a copy to main memory, its array, who sends it
        self.watch: Watch = lambda what, wait: wait()

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Page-locked main memory with undefined contents; of the ordinary kind where the system gives no such."""
        found = self.page_locked(shape, dtype)
        return np.empty(shape, dtype) if found is None else found

    def page_locked(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Page-locked main memory with undefined contents; None where the system gives no such."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            with self._device.use():
                memory = self._pinned.malloc(max(1, size))
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
            self._after_work(self.to_device, [values])
            array.data.copy_from_host_async(values.ctypes.data, values.nbytes, self.to_device)
            done = self.to_device.record()
        self._under_way.append((done, values))
        entry = done, array
        self._coming.append(entry)  # or its memory could be used again while it is written, if nobody asks for it

        def arrived() -> Array:
            self._wait("copies to the device", done)
            self._coming = [other for other in self._coming if other is not entry]
            return array

        return arrived

    def send(self, array: Array, values: npt.NDArray[Any], most: int, sender: int = 0) -> None:
        """Begin to copy a device array, which must not change any more, to a host array of its size.

        `values`, C-contiguous, is for `bring` and `send` alone until `finish`. most: bytes of device arrays of the same
        sender that may be kept for copies under way; what is launched next waits for the oldest beyond.
        """
        self.send_all([(array, values)], most, sender)

    def send_all(self, pairs: Sequence[tuple[Array, npt.NDArray[Any]]], most: int, sender: int = 0) -> None:
        """As `send` for each pair of a device array and a host array, which end together."""
        with self._device.use():
            self._after_work(self.to_host, [values for _, values in pairs])
            for array, values in pairs:
                array.data.copy_to_host_async(values.ctypes.data, array.nbytes, self.to_host)
            done = self.to_host.record()
        self._under_way += [(done, values) for _, values in pairs]
        self._leaving += [(done, array, sender) for array, _ in pairs]
        self._let_go(most, sender)

    def finish(self) -> None:
        """Wait here for all copies."""
        with self._device.use():
            self.to_device.synchronize()
            self.to_host.synchronize()
        self._forget_done()

    def release(self) -> None:
        """Give page-locked memory back that nobody uses."""
        self._pinned.free_all_blocks()

    def end(self) -> Callable[[], None]:
        """What waits for the copies begun so far. It may be called in any thread, and raises what CUDA says of them."""
        cuda, errors, index = self._device.cupy.cuda, self._device.errors, self._device.index
        with self._device.use():
            ends = []
            for stream in (self.to_device, self.to_host):
                ends.append(cuda.Event(block=True, disable_timing=True))  # its wait leaves the processor to others
                ends[-1].record(stream)

        def wait() -> None:
            try:
                with cuda.Device(index):  # a thread begins on device 0, which may be another rank's
                    for done in ends:
                        done.synchronize()
            except errors as error:
                raise faults.verdict_of(error, f"CUDA device {index}") from error

        return wait

    def tidy(self) -> None:
        """Let go of the device arrays whose copies are done; without waiting."""
        with self._device.use():
            self._forget_done()

    def _after_work(self, stream: Any, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Let the next copies on a stream begin after what was launched, for memory that they write or read may be in
        use there, and after those of the same host arrays.
        """
        self._forget_done()
        stream.wait_event(self._device.stream.record())
        for done, values in self._under_way:
            if any(values is array for array in arrays):
                stream.wait_event(done)

    def _forget_done(self) -> None:
        self._under_way = [one for one in self._under_way if not one[0].done]
        self._leaving = [one for one in self._leaving if not one[0].done]
        self._coming = [one for one in self._coming if not one[0].done]

    def _let_go(self, most: int, sender: int) -> None:
        own = [one for one in self._leaving if one[2] == sender]
        held = sum(array.nbytes for _, array, _ in own)
        while own and held > most:
            oldest = own.pop(0)
            held -= oldest[1].nbytes
            self._leaving = [one for one in self._leaving if one is not oldest]
            self._wait("copies to main memory", oldest[0])  # whoever gets this memory next writes after the copy

    def _wait(self, what: str, done: Any) -> None:
        """Let the work that is launched next wait for a copy."""
        with self._device.use():
            self.watch(what, lambda: self._device.stream.wait_event(done))
