"""What a report says of a CUDA device besides its name: architecture, driver, CuPy."""

from __future__ import annotations

import re
from pathlib import Path

from auditkit.kernels.device import Device

MODULE = Path("/proc/driver/nvidia/version")  # of the kernel module, on Linux

_VERSION = re.compile(r"(?<![\w.])[0-9]{3,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?(?![\w.])")  # 580.95.05, 570.86


def versions(device: Device) -> dict[str, str]:
    """`architecture` (sm_90), `driver`, and `cupy`, its version."""
    return {
        "architecture": f"sm_{device.architecture}",
        "driver": driver_text(device.driver, module_version()),
        "cupy": str(device.cupy.__version__),
    }


def driver_text(api: int, module: str) -> str:
    """The driver in words: version of its kernel module or "", and the newest CUDA that it knows (13020 is 13.2)."""
    cuda = f"CUDA {api // 1000}.{api % 1000 // 10}"
    return f"{module} ({cuda})" if module else cuda


def module_version(place: Path = MODULE) -> str:
    """The version of the kernel module, "580.95.05"; "" where the system does not say."""
    try:
        first = place.read_text(encoding="ascii", errors="replace").partition("\n")[0]
    except OSError:
        return ""
    found = _VERSION.search(first)
    return found[0] if found else ""
