"""Many small arrays of words into one, by one launch (cuda/blake3.cu): a copy of each would take the host longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from auditkit.kernels.device import Array, Device

WORDS = 8  # of a row
_BLOCK = 256


def gather(device: Device, parts: Sequence[Array], targets: Sequence[int], out: Array) -> None:
    """Write parts (n, 8) uint32, C-contiguous, to rows targets[i] and on of out (N, 8) uint32."""
    if not parts:
        return
    first = np.cumsum([0, *(int(part.shape[0]) for part in parts)], dtype=np.uint64)
    count, rows = len(parts), int(first[-1])
    pointers = np.array([device.address(part) for part in parts], np.uint64)
    table = device.upload(np.concatenate([pointers, first, np.array(targets, np.uint64)]))
    args = [table[:count], table[count : 2 * count + 1], table[2 * count + 1 :], np.int64(count), out]
    device.launch("blake3", "gather", -(-rows * WORDS // _BLOCK), _BLOCK, args)


def gathered(device: Device, parts: Sequence[Array]) -> Array:
    """The parts one below the other, (N, 8) uint32."""
    ends = np.cumsum([int(part.shape[0]) for part in parts], dtype=np.int64).tolist()
    out = device.empty((ends[-1] if ends else 0, WORDS), np.uint32)
    gather(device, parts, [0, *ends[:-1]], out)
    return out
