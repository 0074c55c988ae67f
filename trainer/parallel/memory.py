"""Flat arrays of a back end: the lines in which parameters, gradients and moments lie."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auditkit.kernels.backend import CudaOps
from auditkit.model.ops import Ops
from trainer.parallel.group import Array


class Memory(Protocol):
    """Makes, fills and reads arrays where a back end computes."""

    def zeros(self, elements: int, dtype: npt.DTypeLike) -> Array: ...
    def clear(self, array: Array) -> None: ...
    def copy(self, target: Array, source: Array) -> None: ...
    def place(self, array: npt.NDArray[Any]) -> Array: ...
    def host(self, array: Array) -> npt.NDArray[Any]: ...
    def forget(self) -> None: ...


class HostMemory:
    """NumPy arrays."""

    def zeros(self, elements: int, dtype: npt.DTypeLike) -> Array:
        """A new array (elements,)."""
        return np.zeros(elements, dtype)

    def clear(self, array: Array) -> None:
        """Make all elements zero."""
        array[...] = 0

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another of the same dtype and size."""
        target.reshape(-1)[...] = source.reshape(-1)

    def place(self, array: npt.NDArray[Any]) -> Array:
        """The array itself."""
        return array

    def host(self, array: Array) -> npt.NDArray[Any]:
        """The array itself."""
        host: npt.NDArray[Any] = array
        return host

    def forget(self) -> None:
        """NumPy raises at once, and so has nothing to forget."""


class DeviceMemory:
    """Arrays of a CUDA device."""

    def __init__(self, ops: CudaOps) -> None:
        self._device, self._ops = ops.device, ops

    def zeros(self, elements: int, dtype: npt.DTypeLike) -> Array:
        """A new array (elements,)."""
        return self._device.zeros((elements,), dtype) if elements else self._device.empty((0,), dtype)

    def clear(self, array: Array) -> None:
        """Make all elements zero."""
        if array.size:
            self._device.clear(array)

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another of the same dtype and size."""
        if source.size:
            self._device.copy(target.reshape(-1), source.reshape(-1))

    def place(self, array: npt.NDArray[Any]) -> Array:
        """A copy on the device."""
        return self._device.upload(array)

    def host(self, array: Array) -> npt.NDArray[Any]:
        """A copy on the host."""
        return self._device.download(array)

    def forget(self) -> None:
        """Forget what launches up to now have left in the status word: their results are not used."""
        self._ops.reset()


def memory_of(ops: Ops) -> Memory:
    """The memory in which these ops compute."""
    return DeviceMemory(ops) if isinstance(ops, CudaOps) else HostMemory()
