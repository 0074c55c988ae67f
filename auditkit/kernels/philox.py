"""Random words on the device (cuda/philox.cu); SPEC.md section 6.6."""

from __future__ import annotations

import numpy as np

from auditkit.errors import UsageError
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.elementwise import BLOCK


def philox(device: Device, seed: int, stream: int, start: int, count: int, *, block: int | None = None) -> Array:
    """Words of blocks start .. start + count - 1 of a stream -> (count, 4) uint32.

    Raises UsageError unless seed, stream and every block lie in [0, 2^64).
    """
    for what, value in (("seed", seed), ("stream", stream), ("block", start), ("block", start + count)):
        if not 0 <= value < 1 << 64:
            raise UsageError(f"random numbers: {what} {value} is outside 0 .. 2^64 - 1")
    words, threads = device.empty((count, 4), np.uint32), block or BLOCK
    args = (words, np.uint64(seed), np.uint64(stream), np.uint64(start), np.int64(count))
    device.launch("philox", "philox", blocks_for(count, threads), threads, args)
    return words
