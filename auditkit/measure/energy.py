"""The energy that a device has used, where it says: NVML's counter of a card, the powercap counters of a processor."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

from auditkit.kernels.device import Device
from auditkit.replay.backend import Backend, CudaBackend

Meter = Callable[[], float | None]  # joules since any fixed moment; None where nobody says

POWERCAP = Path("/sys/class/powercap")


def meter_of(backend: Backend) -> Meter:
    """The meter of the device that a back end computes on; it may say None at any time."""
    if isinstance(backend, CudaBackend):
        device = backend.ops.device
        return _nvml(device) if isinstance(device, Device) else _unknown
    return Packages.found()


def _unknown() -> float | None:
    return None


def _nvml(device: Device) -> Meter:
    """The card's own counter since the driver was loaded, by the library that comes with the driver."""
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return _unknown
    bus = str(device.cupy.cuda.runtime.deviceGetPCIBusId(device.index))
    handle = ctypes.c_void_p()
    opened = library.nvmlInit_v2() == 0
    if not opened or library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode("ascii"), ctypes.byref(handle)) != 0:
        return _unknown

    def read() -> float | None:
        millijoules = ctypes.c_ulonglong()
        failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1e3

    return read


class Packages:
    """The counters of all processor packages together; each begins anew at its range."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    @classmethod
    def found(cls, root: Path = POWERCAP) -> Packages:
        """Those of this machine; often only the administrator may read them."""
        return cls(sorted(root.glob("intel-rapl:[0-9]*"))) if root.is_dir() else cls([])

    def __call__(self) -> float | None:
        """Joules since the first call; None where no counter can be read."""
        packages = [folder for folder in self._folders if folder.name.count(":") == 1]
        try:
            for folder in packages:
                now = int((folder / "energy_uj").read_text(encoding="ascii"))
                span = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
                used = now - self._last.get(folder, now)
                self._joules += (used if used >= 0 else used + span) / 1e6
                self._last[folder] = now
        except (OSError, ValueError):
            return None
        return self._joules if packages else None
