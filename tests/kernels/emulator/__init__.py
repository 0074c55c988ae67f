"""Runs the CUDA sources bit for bit on a CPU; see tests/kernels/README.md."""

from tests.kernels.emulator.build import BuildError, compiler
from tests.kernels.emulator.device import EmulatedArray, EmulatedDevice, EmulationError

__all__ = ["BuildError", "EmulatedArray", "EmulatedDevice", "EmulationError", "compiler"]
