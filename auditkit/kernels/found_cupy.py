"""CuPy, if it is there and finds a device."""

from __future__ import annotations

import warnings
from typing import Any

from auditkit.errors import Unsupported
from auditkit.kernels import faults

INSTALL = "install auditkit-verifier[cuda13] (driver 580 or newer) or [cuda12], or use --device cpu"


def load() -> Any:
    """The module `cupy`. Raises Unsupported where it is not installed or does not load."""
    try:
        with warnings.catch_warnings():
            # The wheels of CUDA 12 have no common folder, which CuPy looks for on Windows and does without.
            warnings.filterwarnings("ignore", message="CUDA path could not be detected")
            import cupy
    except ModuleNotFoundError as error:
        raise Unsupported("CuPy is not installed, so no CUDA device can be used", hint=INSTALL) from error
    except (ImportError, OSError, RuntimeError) as error:  # a library that it needs
        raise Unsupported(f"CuPy does not load ({faults.first_line(error)})", hint=INSTALL) from error
    return cupy


def visible(cupy: Any) -> int:
    """How many CUDA devices this process sees. Raises Unsupported for none, MachineFault where CUDA is broken."""
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except faults.kinds(cupy) as error:
        raise faults.verdict_of(error, "CUDA") from error
    except (RuntimeError, OSError, ImportError) as error:  # a library that CuPy looks for only now
        raise Unsupported(f"CUDA cannot be used ({faults.first_line(error)})", hint=INSTALL) from error
    if not count:
        raise Unsupported("no CUDA device is visible", hint="check nvidia-smi and the driver, or use --device cpu")
    return count
