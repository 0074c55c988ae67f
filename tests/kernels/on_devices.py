"""What the tests of the kernels run on: the emulator always, a real card where there is one."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from auditkit.replay.backend import kernel_cache
from auditkit.store.progress import Silent
from tests.kernels.emulator import EmulatedDevice, compiler

# `pytestmark = EMULATOR_MARKS` in a file whose tests need the emulator. Without a compiler they skip; in CI that fails
# (tests/plugins/required.py), but only on Linux.
EMULATOR_MARKS = [pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++ on Linux, x86-64")]
if sys.platform != "linux":
    EMULATOR_MARKS.append(pytest.mark.optional("the emulator runs on Linux, whose CI jobs run these tests"))


def real_device(index: int = 0) -> Any:
    """A CUDA card. Skips the test when CuPy, a driver or a card is missing."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from auditkit.kernels.device import Device, device_count

    if device_count() <= index:
        pytest.skip("no CUDA device" if index == 0 else f"fewer than {index + 1} CUDA devices")
    device = Device(index, cache=kernel_cache())
    device.prepare(os.cpu_count() or 1, Silent())  # once for all processes of a run, which have that folder in common
    return device


# `pytestmark = GPU_MARKS` where only a card will do; the test calls real_device() and skips without one.
GPU_MARKS = [pytest.mark.optional("CI has no GPU; the emulator runs the same source")]

DEVICES: list[Any] = [
    pytest.param(EmulatedDevice, id="emulator", marks=EMULATOR_MARKS),
    pytest.param(real_device, id="gpu", marks=GPU_MARKS),
]
