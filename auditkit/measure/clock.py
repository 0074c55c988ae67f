"""The clock of a back end: the device's own events, or, where a call returns when its work is done, the host's time."""

from __future__ import annotations

import time
from typing import Any, Protocol

from auditkit.kernels.device import Device
from auditkit.kernels.events import EventClock
from auditkit.replay.backend import Backend, CudaBackend


class Clock(Protocol):
    """Marks on the way of the work, and the seconds between two of them."""

    def mark(self) -> Any: ...
    def seconds(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """Marks by the host's clock."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Seconds between two marks."""
        return end - begin


def clock_of(backend: Backend) -> Clock:
    """The clock that tells when a back end has done its work."""
    if isinstance(backend, CudaBackend) and isinstance(backend.ops.device, Device):
        return EventClock(backend.ops.device)
    return HostClock()
