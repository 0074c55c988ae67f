"""States on the host as they are now, for who writes them while the training goes on.

The host's own arrays are taken as they are, or copied at once. A device's are copied beside its next work, into
page-locked memory, which the next snapshot uses again: memory of the ordinary kind would hold up the training until the
copies are done, and its pages would be made anew each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.cli import console
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Device
from auditkit.model.ops import Ops
from auditkit.numerics.arrays import F32
from auditkit.replay import machine
from trainer.state_files import Tensors

Array = Any  # of the host or of a device

BATCH_BYTES = 64 << 20  # of copies that are begun together: beginning one alone costs more than a small copy
MOST_COPIES = 512 << 20  # bytes of a device that copies made for a snapshot may hold, while its next work goes on


def _nothing() -> None:
    """What the host's copies need to be there."""


@dataclass(frozen=True)
class Snapshot:
    """Tensors that no later step changes. They are there once `wait`, in any thread, has returned.

    They may be read until the next snapshot is taken.
    """

    tensors: Tensors
    wait: Callable[[], None] = _nothing


class Landing(Protocol):
    """Where the tensors of one snapshot after the other are copied to. All calls come from the training's thread."""

    def begin(self) -> None:
        """Begin a snapshot: nobody reads the one before any more."""
        ...

    def take(self, array: Array) -> F32:
        """An array that nothing overwrites, as one of the host."""
        ...

    def copy(self, array: Array) -> F32:
        """As `take` of an array that may be overwritten after this call."""
        ...

    def room(self, shape: tuple[int, ...]) -> F32:
        """An array of the host that `fill` fills."""
        ...

    def fill(self, values: F32, array: Array) -> None:
        """Take an array that nothing overwrites into a C-contiguous part of an array from `room`."""
        ...

    def end(self) -> Callable[[], None]:
        """The snapshot is complete; what waits for it, in any thread. Raises what has gone wrong with a device."""
        ...

    def tidy(self) -> None:
        """Give back what copies that are done by now have held."""
        ...


class OnHost:
    """The host's own arrays."""

    def begin(self) -> None:
        """Nothing is used again."""

    def take(self, array: Array) -> F32:
        """The array itself."""
        found: F32 = array
        return found

    def copy(self, array: Array) -> F32:
        """A copy."""
        return np.array(array)

    def room(self, shape: tuple[int, ...]) -> F32:
        """New memory."""
        return np.empty(shape, np.float32)

    def fill(self, values: F32, array: Array) -> None:
        """Copy at once."""
        values[...] = array

    def end(self) -> Callable[[], None]:
        """All is there."""
        return _nothing

    def tidy(self) -> None:
        """Nothing is held."""


class OffDevice:
    """Arrays of a CUDA device, which has `take` and `fill`'s until they are copied."""

    def __init__(self, device: Device, *, most: int | None = None, copies: int = MOST_COPIES) -> None:
        """most: bytes of page-locked memory, None for no bound; beyond, and where there is none, it is ordinary memory.

        copies: bytes of the device's memory that copies under way may hold beyond those of one batch.
        """
        self._device, self._most, self._copies = device, most, copies
        self._locked = 0  # bytes
        self._used: list[NDArray[np.uint8]] = []
        self._spare: dict[int, list[NDArray[np.uint8]]] = {}
        self._batch: list[tuple[Array, F32]] = []
        self._told = False

    def begin(self) -> None:
        """As Landing."""
        self._batch = []  # of a snapshot that an error has ended
        for held in self._used:
            self._spare.setdefault(held.nbytes, []).append(held)
        self._used = []

    def take(self, array: Array) -> F32:
        """As Landing."""
        values = self.room(array.shape)
        self.fill(values, array)
        return values

    def copy(self, array: Array) -> F32:
        """As Landing: by way of a copy on the device, in order with its work."""
        held = self._device.empty(array.shape, np.float32)
        if array.size:
            self._device.copy(held, array)
        return self.take(held)

    def room(self, shape: tuple[int, ...]) -> F32:
        """As Landing."""
        size = 4 * int(np.prod(shape, dtype=np.int64))
        spare = self._spare.get(size)
        held = spare.pop() if spare else self._memory(size)
        self._used.append(held)
        return held.view(np.float32).reshape(shape)

    def fill(self, values: F32, array: Array) -> None:
        """As Landing."""
        if array.size:
            self._batch.append((array, values))
        if sum(values.nbytes for _, values in self._batch) >= BATCH_BYTES:
            self._send()

    def end(self) -> Callable[[], None]:
        """As Landing."""
        self._send()
        return self._device.transfers.end()

    def tidy(self) -> None:
        """As Landing."""
        self._device.transfers.tidy()

    def _send(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._device.transfers.send_all(batch, self._copies)

    def _memory(self, size: int) -> NDArray[np.uint8]:
        """Page-locked, if it can be had."""
        if self._most is None or self._locked + size <= self._most:
            found = self._device.transfers.page_locked((size,), np.uint8)
            if found is not None:
                self._locked += size
                return found
        if not self._told:
            self._told = True
            console.tell(
                f"note: {self._locked} bytes of page-locked memory are all that there is for copies of a state:"
                " the training waits for those of the rest"
            )
        return np.empty(size, np.uint8)


def landing_of(ops: Ops, *, neighbours: int = 1, copies: int = MOST_COPIES) -> Landing:
    """Where states that these ops compute are copied to. neighbours: processes of this machine that do the same.

    Page-locked memory is taken from all other programs for good: together they take half of what is free at most.
    """
    if not isinstance(ops, CudaOps):
        return OnHost()
    free = machine.free_memory()
    most = None if free is None else free // (2 * neighbours)
    return OffDevice(ops.device, most=most, copies=copies)
