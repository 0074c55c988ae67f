"""The peak memory of a program that a test starts.

`ru_maxrss` begins, on Linux, with the peak of the process that started the program (here pytest's, which may be large);
VmHWM begins anew with each program.
"""

from __future__ import annotations

import sys
from pathlib import Path


def peak_bytes() -> int:
    """The most memory that this process has held at a time, in bytes. Not for Windows."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
