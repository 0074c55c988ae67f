"""This machine: how many threads may run, how much memory and disk there is, and what it is called in a report."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from pathlib import Path

import numpy as np

from auditkit.version import version

HINT = "this says nothing about the publisher; check the memory and cooling of this machine, and try another one"


def processors() -> int:
    """Threads that can run side by side in this process: the scheduler's mask if there is one, else all processors."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int | None:
    """Bytes of main memory that this process can get at most (a container's limit counts), None where nobody says."""
    found = [size for size in (_physical_memory(), _cgroup_limit()) if size]
    return min(found, default=None)


def free_memory() -> int | None:
    """Bytes of main memory that this process can get now, a container's limit included; None where nobody says."""
    found = [size for size in (total_memory(), _available(), _cgroup_free()) if size is not None]
    return min(found, default=None)


def _available() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, UnicodeDecodeError, IndexError, ValueError):
        return None


def _cgroup_free() -> int | None:
    """What is left of a container's limit (version 2); files that are only cached do not count as used."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        cached = int((folder / "memory.stat").read_text(encoding="ascii").split("\ninactive_file ")[1].split()[0])
    except (OSError, UnicodeDecodeError, IndexError, ValueError):
        return None
    return max(0, int(limit) - used + cached) if limit.isdigit() else None


def free_disk(path: Path) -> int | None:
    """Bytes free on the disk that would hold `path`, which need not exist yet; None where nobody says."""
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def describe() -> dict[str, str]:
    """What a report says about where it was made."""
    return {
        "auditkit": version(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
    }


def _physical_memory() -> int | None:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _windows_memory() -> int | None:
    """GlobalMemoryStatusEx: MEMORYSTATUSEX is two 32-bit and seven 64-bit numbers, the first of these the total."""
    block = (ctypes.c_uint64 * 8)()
    ctypes.cast(block, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(block)
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent from the stubs of other systems
    return int(block[1]) if kernel.GlobalMemoryStatusEx(ctypes.byref(block)) else None


def _cgroup_limit() -> int | None:
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        # version 1 writes a number near 2^63 and version 2 "max" where there is no limit
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None
