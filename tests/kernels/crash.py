"""Runs `auditkit` with a card that breaks at a launch: what the product does not do, done to it from outside.

    python -m tests.kernels.crash KIND LAUNCH ARGUMENT...      KIND: beyond (a store beyond all memory) or trap

Before launch number LAUNCH of the command a kernel of tests/kernels/sources/faults.cu runs on the device's stream.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from auditkit.cli.main import main
from auditkit.kernels.compile import OPTIONS, Nvrtc
from auditkit.kernels.device import Device
from tests.kernels.compiled import SOURCES

_launch = Device.launch
_launches = 0


def crash(device: Device, kind: str) -> None:
    """Launch the kernel, past all that the product guards; CUDA tells of it at some later call."""
    from cupy.cuda.function import Module

    text = (SOURCES / "faults.cu").read_bytes()
    module = Module()
    module.load(Nvrtc.load()(text, "faults.cu", (f"--gpu-architecture=sm_{device.architecture}", *OPTIONS)))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))  # going away it would be unloaded, with an error of its own
    if kind == "trap":
        module.get_function("trap")((1,), (1,), (), stream=device.stream)
        return
    word = device.zeros((1,), np.uint32)
    module.get_function("store")((1,), (1,), (word, np.int64(1 << 40)), stream=device.stream)


def arm(kind: str, at: int) -> None:
    """Let the device break before launch number `at`."""

    def launch(self: Device, *args: Any, **options: Any) -> None:
        global _launches
        _launches += 1
        if _launches == at:
            crash(self, kind)
        _launch(self, *args, **options)

    setattr(Device, "launch", launch)  # noqa: B010 - a method, as mypy would say


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
