"""One CUDA device: what it is, its loaded kernels, its memory, and launches on it.

All that the package asks of CuPy goes through here, on one stream of the device's own: which device or stream the
caller has made current, and what else runs on the card, changes nothing. What CUDA says against a call becomes a
verdict in one place, `_guarded`.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from auditkit.errors import AuditkitError, MachineFault, Unsupported, UsageError
from auditkit.kernels import faults, found_cupy
from auditkit.kernels.ahead import compile_ahead
from auditkit.kernels.compile import OLDEST, Compiler, Nvrtc, cubin
from auditkit.kernels.memory import Memory
from auditkit.kernels.returned import Returned
from auditkit.kernels.transfers import Transfers
from auditkit.kernels.zero_pages import ZeroPages
from auditkit.store.progress import Progress

Array: TypeAlias = Any  # a C-contiguous cupy.ndarray: memory with a dtype and a shape
P = ParamSpec("P")
R = TypeVar("R")

_MAX_GRID_X = (1 << 31) - 1
_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED = 48 * 1024  # bytes a kernel may have without asking
_NOTHING: Any = nullcontext()


class _Within(threading.local):
    device: Device | None = None  # whose `use` this thread is in, the innermost one


_within = _Within()


def device_count() -> int:
    """How many CUDA devices this process can use; 0 without a driver. Raises Unsupported without CuPy."""
    cupy = found_cupy.load()
    try:
        return found_cupy.visible(cupy)
    except (Unsupported, MachineFault):
        return 0


def _guarded(method: Callable[Concatenate[Device, P], R]) -> Callable[Concatenate[Device, P], R]:
    """A method that calls CuPy: its device is the current one, and what CUDA raises becomes a verdict.

    After a fault every call raises that fault again: what a device in that condition says may be anything.
    """

    @functools.wraps(method)
    def call(self: Device, /, *args: P.args, **options: P.kwargs) -> R:
        if self._lost is not None:
            self.check()
        try:
            if self._others and _within.device is not self:  # else it is the current device
                with self._device:
                    return method(self, *args, **options)
            return method(self, *args, **options)
        except self.errors as error:
            raise self._verdict_of(error) from error

    return call


class Device:
    """A CUDA device, its stream, its pool of memory and its compiled kernels.

    All calls of one instance come from one thread. Several instances, also of one card, do not meet: each has its own
    stream and memory.
    """

    def __init__(self, index: int = 0, *, cache: Path | None = None, compiler: Compiler | None = None) -> None:
        """Open device `index` of those this process sees.

        cache: folder of compiled kernels, None for no cache. Raises UsageError for an index that is not there,
        Unsupported for no device, an old driver, an old card, too little memory or no compiler, MachineFault for a
        broken one.
        """
        self.cupy = found_cupy.load()
        self.errors = faults.kinds(self.cupy)
        self._lost: MachineFault | None = None
        count = found_cupy.visible(self.cupy)
        if not 0 <= index < count:
            raise UsageError(f"there is no CUDA device {index}: {count} visible, numbered from 0")
        self.index, self.recording = index, False
        self.returned = Returned()  # what is to be compared before anything is downloaded
        self._others = count > 1
        self._inside = 0  # how many `use` are under way
        self._zeros = ZeroPages()
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], tuple[Any, int]] = {}
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._device = self.cupy.cuda.Device(index)
        self._open()
        if int(self.architecture) < OLDEST:
            raise Unsupported(f"{self.name} has compute capability {self.architecture}; {OLDEST} or newer is needed")
        self._compiler = compiler or Nvrtc.load()
        self._cache = cache

    @_guarded
    def _open(self) -> None:
        """The first calls that need the device's context, which CUDA makes now."""
        self.architecture = str(self._device.compute_capability)
        self.multiprocessors = int(self._device.attributes["MultiProcessorCount"])
        self.driver = int(self.cupy.cuda.runtime.driverGetVersion())  # the newest CUDA that it knows: 13020 is 13.2
        self._device.synchronize()  # says what is broken; a Stream would too, but noisily
        # Not ordered with the default stream: what others do there neither waits nor breaks a recording.
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self._memory = self._new_memory(self._modules, self._functions, self.stream)
        try:
            self.pool.get_limit()
        except ValueError as error:
            raise UsageError(
                f"CUPY_GPU_MEMORY_LIMIT is no limit ({error})", hint="a number of bytes, or e.g. 50%"
            ) from error

    @functools.cached_property
    def transfers(self) -> Transfers:
        """Copies beside the work of this device."""
        return Transfers(self, self._memory.kept)

    @property
    def pool(self) -> Any:
        """CuPy's pool behind `empty`."""
        return self._memory.pool

    @property
    @_guarded
    def name(self) -> str:
        """The card's name, e.g. `NVIDIA H200`."""
        return str(self.cupy.cuda.runtime.getDeviceProperties(self.index)["name"].decode())

    @_guarded
    def describe(self) -> str:
        """Card, architecture, memory, driver and compiler in one line."""
        free, total = self.memory()
        return (
            f"{self.name}, sm_{self.architecture}, {free >> 20} of {total >> 20} MiB free, "
            f"driver for CUDA {self.driver // 1000}.{self.driver % 1000 // 10}, CuPy {self.cupy.__version__}, "
            f"NVRTC {self._compiler.version}"
        )

    def check(self) -> None:
        """Raises the MachineFault that ended the use of this device, if one did."""
        if self._lost is not None:
            raise MachineFault(self._lost.message, hint=self._lost.hint)

    def _verdict_of(self, error: Exception) -> AuditkitError:
        """What an error of CUDA means; a fault is final."""
        found = faults.verdict_of(error, f"CUDA device {self.index}")
        if isinstance(found, MachineFault) and self._lost is None:
            self._lost = MachineFault(found.message, hint=found.hint)  # `found` will hold frames, and they arrays
            for memory in self._memories:
                memory.abandon()
        return found

    def _new_memory(self, *kept: Any, beside: Memory | None = None) -> Memory:
        made = Memory(self.cupy, self._device, *kept, beside=beside)
        self._memories.add(made)
        return made

    @contextmanager
    def own_memory(self) -> Iterator[Any]:
        """Let `empty` take from another pool, which lives as long as what this yields, or one of its arrays.

        A limit is for both.
        """
        self._zeros.forget()
        before, self._memory = self._memory, self._new_memory(beside=self._memory)
        try:
            yield self._memory
        finally:
            self._memory = before
            self._zeros.forget()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make this the current device, and its stream the current one, for the calls inside."""
        self.check()
        try:
            with self._device, self.stream:
                before, _within.device = _within.device, self
                self._inside += 1
                try:
                    yield
                finally:
                    self._inside -= 1
                    _within.device = before
        except self.errors as error:
            raise self._verdict_of(error) from error

    @_guarded
    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Memory with undefined contents, from this device's own pool.

        Raises Unsupported with needed and free bytes when there is too little.
        """
        need, memory, cuda = math.prod(shape) * np.dtype(dtype).itemsize, self._memory, self.cupy.cuda
        try:
            block = self._block(need)
        except (cuda.memory.OutOfMemoryError, OverflowError) as error:
            free, total = self.memory()
            raise Unsupported(
                f"device {self.index} has too little memory: {need} bytes more needed, {free} of {total} bytes free",
                hint="free the device, or use --device cpu",
            ) from error
        owned = cuda.UnownedMemory(block.ptr, need, (memory, block), self.index)  # the last one goes first
        return self.cupy.ndarray(shape, dtype, memptr=cuda.MemoryPointer(owned, 0))

    def _block(self, size: int) -> Any:
        """From the pool; if there is nothing, once more when all copies have let go of what they hold."""
        with _NOTHING if self._inside else self.stream:  # the pool keeps what is free by current stream
            try:
                return self._memory.pool.malloc(size)
            except self.cupy.cuda.memory.OutOfMemoryError:
                if "transfers" not in self.__dict__ or self.recording:
                    raise
                self.transfers.finish()
                return self._memory.pool.malloc(size)

    @_guarded
    def memory(self, *, limited: bool = True) -> tuple[int, int]:
        """(free, total) bytes of the device: free is what `empty` can still get, from its pool too, up to its limit;
        if not `limited`, up to the environment's.
        """
        free, total = (int(number) for number in self.cupy.cuda.runtime.memGetInfo())
        free += int(self.pool.free_bytes())
        limit = int(self.pool.get_limit()) if limited else self._memory.most
        return (max(0, min(free, limit - int(self.pool.used_bytes()))) if limit else free), total

    @property
    def is_limited(self) -> bool:
        """Whether `limit` was called."""
        return self._memory.is_limited

    @_guarded
    def limit(self, size: int, *, at_once: bool = False) -> None:
        """Let `empty` take at most so many bytes altogether: beyond, it raises Unsupported. at_once: see Slab."""
        self._zeros.forget()  # or a page would hold the block of the limit before
        self._memory.limit(size, at_once=at_once)

    def release(self) -> None:
        """Give back the pool's unused memory, and page-locked memory. Nothing happens on a device that is lost."""
        if self._lost is None:
            self._release()

    @_guarded
    def _release(self) -> None:
        self._zeros.forget()
        self.returned.clear()
        self.pool.free_all_blocks()
        if "transfers" in self.__dict__:
            self.transfers.release()

    def set_aside(self, free: Callable[[], int | None]) -> None:
        """As Transfers.set_aside, if there were any transfers."""
        if "transfers" in self.__dict__:
            self.transfers.set_aside(free)

    def release_aside(self) -> None:
        """Give back all page-locked memory that nobody uses; nothing on a lost device, which the next call tells of."""
        if self._lost is None and "transfers" in self.__dict__:
            with suppress(AuditkitError):
                self.transfers.release_aside()

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Memory of zero bytes."""
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def zero_words(self, count: int, *, kept: bool = False) -> Array:
        """(count,) uint32 of zeros, small ones as parts of a page (ZeroPages); what is recorded clears its own."""
        if self.recording:
            return self.zeros((count,), np.uint32)
        return self._zeros.take(count, lambda size: self.zeros((size,), np.uint32), kept=kept)

    @_guarded
    def clear(self, array: Array) -> None:
        """Make all bytes of an array zero."""
        array.data.memset_async(0, array.nbytes, self.stream)

    @_guarded
    def copy(self, target: Array, source: Array) -> None:
        """Copy the bytes of a device array to another of the same size."""
        target.data.copy_from_device_async(source.data, source.nbytes, self.stream)

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """A copy of a host array. RuntimeError while launches are recorded: the copy would read freed memory."""
        if self.recording:
            raise RuntimeError("an upload cannot be recorded")  # a programming error, never data
        held = self.empty(array.shape, array.dtype)
        self.write(held, array)
        return held

    @_guarded
    def write(self, array: Array, values: npt.NDArray[Any]) -> None:
        """Overwrite a device array with host values of its shape and dtype."""
        # NumPy makes a 0-d array 1-d on the way
        array.set(np.ascontiguousarray(values).reshape(values.shape), self.stream)

    @_guarded
    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy on the host, after all work on the device's stream.

        MachineFault: something that came back to the device before had changed in main memory.
        """
        self.returned.check(self)
        return array.get(self.stream)  # type: ignore[no-any-return]

    def address(self, array: Array) -> int:
        """Where the array lies in device memory, for tables of pointers that a kernel reads."""
        return int(array.data.ptr)

    @_guarded
    def launch(
        self, op: str, kernel: str, grid: int | tuple[int, ...], block: int, args: Sequence[Any], *, shared: int = 0
    ) -> None:
        """Launch `kernel` of cuda/<op>.cu on the device's stream.

        grid: blocks, one number or up to three; nothing is launched for a grid of no blocks. block: threads.
        args: device arrays (passed as pointers) and NumPy scalars of the kernel's exact types. shared: dynamic bytes.
        """
        blocks = (grid,) if isinstance(grid, int) else grid
        if 0 in blocks:
            return
        if blocks[0] > _MAX_GRID_X:
            raise Unsupported(f"{kernel} would need {blocks[0]} blocks, more than one launch can have")
        self._function(op, kernel, shared)(blocks, (block,), tuple(args), shared_mem=shared, stream=self.stream)

    def _function(self, op: str, kernel: str, shared: int) -> Any:
        """A kernel that may have so much shared memory: what it may only grows, earlier shapes may return."""
        key = (op, kernel)
        found, allowed = self._functions.get(key, (None, _DEFAULT_SHARED))
        if found is None:
            found = self._module(op).get_function(kernel)
        if shared > allowed:
            self.cupy.cuda.driver.funcSetAttribute(found.ptr, _SHARED_ATTRIBUTE, shared)
        self._functions[key] = found, max(shared, allowed)
        return found

    def prepare(self, processors: int, progress: Progress) -> None:
        """Compile all kernels that the cache lacks, by as many processes; without a cache, when they are needed."""
        if isinstance(self._compiler, Nvrtc) and self._cache is not None:
            compile_ahead(self.architecture, self._compiler.version, self._cache, processors, progress)

    def _module(self, op: str) -> Any:
        module = self._modules.get(op)
        if module is None:
            from cupy.cuda.function import Module

            module = Module()
            module.load(cubin(op, self.architecture, self._compiler, self._cache))
            self._modules[op] = module
        return module

    @_guarded
    def synchronize(self) -> None:
        """Wait for all work on the device's stream."""
        self.stream.synchronize()

    @_guarded
    def capture(self, function: Callable[[], R]) -> tuple[R, Any]:
        """What `function` returns, and the CUDA graph of its launches, which are not run."""
        self.recording = True
        self.stream.begin_capture()
        try:
            result = function()
        except BaseException:
            with suppress(*self.errors):  # or the stream would stay as it is; the first error is the one that counts
                self.stream.end_capture()
            raise
        finally:
            self.recording = False
        return result, self.stream.end_capture()

    @_guarded
    def play(self, graph: Any) -> None:
        """Run a graph's launches on the device's stream."""
        graph.launch(self.stream)


def blocks_for(items: int, block: int) -> int:
    """Blocks of `block` threads that cover `items` threads."""
    return -(-items // block)
