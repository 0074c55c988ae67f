"""A module that stands in for CuPy over the emulator, so that `auditkit.kernels.device.Device` itself runs on a CPU.

It has the calls that Device makes. Every call of CUDA goes through `Cuda.call`, where a test can let it fail. What a
card would do wrongly is an error here: an array or stream of another device than the current one, or no stream at all.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kernels.emulator.device import EmulatedArray
from tests.kernels.fake_cuda import Cuda, CUDADriverError, CUDARuntimeError, NVRTCError, OutOfMemoryError
from tests.kernels.fake_streams import FakeEvent, FakeStream

GONE = 0xDD  # what memory is full of that was given back


class FakePointer:
    """cupy.cuda.MemoryPointer: memory, and copies from and to it."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset: int) -> FakePointer:
        return FakePointer(self.mem, self.ptr - self.mem.ptr + offset)

    def memset_async(self, value: int, size: int, stream: FakeStream) -> None:
        """As in CuPy."""
        self._call("memset", stream)
        target = self.mem.bytes[self.ptr - self.mem.ptr :][:size]
        stream.do(lambda: target.fill(value))

    def copy_from_device_async(self, source: FakePointer, size: int, stream: FakeStream) -> None:
        """As in CuPy."""
        self._call("device copy", stream)
        target, origin = (p.mem.bytes[p.ptr - p.mem.ptr :][:size] for p in (self, source))
        stream.do(lambda: np.copyto(target, origin))

    def copy_from_host_async(self, mem: int, size: int, stream: FakeStream) -> None:
        """As in CuPy."""
        self._call("upload", stream)
        target = self.mem.bytes[self.ptr - self.mem.ptr :][:size]
        stream.do(lambda: ctypes.memmove(target.ctypes.data, mem, size) and None)

    def copy_to_host_async(self, mem: int, size: int, stream: FakeStream) -> None:
        """As in CuPy."""
        self._call("download", stream)
        source = self.mem.bytes[self.ptr - self.mem.ptr :][:size]
        stream.do(lambda: ctypes.memmove(mem, source.ctypes.data, size) and None)

    def _call(self, name: str, stream: FakeStream) -> None:
        cuda = self.mem.cuda
        cuda.check_device("memory", self.mem.device_id)
        cuda.check_device("a stream", stream.index)
        cuda.call(name)


class FakeArray(EmulatedArray):
    """cupy.ndarray."""

    pointer: FakePointer

    def __array_finalize__(self, parent: Any) -> None:
        if parent is not None and hasattr(parent, "pointer"):
            offset = self.ctypes.data - parent.pointer.ptr
            self.pointer = FakePointer(parent.pointer.mem, offset + parent.pointer.ptr - parent.pointer.mem.ptr)

    @property
    def data(self) -> Any:
        """The memory."""
        return self.pointer

    def set(self, values: Any, stream: FakeStream) -> None:
        """Copy from the host."""
        assert stream.captured is None, "a copy from the host while a stream is captured"
        assert type(values) is np.ndarray and values.dtype == self.dtype and values.shape == self.shape
        self.pointer._call("upload", stream)
        self.view(np.ndarray)[...] = values

    def get(self, stream: FakeStream) -> Any:
        """Copy to the host."""
        assert stream.captured is None, "a copy to the host while a stream is captured"
        self.pointer._call("download", stream)
        return np.array(self.view(np.ndarray))

    def __int__(self) -> int:
        self.pointer.mem.cuda.check_device("memory", self.pointer.mem.device_id)
        self.pointer.mem.cuda.call("download")
        return int(self.view(np.ndarray))


class FakeMemory:
    """A block of a pool."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self.cuda, self.device_id = cuda, cuda.current
        array = cuda.emulators[self.device_id].empty((size,), np.uint8)
        self.bytes = array.view(np.ndarray)
        self.ptr = int(array.ctypes.data)
        cuda.used[self.device_id] += size
        weakref.finalize(self, cuda.used.subtract, {self.device_id: size})
        weakref.finalize(self, self.bytes.fill, GONE).atexit = False


class FakePool:
    """cupy.cuda.MemoryPool, which keeps nothing."""

    def __init__(self, cuda: Cuda, limit: str = "") -> None:
        self.cuda = cuda
        self._limit = limit
        self.limit = 0
        self.released = 0
        self.used = 0

    def malloc(self, size: int) -> FakePointer:
        """Raises OutOfMemoryError beyond the device's memory or the limit, and what `fails` says."""
        try:
            self.cuda.call("malloc")
        except CUDARuntimeError as error:
            if error.status != 2:
                raise
            raise OutOfMemoryError(size, 0) from None
        used = self.cuda.used[self.cuda.current]
        if used + size > self.cuda.total or (self.limit and self.used + size > self.limit):
            raise OutOfMemoryError(size, used, self.limit)
        block = FakeMemory(self.cuda, size)
        self.used += size
        weakref.finalize(block, self._free, size)
        return FakePointer(block, 0)

    def _free(self, size: int) -> None:
        self.used -= size

    def set_limit(self, size: int) -> None:
        """Bytes of this pool's blocks."""
        self.limit = size

    def get_limit(self) -> int:
        """Bytes, 0 for none; ValueError for a text of the environment that is none."""
        return self.limit or (int(self._limit) if self._limit else 0)

    def free_bytes(self) -> int:
        """Nothing is kept."""
        return 0

    def used_bytes(self) -> int:
        """Bytes of this pool's blocks."""
        return self.used

    def total_bytes(self) -> int:
        """The same: nothing is kept."""
        return self.used

    def free_all_blocks(self) -> None:
        """cudaFree of what is kept."""
        self.cuda.call("free")
        self.released += 1


class FakeDevice:
    """cupy.cuda.Device."""

    def __init__(self, cuda: Cuda, index: int) -> None:
        self.cuda, self.id = cuda, index

    def __enter__(self) -> None:
        self.cuda.call("set device")
        self.cuda.local.__dict__.setdefault("stack", []).append(self.cuda.current)
        self.cuda.local.device = self.id

    def __exit__(self, *_: object) -> None:
        self.cuda.local.device = self.cuda.local.stack.pop()

    def use(self) -> None:
        """As in CuPy: for the rest of this thread."""
        self.cuda.call("set device")
        self.cuda.local.device = self.id

    def synchronize(self) -> None:
        """Wait: all is done."""
        self.cuda.call("synchronize device")

    @property
    def compute_capability(self) -> str:
        """Makes the context."""
        self.cuda.call("context")
        return self.cuda.emulators[self.id].architecture

    @property
    def attributes(self) -> dict[str, int]:
        """All that is asked for."""
        return {"MultiProcessorCount": self.cuda.emulators[self.id].multiprocessors}


class FakeModule:
    """cupy.cuda.function.Module: a cubin is the name of its source."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.index = cuda, cuda.current
        self.op = ""

    def load(self, cubin: bytes) -> None:
        """As in CuPy."""
        self.cuda.call("module load")
        self.op = cubin.decode()

    def get_function(self, name: str) -> Any:
        """A function to launch."""
        self.cuda.call("get function")
        return FakeFunction(self, name)


class FakeFunction:
    """cupy.cuda.Function."""

    ptr = 1

    def __init__(self, module: FakeModule, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: FakeStream) -> None:
        cuda = self.module.cuda
        cuda.check_device("a kernel", self.module.index)
        for arg in args:
            if isinstance(arg, FakeArray):
                cuda.check_device("memory", arg.pointer.mem.device_id)
        cuda.call("launch")
        emulator, op, name = cuda.emulators[cuda.current], self.module.op, self.name
        if cuda.dry and op not in ("blake3", "checksum"):
            return
        stream.do(lambda: emulator.launch(op, name, tuple(grid), block[0], args, shared=shared_mem))


class FakeNvrtc:
    """cupy.cuda.nvrtc: the cubin is the source's name."""

    NVRTCError = NVRTCError

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.status, self.log = 0, ""  # of what compileProgram does
        self.name = ""

    def getVersion(self) -> tuple[int, int]:
        """A version of its own, so that no cubin of a real one is taken from a cache."""
        return 0, 1

    def createProgram(self, text: str, name: str, headers: Any, names: Any) -> int:
        """One program at a time."""
        self.name = name.removesuffix(".cu")
        return 1

    def compileProgram(self, program: int, options: Any) -> None:
        """Fails when told to."""
        if self.status:
            raise NVRTCError(self.status)

    def getCUBIN(self, program: int) -> bytes:
        """The source's name."""
        return self.name.encode()

    def getProgramLog(self, program: int) -> str:
        """What was told."""
        return self.log

    def destroyProgram(self, program: int) -> None:
        """Nothing to do."""


def _array(shape: tuple[int, ...], dtype: Any, memptr: FakePointer) -> FakeArray:
    made = memptr.mem.bytes.view(np.dtype(dtype)).reshape(shape).view(FakeArray)
    made.pointer = memptr
    return made


def _pinned_pool(cuda: Cuda) -> Any:
    def malloc(size: int) -> Any:
        cuda.call("host malloc")
        return np.full(size, 0xA5, np.uint8)

    return SimpleNamespace(malloc=malloc, free_all_blocks=lambda: cuda.call("host free"))


def _unowned(cuda: Cuda, ptr: int, size: int, owner: Any, index: int) -> Any:
    whole = owner[-1].mem
    assert owner[-1].ptr == ptr
    part = whole.bytes[ptr - whole.ptr :][:size]
    return SimpleNamespace(cuda=cuda, ptr=ptr, size=size, owner=owner, device_id=index, bytes=part)


def make(cuda: Cuda, limit: str = "") -> Any:
    """The module `cupy`."""

    def told(name: str, value: Any) -> Any:
        def get(*_: Any) -> Any:
            cuda.call(name)
            return value() if callable(value) else value

        return get

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=told("device count", lambda: cuda.count),
        getDeviceProperties=told("properties", {"name": b"Fake 9000"}),
        driverGetVersion=told("driver version", 13000),
        hostRegister=told("host register", None),
        hostUnregister=told("host unregister", None),
        memGetInfo=told("memory info", lambda: (cuda.total - cuda.used[cuda.current], cuda.total)),
    )
    driver = SimpleNamespace(CUDADriverError=CUDADriverError, funcSetAttribute=told("set attribute", None))
    function = SimpleNamespace(Module=lambda: FakeModule(cuda))
    nvrtc = FakeNvrtc(cuda)
    parts = SimpleNamespace(
        runtime=runtime,
        driver=driver,
        nvrtc=nvrtc,
        function=function,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        Device=lambda index: FakeDevice(cuda, index),
        Stream=lambda **options: FakeStream(cuda, **options),
        Event=lambda **options: FakeEvent(cuda),
        get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
        MemoryPool=lambda: FakePool(cuda, limit),
        MemoryPointer=FakePointer,
        PinnedMemoryPool=lambda: _pinned_pool(cuda),
        UnownedMemory=lambda *args: _unowned(cuda, *args),
    )
    return SimpleNamespace(cuda=parts, ndarray=_array, __version__="14.2.0")


def install(monkeypatch: pytest.MonkeyPatch, cuda: Cuda, limit: str = "") -> Any:
    """Let `import cupy` find it, for one test."""
    cupy = make(cuda, limit)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
    monkeypatch.setitem(sys.modules, "cupy.cuda.function", cupy.cuda.function)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nvrtc", cupy.cuda.nvrtc)
    return cupy
