"""A device whose kernels run on this CPU: the methods of auditkit.kernels.device.Device over guarded host memory."""

from __future__ import annotations

import ctypes
import functools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from auditkit.kernels.compile import target
from auditkit.kernels.returned import Returned
from auditkit.kernels.transfers import Coming
from auditkit.store.progress import Progress
from tests.kernels.emulator.build import ROOT, Kernel, library, place_of

GUARD = 512  # bytes before and after each buffer; buffers begin at multiples of 256, as cudaMalloc's do
GUARD_PATTERN = 0x5C
SHARED_LIMIT = {"75": 64 * 1024, "80": 163 * 1024, "86": 99 * 1024, "89": 99 * 1024, "120": 99 * 1024}
STATIC_LIMIT = 48 * 1024

_KINDS = {"b": "i1", "h": "i2", "i": "i4", "l": "i8", "B": "u1", "H": "u2", "I": "u4", "L": "u8", "f": "f4", "d": "f8"}


class EmulationError(AssertionError):
    """A kernel did what a GPU would not define: out of bounds, a race, divergence, a bad launch."""


class EmulatedArray(np.ndarray[Any, Any]):
    """Device memory: it may be viewed, sliced and reshaped, but no NumPy function computes on it."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        raise EmulationError(f"{ufunc.__name__} on a device array: only kernels compute on a device")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise EmulationError(f"{func.__name__} on a device array: only kernels compute on a device")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise EmulationError("assignment to a device array: use upload, zeros or a kernel")


class _Options(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_bytes", ctypes.c_uint),
        ("guard", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("most_accesses", ctypes.c_uint64),
        ("poison", ctypes.c_ubyte),
        ("guard_pattern", ctypes.c_ubyte),
    )


class EmulatedTransfers:
    """Copies beside the device's work, each made as late as a card might: only when its result is waited for."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._waiting: list[Callable[[], None]] = []

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """As Transfers, full of poison."""
        return np.array(self._device.empty(shape, dtype).view(np.ndarray))

    page_locked = host_array

    def bring(self, values: npt.NDArray[Any], parts: int = 1) -> Coming:
        """As Transfers."""
        coming: Any = Coming(cast(Any, self), values, cast(Any, self._device.empty(values.shape, values.dtype)), parts)
        coming.begin()
        return coming

    def begin(self, pieces: Sequence[tuple[Any, Any, int, int]]) -> list[Any]:
        """As Transfers."""
        for array, values, first, stop in pieces:
            to, given = array.view(np.ndarray).reshape(-1).view(np.uint8), values.reshape(-1).view(np.uint8)
            self._waiting.append(functools.partial(np.copyto, to[first:stop], given[first:stop]))
        return list(pieces)

    def arrived(self, copies: Sequence[Any]) -> None:
        """As Transfers."""
        self.finish()

    def bring_all(self, values: Sequence[npt.NDArray[Any]]) -> Callable[[], list[EmulatedArray]]:
        """As Transfers."""
        arrays = [self._device.empty(each.shape, each.dtype) for each in values]
        for array, each in zip(arrays, values, strict=True):
            self._waiting.append(functools.partial(np.copyto, array.view(np.ndarray), each))

        def arrived() -> list[EmulatedArray]:
            self.finish()
            return arrays

        return arrived

    def send(self, array: EmulatedArray, values: npt.NDArray[Any], most: int, sender: int = 0) -> None:
        """As Transfers."""
        self.send_all([(array, values)], most)

    def send_all(self, pairs: Sequence[tuple[EmulatedArray, npt.NDArray[Any]]], most: int, sender: int = 0) -> None:
        """As Transfers."""
        for array, values in pairs:
            self._waiting.append(functools.partial(np.copyto, values, array.view(np.ndarray)))

    def end(self) -> Callable[[], None]:
        """As Transfers."""
        return self.finish

    def tidy(self) -> None:
        """As Transfers; nothing is done yet."""

    def finish(self) -> None:
        """As Transfers."""
        while self._waiting:
            self._waiting.pop(0)()


class EmulatedDevice:
    """Plays cuda/*.cu on the CPU, one block after the other.

    architecture: what __CUDA_ARCH__ says, e.g. "75". seed: order of threads and blocks, 0 for the natural one.
    poison: the byte that fresh memory and shared memory is full of. sources: folder of the .cu files.
    most_accesses: loads and stores of one launch, so that an endless loop ends.
    """

    def __init__(
        self,
        *,
        architecture: str = "90",
        seed: int = 0,
        poison: int = 0xA5,
        sources: Path = ROOT / "cuda",
        most_accesses: int = 4_000_000_000,
    ) -> None:
        self.index = 0
        self.name = f"emulated sm_{architecture}"
        self.architecture = architecture
        self.multiprocessors = 3
        self.seed = seed
        self.poison = poison
        self.launches: list[tuple[str, str]] = []  # (op, kernel) of each launch, for tests that count them
        self.returned = Returned()
        self._sources = sources
        self._most_accesses = most_accesses
        self._libraries: dict[str, tuple[Path, ctypes.CDLL, dict[str, Kernel]]] = {}
        self._buffers: dict[int, int] = {}  # address -> bytes of the live ones

    @functools.cached_property
    def transfers(self) -> EmulatedTransfers:
        """As Device.transfers."""
        return EmulatedTransfers(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        """As Device.use; there is no current device here."""
        yield

    def prepare(self, processors: int, progress: Progress) -> None:
        """As Device.prepare; libraries are built when they are needed."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> EmulatedArray:
        """Memory full of poison, between guard zones."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        raw = np.full(size + 2 * GUARD + 256, GUARD_PATTERN, np.uint8)
        skip = GUARD + -(raw.ctypes.data + GUARD) % 256
        raw[skip : skip + size] = self.poison
        address = raw.ctypes.data + skip
        self._buffers[address] = size
        weakref.finalize(raw, self._buffers.pop, address)
        return raw[skip : skip + size].view(kind).reshape(shape).view(EmulatedArray)

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> EmulatedArray:
        """Memory of zero bytes."""
        array = self.empty(shape, dtype)
        array.view(np.ndarray)[...] = 0
        return array

    def zero_words(self, count: int, *, kept: bool = False) -> EmulatedArray:
        """Memory of zeros, an array of its own, so that whoever goes beyond its end is seen."""
        return self.zeros((count,), np.uint32)

    def clear(self, array: EmulatedArray) -> None:
        """Make all bytes of an array zero."""
        array.view(np.ndarray)[...] = 0

    def copy(self, target: EmulatedArray, source: EmulatedArray) -> None:
        """Copy the bytes of an array to another of the same size."""
        target.view(np.ndarray)[...] = source.view(np.ndarray)

    def upload(self, array: npt.NDArray[Any]) -> EmulatedArray:
        """A copy of a host array."""
        held = self.empty(array.shape, array.dtype)
        held.view(np.ndarray)[...] = array
        return held

    def download(self, array: EmulatedArray) -> npt.NDArray[Any]:
        """A copy on the host."""
        self.returned.check(self)  # type: ignore[arg-type]  # it plays a Device
        return np.array(array.view(np.ndarray))

    def release(self) -> None:
        """Nothing is kept."""

    def set_aside(self, free: Callable[[], int | None]) -> None:
        """As Device: nothing is kept."""

    def release_aside(self) -> None:
        """As Device."""

    def address(self, array: EmulatedArray) -> int:
        """Where the array lies, for tables of pointers that a kernel reads."""
        return int(array.ctypes.data)

    def synchronize(self) -> None:
        """Nothing to wait for: a launch returns when it is done."""

    def launch(
        self, op: str, kernel: str, grid: int | tuple[int, ...], block: int, args: Sequence[Any], *, shared: int = 0
    ) -> None:
        """Run `kernel` of <op>.cu. Raises EmulationError for what a GPU would not define."""
        blocks = (grid,) if isinstance(grid, int) else tuple(grid)
        if 0 in blocks:
            return
        path, loaded, kernels = self._library(op)
        if kernel not in kernels:
            raise EmulationError(f"{op}.cu has no kernel {kernel}; it has {', '.join(sorted(kernels))}")
        row = kernels[kernel]
        static = int(loaded.emu_static_bytes()) - 1  # the mark before it; padding counts
        self._check_shape(row, blocks, block, shared, static)
        values = _arguments(kernel, row.kinds.decode(), args, self._buffers)
        self.launches.append((op, kernel))
        options = _Options(
            (ctypes.c_uint * 3)(*blocks, *(1,) * (3 - len(blocks))),
            (ctypes.c_uint * 3)(block, 1, 1),
            shared, GUARD, self.seed, self._most_accesses, self.poison, GUARD_PATTERN,
        )  # fmt: skip
        message = ctypes.create_string_buffer(1024)
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(v.ctypes.data for v in values))
        live = sorted(self._buffers.copy().items())  # a copy at once: garbage may be collected while they are sorted
        begins = np.array([address for address, _ in live], np.uint64)
        ends = np.array([address + size for address, size in live], np.uint64)
        failed = loaded.emu_launch(
            ctypes.byref(row), ctypes.byref(options), pointers, len(live), ctypes.c_void_p(begins.ctypes.data),
            ctypes.c_void_p(ends.ctypes.data), message, ctypes.c_size_t(len(message)),
        )  # fmt: skip
        if failed:
            raise EmulationError(_with_place(path, message.value.decode()))

    def kernels(self, op: str) -> set[str]:
        """The names of the kernels of cuda/<op>.cu."""
        return set(self._library(op)[2])

    def _library(self, op: str) -> tuple[Path, ctypes.CDLL, dict[str, Kernel]]:
        found = self._libraries.get(op)
        if found is None:
            path = library(self._sources / f"{op}.cu", target(op, self.architecture))
            loaded = ctypes.CDLL(str(path))
            loaded.emu_static_bytes.restype = ctypes.c_size_t
            count = ctypes.c_int.in_dll(loaded, "emu_kernel_count").value
            table = (Kernel * count).in_dll(loaded, "emu_kernels")
            found = self._libraries[op] = (path, loaded, {row.name.decode(): row for row in table})
        return found

    def _check_shape(self, row: Kernel, grid: tuple[int, ...], block: int, shared: int, static: int) -> None:
        limit = SHARED_LIMIT.get(self.architecture.rstrip("a"), 227 * 1024)
        problems = {
            f"a grid of {grid}": len(grid) > 3 or grid[0] >= 1 << 31 or max((*grid[1:], 0)) > 65535 or min(grid) < 0,
            f"{block} threads a block": not 1 <= block <= (row.bound or 1024),
            f"{static} bytes of static shared memory": static > STATIC_LIMIT + 256,
            f"a grid of {grid} in clusters of {row.cluster}": row.cluster > 4 or grid[0] % max(1, row.cluster) != 0,
            "static shared memory in a cluster": row.cluster > 1 and static > 256,
            f"{static} + {shared} bytes of shared memory, more than {limit}": static + shared > limit,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise EmulationError(f"{row.name.decode()}: cannot launch {problem}")


def _arguments(kernel: str, kinds: str, args: Sequence[Any], buffers: dict[int, int]) -> list[npt.NDArray[Any]]:
    """The arguments' bytes; EmulationError when their number or types are not the kernel's."""
    if len(kinds) != len(args):
        raise EmulationError(f"{kernel} takes {len(kinds)} arguments, not {len(args)}")
    return [
        _argument(f"{kernel}: argument {i}", kind, arg, buffers)
        for i, (kind, arg) in enumerate(zip(kinds, args, strict=True))
    ]


def _argument(what: str, kind: str, arg: Any, buffers: dict[int, int]) -> npt.NDArray[Any]:
    if isinstance(arg, np.ndarray):
        if kind != "p":
            raise EmulationError(f"{what} is an array, the kernel wants a {np.dtype(_KINDS[kind])}")
        if not isinstance(arg, EmulatedArray):
            raise EmulationError(f"{what} is host memory")
        if not arg.flags.c_contiguous:
            raise EmulationError(f"{what} is a view with strides, the kernel sees only its address")
        return np.array([arg.ctypes.data], np.uint64)
    if not isinstance(arg, np.generic):
        raise EmulationError(f"{what} is a {type(arg).__name__}, not an array or a NumPy scalar")
    wanted = np.dtype("u8") if kind == "p" else np.dtype(_KINDS[kind])
    if arg.dtype != wanted:
        raise EmulationError(f"{what} is a {arg.dtype}, the kernel wants a {wanted}")
    return np.array([arg])


def _with_place(path: Path, message: str) -> str:
    """The message with the code offset at its end turned into file and line."""
    found = re.fullmatch(r"(.*) @([0-9a-f]+)", message, re.DOTALL)
    if found is None:
        return message
    place = place_of(path, found[2])
    return f"{found[1]} ({place})" if place else found[1]
