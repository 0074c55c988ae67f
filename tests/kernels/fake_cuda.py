"""CUDA as tests/kernels/fake_cupy.py sees it: calls that may fail, with the classes of CuPy's errors and their shapes.

A device is lost after an error that CUDA keeps, as on a card.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from tests.kernels.emulator import EmulatedDevice

NAMES = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    3: "cudaErrorInitializationError: initialization error",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    46: "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    209: "cudaErrorNoKernelImageForDevice: no kernel image is available for execution on the device",
    214: "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    701: "cudaErrorLaunchOutOfResources: too many resources requested for launch",
    702: "cudaErrorLaunchTimeout: the launch timed out and was terminated",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
    801: "cudaErrorNotSupported: operation not supported",
    999: "cudaErrorUnknown: unknown error",
}
KEPT = frozenset({214, 700, 702, 719, 999})  # errors after which every call gives the same error


class CUDARuntimeError(RuntimeError):
    """As cupy.cuda.runtime.CUDARuntimeError."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(NAMES[status])


class CUDADriverError(RuntimeError):
    """As cupy.cuda.driver.CUDADriverError."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR_{status}: {NAMES[status].split(': ')[1]}")


class NVRTCError(RuntimeError):
    """As cupy.cuda.nvrtc.NVRTCError."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"NVRTC_ERROR_{status} ({status})")


class OutOfMemoryError(MemoryError):
    """As cupy.cuda.memory.OutOfMemoryError: without a status."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


DRIVER_CALLS = frozenset({"launch", "module load", "get function", "set attribute"})


class Cuda:
    """The state of CUDA: calls made, which one fails, the current device of each thread, bytes of memory in use.

    dry: no kernel is run but those of digests, and memory is zero.
    """

    def __init__(self, count: int = 1, *, total: int = 1 << 30, dry: bool = False) -> None:
        self.count = count
        self.dry = dry
        self.late = False  # whether streams made from now on do their work only when somebody waits for it
        self.total = total
        self.used = Counter[int]()
        self.calls: list[str] = []
        self.counts = Counter[str]()
        self.fails: Callable[[str, int], int] = lambda name, number: 0  # (call, how often before) -> status or 0
        self.kept = 0  # the error that every call gives from now on
        self.after_loss: list[str] = []  # calls made on a lost device
        self.local = threading.local()
        self.emulators = [EmulatedDevice(seed=index, poison=0 if dry else 0xA5) for index in range(count)]

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self.local, "device", 0)

    def call(self, name: str) -> None:
        """One call of CUDA, which may fail."""
        if self.kept:
            self.after_loss.append(name)
        status = self.kept or self.fails(name, self.counts[name])
        self.calls.append(name)
        self.counts[name] += 1
        if not status:
            return
        if status in KEPT:
            self.kept = status
        raise (CUDADriverError if name in DRIVER_CALLS else CUDARuntimeError)(status)

    def check_device(self, what: str, index: int) -> None:
        """An AssertionError where another device is the current one."""
        assert index == self.current, f"{what} of device {index}, while {self.current} is the current one"
