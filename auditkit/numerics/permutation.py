"""The order "feistel" of the windows of an epoch, one place at a time (SPEC.md section 6.8.1).

A sorted order (shuffle.py) takes 8 bytes a window; this one takes nothing, so that a step of a corpus of any size can
be derived by itself. A Feistel network is a permutation whatever its round function is (Luby, Rackoff: "How to
construct pseudorandom permutations from pseudorandom functions", SIAM J. Comput. 17, 1988); walking the cycle until
the result lies in range makes one of any size of it (Black, Rogaway: "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.arrays import I64
from auditkit.numerics.elementwise import U32, U64
from auditkit.numerics.philox import philox4x32

DOMAIN = b"auditkit window permutation"
ROUNDS = 8
MAX_WINDOWS = 1 << 40


def stream_of(source: int, epoch: int) -> int:
    """Random stream of an epoch of a source: the first 8 bytes of BLAKE3(DOMAIN, source, epoch), 8 bytes each.

    All little-endian. Raises UsageError unless 0 <= source, epoch < 2^64.
    """
    if not (0 <= source < 1 << 64 and 0 <= epoch < 1 << 64):
        raise UsageError(f"window order: source {source} or epoch {epoch} is outside 0 .. 2^64 - 1")
    numbers = source.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    return int.from_bytes(blake3(DOMAIN + numbers).digest(length=8), "little")


def half_bits(windows: int) -> int:
    """The smallest h >= 1 with 4^h >= windows: the network permutes 2h bits, fewer than 4 times what is needed."""
    return max(1, ((windows - 1).bit_length() + 1) // 2)


def permute(seed: int, source: int, epoch: int, windows: int, places: I64) -> I64:
    """The windows at `places` (n,) int64 of an epoch -> (n,) int64, a permutation of 0 .. windows - 1 over all places.

    Raises UsageError unless seed, source and epoch lie in [0, 2^64), windows in [1, 2^40], places in [0, windows).
    """
    if not (0 <= seed < 1 << 64 and 1 <= windows <= MAX_WINDOWS):
        raise UsageError(f"window order: seed {seed} is outside 0 .. 2^64 - 1, or {windows} windows outside 1 .. 2^40")
    if places.size and not (0 <= int(places.min()) and int(places.max()) < windows):
        raise UsageError(f"window order: a place is outside 0 .. {windows - 1}")
    stream, bits, key = stream_of(source, epoch), half_bits(windows), (seed & 0xFFFFFFFF, seed >> 32)
    found: U64 = places.astype(np.uint64)
    left: npt.NDArray[np.intp] = np.arange(found.size)  # which results have not been in range yet
    while left.size:
        found[left] = _network(found[left], bits, stream, key)
        left = left[found[left] >= windows]
    return found.astype(np.int64)


def _network(values: U64, bits: int, stream: int, key: tuple[int, int]) -> U64:
    """ROUNDS rounds over the two halves of `bits` bits each of values (n,) uint64 -> (n,) uint64."""
    width, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    high, low = values >> width, values & mask
    counter: U32 = np.empty((values.size, 4), np.uint32)  # block low, block high, stream low, stream high
    counter[:, 2], counter[:, 3] = stream & 0xFFFFFFFF, stream >> 32
    for number in range(ROUNDS):
        counter[:, 0], counter[:, 1] = low, number
        word = philox4x32(counter, key)[:, 0].astype(np.uint64)
        high, low = low, high ^ (word & mask)
    return (high << width) | low
