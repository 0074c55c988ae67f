"""Exact sum of squared gradients on the device (cuda/global_norm.cu); SPEC.md section 13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auditkit.kernels.device import Array, Device
from auditkit.kernels.exact_sum import small_term
from auditkit.kernels.tensor_table import BLOCK, TensorTable

_THREADS = 2048  # for each multiprocessor: a block keeps its sums over many tiles


def squares(
    device: Device, status: Array, grads: Sequence[Array], *, block: int | None = None, blocks: int | None = None
) -> Array:
    """Exact sum of the squares of all elements of float32 arrays, in one launch -> int64 (2,), see `squares_value`.

    A square that is not finite or reaches 2^32 sets bit 0 of `status`, a sum that does bit 1.
    """
    total = device.zeros((2,), np.int64)
    table = TensorTable.of(device, grads)
    most = blocks or device.multiprocessors * (_THREADS // (block or BLOCK))
    args = (total, status, np.float32(small_term(table.elements)))
    table.launch(device, "global_norm", "squares", args, block=block, blocks=most)
    return total


def squares_value(total: npt.NDArray[Any]) -> int:
    """The sum that `squares` left, once it is on the host: an integer in units 2^-62."""
    return (int(total[0]) << 32) + int(total[1])
