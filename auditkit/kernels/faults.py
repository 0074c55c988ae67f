"""What CUDA and CuPy raise, as verdicts.

Too little memory, and a driver, card or compute mode that cannot do what is asked, are UNSUPPORTED. Everything else, an
illegal access, a memory error that ECC found, a lost device, a launch that failed, is a fault of this machine: what it
computes afterwards means nothing, and nothing of it says anything about the publisher.
"""

from __future__ import annotations

from typing import Any

from auditkit.errors import MachineFault, Unsupported

HINT = (
    "this says nothing about the publisher: nvidia-smi and the system log may say more; try again in a new process, "
    "with another card, or with --device cpu"
)

_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
_TIMEOUT = 702  # cudaErrorLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT

# What a driver, a card or its compute mode cannot do, with the remedy. The runtime and the driver number them alike
# (cudaError_t and CUresult, CUDA 12 and 13).
_CANNOT = {
    3: "CUDA does not start here: check nvidia-smi and the driver, or start a process of its own instead of a fork",
    34: "the CUDA library found is a stub: install the driver, or mend LD_LIBRARY_PATH",
    35: "install or update the driver, or install auditkit-verifier[cuda12], or use --device cpu",
    36: "install or update the driver, or install auditkit-verifier[cuda12], or use --device cpu",
    46: "another program holds the card exclusively (nvidia-smi -q -d COMPUTE): end it, or use --device cpu",
    100: "check nvidia-smi and the driver, or use --device cpu",
    200: "the driver is older than the compiler: update it, or install auditkit-verifier[cuda12]",
    209: "the driver is older than the compiler: update it, or install auditkit-verifier[cuda12]",
    222: "the driver is older than the compiler: update it, or install auditkit-verifier[cuda12]",
    801: "another card or a newer driver may do it, --device cpu does",
    803: "the driver was updated and not yet loaded: restart the machine",
    804: "install the driver that belongs to this card, or use --device cpu",
}


def kinds(cupy: Any) -> tuple[type[Exception], ...]:
    """The classes of what CuPy raises for an error of CUDA: RuntimeErrors with a `status`, and its MemoryError."""
    cuda = cupy.cuda
    return cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError


def verdict_of(error: Exception, where: str) -> Unsupported | MachineFault:
    """The verdict of one of `kinds`; `where` names the device, e.g. "CUDA device 0"."""
    status = getattr(error, "status", _MEMORY)  # CuPy's OutOfMemoryError has none
    text = first_line(error)
    if status == _MEMORY:
        return Unsupported(f"{where} has too little memory ({text})", hint="free the device, or use --device cpu")
    if status in _CANNOT:
        return Unsupported(f"{where} cannot be used ({text})", hint=_CANNOT[status])
    if status == _TIMEOUT:
        hint = "the system ends kernels that run long on a card that drives a display: use another, or --device cpu"
        return MachineFault(f"{where} failed ({text})", hint=hint)
    return MachineFault(f"{where} failed ({text})", hint=HINT)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line.strip("=")), type(error).__name__)
