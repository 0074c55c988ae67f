"""The compiled C ops as Python functions: checked arrays in, NonFinite raised."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auditkit.errors import MachineFault, Unsupported
from auditkit.numerics.nonfinite import NonFinite

Array = npt.NDArray[Any]

NOT_FINITE, NOT_TAME = 1, 2  # what a function returns, source/common.h

_HINT = "this says nothing about the publisher; another library in this process has set it: try --device numpy"


class Library:
    """The functions of auditkit/native/source by name; the interpreter's lock is free while they run."""

    def __init__(self, path: Path) -> None:
        """Load a compiled library. Raises Unsupported."""
        try:
            self._loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unsupported(f"the compiled C ops do not load: {error}") from error
        if not self._loaded.runs_here():
            raise Unsupported("the C ops need a processor with AVX2")

    def call(self, name: str, *arguments: Array | int | np.float32) -> int:
        """Call a function: arrays by address, integers as int64, binary32 numbers as such. Raises NonFinite, and
        MachineFault where something has changed how this thread rounds: no self-test runs in every thread that calls.

        Returns 0, or NOT_TAME where only the reference can tell whether a sum is in its range.
        """
        if not self._loaded.is_ieee():
            raise MachineFault(f"{name}: this thread rounds otherwise, or flushes small numbers to zero", hint=_HINT)
        code: int = getattr(self._loaded, name)(*[_argument(value) for value in arguments])
        if code == NOT_FINITE:
            raise NonFinite(f"non-finite value in {name}")
        return code


def _argument(value: Array | int | np.float32) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_float(float(value)) if isinstance(value, np.float32) else ctypes.c_int64(value)
