"""Copies between the device and main memory that go on beside the device's own work.

Each direction has a stream of its own, on which copies run one after the other: both at once take no longer than one. A
copy begins when the work that was launched before it is done, and other copies of its host array; work that needs its
result waits on the device, not here.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auditkit.errors import Unsupported
from auditkit.kernels import faults
from auditkit.kernels.page_locked import PageLocked

if TYPE_CHECKING:
    from auditkit.kernels.device import Array, Device


@dataclass(eq=False)
class _Copy:
    """A copy: its end, its array in main memory, and the device's until that may go; who sends it."""

    done: Any
    values: npt.NDArray[Any]
    array: Array | None
    sender: int = 0


class Coming:
    """A host array on its way to the device, in parts, so that what is needed sooner need not wait for all of it."""

    def __init__(self, transfers: Transfers, values: npt.NDArray[Any], array: Array, parts: int) -> None:
        self._transfers, self._values, self._array = transfers, values, array
        self._size = -(-values.nbytes // parts // 256) * 256 or 1  # of a part
        self._at, self._copies = 0, list[_Copy]()

    def begin(self) -> None:
        """Begin with the next part, if there is one left."""
        first, stop = self._at, min(self._values.nbytes, self._at + self._size)
        if first < stop or not self._copies:
            self._copies += self._transfers.begin([(self._array, self._values, first, stop)])
            self._at = stop

    @property
    def left(self) -> int:
        """Parts that have not begun."""
        return -(-(self._values.nbytes - self._at) // self._size)

    def end(self) -> None:
        """Want no more of it: its memory is free for others when what has begun is written."""
        self._transfers.arrived(self._copies)

    def __call__(self) -> Array:
        """The device array, for work that is launched from then on; once."""
        while self._at < self._values.nbytes:
            self.begin()
        self._transfers.arrived(self._copies)
        return self._array


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
        self._pinned = PageLocked(cuda)  # locking pages takes longer than a copy: the next step has them again
        self._locked = False  # whether any of it was ever asked for
        self._aside: list[Any] = []  # pools whose memory is not given out again
        self._free: Callable[[], int | None] = lambda: None
        self._kept = kept
        kept += [self.to_device, self.to_host, self._pinned]
        self._coming: deque[_Copy] = deque()  # under way to the device, in the order of their ends
        self._leaving: deque[_Copy] = deque()  # and to main memory
        self._last: dict[int, _Copy] = {}  # the last one under way of a host array, by its id
        self.watch: Watch = lambda what, wait: wait()

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Page-locked main memory with undefined contents; of the ordinary kind where the system gives no such.

        Raises Unsupported for too little main memory beside what is set aside.
        """
        self._check_room(math.prod(shape) * np.dtype(dtype).itemsize)
        found = self.page_locked(shape, dtype)
        return np.empty(shape, dtype) if found is None else found

    def page_locked(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Page-locked main memory with undefined contents; None where the system gives no such."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._locked = True
        with self._device.use():
            try:
                memory = self._pinned.malloc(max(1, size))
            except self._device.errors:  # whatever the reason: an error that CUDA keeps comes again with the next call
                return None
        return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)

    def bring(self, values: npt.NDArray[Any], parts: int = 1) -> Coming:
        """Begin to copy a C-contiguous host array, which must not change meanwhile, to the device: the first of so many
        parts of it. Raises Unsupported for too little memory.
        """
        coming = Coming(self, values, self._device.empty(values.shape, values.dtype), parts)
        coming.begin()
        return coming

    def bring_all(self, values: Sequence[npt.NDArray[Any]]) -> Callable[[], list[Array]]:
        """Begin to copy C-contiguous host arrays, which must not change meanwhile, to the device.

        The result, called once, gives the device arrays, for work that is launched from then on. Raises Unsupported for
        too little memory.
        """
        arrays = [self._device.empty(each.shape, each.dtype) for each in values]
        copies = self.begin([(array, each, 0, each.nbytes) for array, each in zip(arrays, values, strict=True)])

        def arrived() -> list[Array]:
            self.arrived(copies)
            return arrays

        return arrived

    def begin(self, pieces: Sequence[tuple[Array, npt.NDArray[Any], int, int]]) -> list[_Copy]:
        """Begin to copy bytes `first` to `stop` - 1 of each host array to its device array; they end together."""
        with self._device.use():
            self._after_work(self.to_device, [values for _, values, _, _ in pieces])
            for array, values, first, stop in pieces:
                (array.data + first).copy_from_host_async(values.ctypes.data + first, stop - first, self.to_device)
            done = self.to_device.record()
        copies = [_Copy(done, values, array) for array, values, _, _ in pieces]
        for copy in copies:
            self._begun(self._coming, copy)  # or its memory could be used again while it is written, if nobody asks
        return copies

    def arrived(self, copies: Sequence[_Copy]) -> None:
        """Let what is launched next wait for copies, of which the last one begun comes last."""
        if copies:
            self._wait("copies to the device", copies[-1].done)
        for copy in copies:
            copy.array = None

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
        for array, values in pairs:
            self._begun(self._leaving, _Copy(done, values, array, sender))
        self._let_go(most, sender)

    def finish(self) -> None:
        """Wait here for all copies."""
        with self._device.use():
            self.to_device.synchronize()
            self.to_host.synchronize()
        self._forget_done()

    def release(self) -> None:
        """Give page-locked memory back that nobody uses; not what is set aside."""
        self._pinned.free_all_blocks()

    def set_aside(self, free: Callable[[], int | None]) -> None:
        """Give out no page-locked memory again that was given out so far: until `release_aside` it is held.

        Or whoever asks next would have the same cells, of which one may be broken.

        free: bytes of main memory that this process can get, None where nobody says.
        """
        if not self._locked:
            return
        self._free = free
        self._aside.append(self._pinned)
        self._pinned = PageLocked(self._device.cupy.cuda)
        self._kept.append(self._pinned)

    def release_aside(self) -> None:
        """Give all page-locked memory back that nobody uses."""
        if not self._locked:
            return
        self._free = lambda: None
        self.tidy()
        with self._device.use():
            for pool in (*self._aside, self._pinned):  # the pools stay: they hold what is still used
                pool.free_all_blocks()

    def end(self) -> Callable[[], None]:
        """What waits for the copies begun so far, in a thread of its own, and raises what CUDA says of them.

        The device stays the current one of that thread: one begins on device 0, which may be another rank's, and to go
        back there would make a context on it.
        """
        cuda, errors, index = self._device.cupy.cuda, self._device.errors, self._device.index
        with self._device.use():
            ends = []
            for stream in (self.to_device, self.to_host):
                ends.append(cuda.Event(block=True, disable_timing=True))  # its wait leaves the processor to others
                ends[-1].record(stream)

        def wait() -> None:
            try:
                cuda.Device(index).use()
                for done in ends:
                    done.synchronize()
            except errors as error:
                raise faults.verdict_of(error, f"CUDA device {index}") from error

        return wait

    def tidy(self) -> None:
        """Let go of the device arrays whose copies are done; without waiting."""
        with self._device.use():
            self._forget_done()

    def _check_room(self, size: int) -> None:
        free = self._free()
        if free is not None and free < size:
            raise Unsupported(
                f"a second replay has too little main memory beside that of the first: {size} bytes more needed, "
                f"{free} free",
                hint="free main memory, or use --device cpu",
            )

    def _after_work(self, stream: Any, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Let the next copies on a stream begin after what was launched, for memory that they write or read may be in
        use there, and after those of the same host arrays.
        """
        self._forget_done()
        stream.wait_event(self._device.stream.record())
        for values in arrays:
            before = self._last.get(id(values))
            if before is not None:
                stream.wait_event(before.done)

    def _begun(self, copies: deque[_Copy], copy: _Copy) -> None:
        copies.append(copy)
        self._last[id(copy.values)] = copy

    def _forget_done(self) -> None:
        """Of each direction from the oldest on, which ends first: nobody asks CUDA of those that are behind it."""
        for copies in (self._coming, self._leaving):
            while copies and copies[0].done.done:
                copy = copies.popleft()
                if self._last.get(id(copy.values)) is copy:
                    del self._last[id(copy.values)]

    def _let_go(self, most: int, sender: int) -> None:
        own = [copy for copy in self._leaving if copy.sender == sender and copy.array is not None]
        held = sum(copy.values.nbytes for copy in own)
        waited = None
        for copy in own:
            if held <= most:
                break
            held -= copy.values.nbytes
            if copy.done is not waited:  # those of one call end together
                self._wait("copies to main memory", copy.done)  # whoever gets this memory next writes after the copy
            copy.array, waited = None, copy.done

    def _wait(self, what: str, done: Any) -> None:
        """Let the work that is launched next wait for a copy."""
        with self._device.use():
            self.watch(what, lambda: self._device.stream.wait_event(done))
