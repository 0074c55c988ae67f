"""Launches that are recorded once and played again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auditkit.kernels.device import Device


class Recording:
    """The launches of a function, recorded once and played again as one CUDA graph.

    The function must launch the same kernels on the same arrays each time, upload nothing and wait for nothing. What it
    allocates comes from a pool of its own, which lives as long as the recording.
    """

    def __init__(self, device: Device, function: Callable[[], Any]) -> None:
        """Run `function` twice, so that kernels are loaded and the pool is filled, and record the third run.

        `result`: what the recorded run returned; each play writes it anew.
        """
        self._device = device
        with device.use(), device.own_memory() as self._memory:
            function()
            function()
            device.synchronize()
            self.result, self._graph = device.capture(function)
        self._memory.kept.append(self._graph)

    def play(self) -> None:
        """Run the recorded launches, in order with all else on the device."""
        self._device.play(self._graph)
