"""Which documents of a source a tokenizer is trained on, where it is not all of them (SPEC.md section 6.8.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.philox import philox

DOMAIN = b"auditkit tokenizer sample"
MAX_ONE_IN = 1 << 20


def stream_of(source: int) -> int:
    """Random stream of a source: the first 8 bytes of BLAKE3(DOMAIN, then source as 8 bytes), both little-endian.

    Raises UsageError unless 0 <= source < 2^64.
    """
    if not 0 <= source < 1 << 64:
        raise UsageError(f"tokenizer sample: source {source} is outside 0 .. 2^64 - 1")
    return int.from_bytes(blake3(DOMAIN + source.to_bytes(8, "little")).digest(length=8), "little")


def sampled(seed: int, source: int, first: int, count: int, one_in: int) -> npt.NDArray[np.bool_]:
    """Whether documents first .. first + count - 1 of a source belong to the sample -> (count,) bool.

    Each with the chance 1 / one_in, decided by word 0 of its Philox block. Raises UsageError unless seed, source and
    documents lie in [0, 2^64) and one_in in [1, 2^20].
    """
    if not 1 <= one_in <= MAX_ONE_IN:
        raise UsageError(f"tokenizer sample: one document in {one_in} is outside 1 .. 2^20")
    words = philox(seed, stream_of(source), first, count)[:, 0].astype(np.uint64)
    return words * np.uint64(one_in) < np.uint64(1 << 32)
