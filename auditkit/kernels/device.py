"""One CUDA device: what it is, its loaded kernels, its memory, and launches on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from auditkit.errors import Unsupported, UsageError
from auditkit.kernels.compile import OLDEST, Compiler, Nvrtc, cubin

Array: TypeAlias = Any  # a C-contiguous cupy.ndarray: memory with a dtype and a shape

_MAX_GRID_X = (1 << 31) - 1
_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED = 48 * 1024  # bytes a kernel may have without asking
_NOTHING: AbstractContextManager[Any] = nullcontext()


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise Unsupported(
            "CuPy is not installed, so no CUDA device can be used",
            hint="install auditkit-verifier[cuda13] (driver 580 or newer) or [cuda12], or use --device cpu",
        ) from error
    return cupy


def device_count() -> int:
    """How many CUDA devices this process sees; 0 without a driver. Raises Unsupported without CuPy."""
    runtime = _cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except (runtime.CUDARuntimeError, RuntimeError, OSError, ImportError):
        return 0


class Device:
    """A CUDA device, its pool of memory and its compiled kernels. All calls of one instance come from one thread."""

    def __init__(self, index: int = 0, *, cache: Path | None = None, compiler: Compiler | None = None) -> None:
        """Open device `index` of those this process sees.

        cache: folder of compiled kernels, None for no cache. Raises UsageError for an index that is not there and
        Unsupported for no device, an old driver, an old card or no compiler.
        """
        self.cupy = _cupy()
        count = device_count()
        if count == 0:
            raise Unsupported("no CUDA device is visible", hint="check nvidia-smi and the driver, or use --device cpu")
        if not 0 <= index < count:
            raise UsageError(f"there is no CUDA device {index}: {count} visible, numbered from 0")
        self.index = index
        self._device = self.cupy.cuda.Device(index)
        self.architecture = str(self._device.compute_capability)
        if int(self.architecture) < OLDEST:
            raise Unsupported(f"{self.name} has compute capability {self.architecture}; {OLDEST} or newer is needed")
        self._compiler = compiler or Nvrtc.load()
        self._cache = cache
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str, int], Any] = {}
        self.pool = self.cupy.cuda.MemoryPool()
        self.recording = False
        self._others = count > 1
        self.multiprocessors = int(self._device.attributes["MultiProcessorCount"])

    @property
    def name(self) -> str:
        """The card's name, e.g. `NVIDIA H200`."""
        properties = self.cupy.cuda.runtime.getDeviceProperties(self.index)
        return str(properties["name"].decode())

    def describe(self) -> str:
        """Card, architecture, memory, driver and compiler in one line."""
        driver = int(self.cupy.cuda.runtime.driverGetVersion())
        free, total = self.memory()
        return (
            f"{self.name}, sm_{self.architecture}, {free >> 20} of {total >> 20} MiB free, "
            f"driver for CUDA {driver // 1000}.{driver % 1000 // 10}, CuPy {self.cupy.__version__}, "
            f"NVRTC {self._compiler.version}"
        )

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make this the current device for the calls inside."""
        with self._device:
            yield

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Memory with undefined contents, from this device's own pool.

        Raises Unsupported with needed and free bytes when there is too little.
        """
        need = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            with self._current():
                return self.cupy.ndarray(shape, dtype, memptr=self.pool.malloc(need))
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            free, total = self.memory()
            raise Unsupported(
                f"device {self.index} has too little memory: {need} bytes more needed, {free} of {total} bytes free",
                hint="free the device, or use --device cpu",
            ) from error

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device; what the pool holds without using it counts as free."""
        with self._device:
            free, total = self.cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self.pool.free_bytes()), int(total)

    def release(self) -> None:
        """Give the pool's unused memory back to the device."""
        self.pool.free_all_blocks()

    def _current(self) -> AbstractContextManager[Any]:
        """Make this the current device, which costs more than a launch: only where there is another."""
        return self._device if self._others else _NOTHING

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Memory of zero bytes."""
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def clear(self, array: Array) -> None:
        """Make all bytes of an array zero."""
        array.data.memset_async(0, array.nbytes)

    def copy(self, target: Array, source: Array) -> None:
        """Copy the bytes of a device array to another of the same size."""
        target.data.copy_from_device_async(source.data, source.nbytes)

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """A copy of a host array. RuntimeError while launches are recorded: the copy would read freed memory."""
        if self.recording:
            raise RuntimeError("an upload cannot be recorded")  # a programming error, never data
        held = self.empty(array.shape, array.dtype)
        held.set(np.ascontiguousarray(array).reshape(array.shape))  # NumPy makes a 0-d array 1-d on the way
        return held

    def write(self, array: Array, values: npt.NDArray[Any]) -> None:
        """Overwrite a device array with host values of its shape and dtype."""
        array.set(np.ascontiguousarray(values))

    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy on the host, after all work on the current stream."""
        held: npt.NDArray[Any] = array.get()
        return held

    def address(self, array: Array) -> int:
        """Where the array lies in device memory, for tables of pointers that a kernel reads."""
        return int(array.data.ptr)

    def launch(
        self, op: str, kernel: str, grid: int | tuple[int, ...], block: int, args: Sequence[Any], *, shared: int = 0
    ) -> None:
        """Launch `kernel` of cuda/<op>.cu on the current stream.

        grid: blocks, one number or up to three; nothing is launched for a grid of no blocks. block: threads.
        args: device arrays (passed as pointers) and NumPy scalars of the kernel's exact types. shared: dynamic bytes.
        """
        blocks = (grid,) if isinstance(grid, int) else grid
        if 0 in blocks:
            return
        if blocks[0] > _MAX_GRID_X:
            raise Unsupported(f"{kernel} would need {blocks[0]} blocks, more than one launch can have")
        with self._current():
            self._function(op, kernel, shared)(blocks, (block,), tuple(args), shared_mem=shared)

    def _function(self, op: str, kernel: str, shared: int) -> Any:
        key = (op, kernel, shared)
        found = self._functions.get(key)
        if found is None:
            found = self._module(op).get_function(kernel)
            if shared > _DEFAULT_SHARED:
                self.cupy.cuda.driver.funcSetAttribute(found.ptr, _SHARED_ATTRIBUTE, shared)
            self._functions[key] = found
        return found

    def _module(self, op: str) -> Any:
        module = self._modules.get(op)
        if module is None:
            from cupy.cuda.function import Module

            module = Module()
            module.load(cubin(op, self.architecture, self._compiler, self._cache))
            self._modules[op] = module
        return module

    def synchronize(self) -> None:
        """Wait for all work on the current stream."""
        self.cupy.cuda.get_current_stream().synchronize()


class Recording:
    """The launches of a function, recorded once and played again as one CUDA graph.

    The function must launch the same kernels on the same arrays each time, upload nothing and wait for nothing. What it
    allocates comes from a pool of its own, which lives as long as the recording.
    """

    def __init__(self, device: Device, function: Callable[[], Any]) -> None:
        """Run `function` twice, so that kernels are loaded and the pool is filled, and record the third run.

        `result`: what the recorded run returned; each play writes it anew.
        """
        cuda = device.cupy.cuda
        self._pool, kept = cuda.MemoryPool(), device.pool
        self._stream = cuda.Stream()  # ordered with the default stream, on which all else runs
        device.pool = self._pool
        try:
            with device.use(), self._stream:
                function()
                function()
                self._stream.synchronize()
                device.recording = True
                self._stream.begin_capture()
                try:
                    self.result = function()
                finally:
                    self._graph = self._stream.end_capture()
        finally:
            device.recording, device.pool = False, kept

    def play(self) -> None:
        """Run the recorded launches, in order with the default stream."""
        self._graph.launch(self._stream)


def blocks_for(items: int, block: int) -> int:
    """Blocks of `block` threads that cover `items` threads."""
    return -(-items // block)
