"""Exact dot products by the asynchronous tensor cores of sm_90 (cuda/exact_dot_sm90.cu); SPEC.md section 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from auditkit.kernels.device import Device, blocks_for
from auditkit.kernels.exact_dot_planes import Operand

ARCHITECTURE = "90"
STEP = 128  # bytes of a row that a stage holds; rows are whole multiples

_ROWS, _THREADS = 128, 384  # of a block's tile; of a block


@dataclass(frozen=True)
class Kernel:
    """A kernel: the longest row by bits, columns of a tile, stages of the ring, blocks of a cluster.

    staged: results go through shared memory.
    """

    longest: dict[int, int]
    columns: int
    stages: int
    cluster: int = 2
    staged: bool = False

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the ring, its barriers, two warpgroups' scales and flags of two tiles, alignment."""
        ring, scales = self.stages * (_ROWS + self.columns) * STEP, 4 * (self.columns * 4 + 16)
        places = 8 * 2 * 16 * (64 * 4 + 32) if self.staged else 0
        return ring + 128 + scales + places + 1024


KERNELS = {
    "wgmma_short": Kernel({14: 3840}, 256, 4),
    "wgmma_long": Kernel({14: 32640}, 256, 4),
    "wgmma_wide": Kernel({14: 1 << 27, 21: 1 << 23}, 128, 6),
}


def fitting(bits: int, padded: int) -> str:
    """The first kernel for rows of `padded` bytes a plane; "" without one."""
    if padded % STEP:
        return ""
    return next((name for name, kernel in KERNELS.items() if padded <= kernel.longest.get(bits, 0)), "")


def launch(device: Device, a: Operand, b: Operand, arguments: tuple[Any, ...], chosen: str) -> None:
    """Every row of a with every row of b by the kernel `chosen`, or the fitting one for "wgmma".

    arguments: what exact_dot.dot made of operands and result. Raises ValueError where the kernel does not fit.
    """
    name = fitting(a.bits, a.padded) if chosen == "wgmma" else chosen
    kernel = KERNELS.get(name)
    fits = kernel is not None and a.padded % STEP == 0 and a.padded <= kernel.longest.get(a.bits, 0)
    if kernel is None or not fits or device.architecture != ARCHITECTURE:
        raise ValueError(f"{chosen} does not fit sm_{device.architecture} or {a.bits} bits of rows of {a.padded}")
    units = a.batch * blocks_for(a.rows, kernel.cluster * _ROWS) * blocks_for(b.rows, kernel.columns)
    grid = kernel.cluster * min(units, max(1, device.multiprocessors // kernel.cluster))
    device.launch("exact_dot_sm90", f"exact_dot_{name}_{a.bits}", grid, _THREADS, arguments, shared=kernel.shared)
