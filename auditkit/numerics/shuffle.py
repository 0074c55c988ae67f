"""The order in which an epoch visits the windows of a token stream (SPEC.md section 6.8)."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.arrays import I64
from auditkit.numerics.elementwise import U64
from auditkit.numerics.philox import philox

DOMAIN = b"auditkit window order"

_BLOCKS = 65_536  # Philox blocks at a time: bounded memory for any number of windows


def stream_of(epoch: int) -> int:
    """Random stream of an epoch: the first 8 bytes of BLAKE3(DOMAIN, then epoch as 8 bytes), both little-endian.

    Raises UsageError unless 0 <= epoch < 2^64.
    """
    if not 0 <= epoch < 1 << 64:
        raise UsageError(f"window order: epoch {epoch} is outside 0 .. 2^64 - 1")
    return int.from_bytes(blake3(DOMAIN + epoch.to_bytes(8, "little")).digest(length=8), "little")


def window_order(seed: int, epoch: int, windows: int) -> I64:
    """Windows 0 .. windows - 1 in the order of this epoch -> (windows,) int64, a permutation.

    The key of window w is word 0 + 2^32 word 1 of Philox block w; ascending keys, equal keys in the order of w.
    Raises UsageError unless seed and epoch lie in [0, 2^64) and windows is not negative.
    """
    if windows < 0:
        raise UsageError(f"window order: {windows} windows")
    stream = stream_of(epoch)
    keys: U64 = np.empty(windows, np.uint64)
    for first in range(0, windows, _BLOCKS):
        words = philox(seed, stream, first, min(_BLOCKS, windows - first)).astype(np.uint64)
        keys[first : first + _BLOCKS] = words[:, 0] | (words[:, 1] << np.uint64(32))
    return np.argsort(keys, kind="stable").astype(np.int64)
