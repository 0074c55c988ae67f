"""Time on a device's stream: marks that the device sets when it has done what was launched before them."""

from __future__ import annotations

from typing import Any

from auditkit.kernels.device import Device


class EventClock:
    """Marks by CUDA events. Setting one costs a few microseconds and never waits."""

    def __init__(self, device: Device) -> None:
        self._cuda = device.cupy.cuda
        self._stream = device.stream

    def mark(self) -> Any:
        """A mark after all that is on the stream now."""
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks; waits for the later one."""
        end.synchronize()
        return float(self._cuda.get_elapsed_time(begin, end)) / 1e3
