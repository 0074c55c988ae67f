"""RFC 6962 Merkle trees over SHA-256: the log of the step records and the tree of a step's micro-batches.

SHA-256 and not BLAKE3, because public transparency logs and their verifiers speak RFC 6962. All hashes here are 32 raw
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from auditkit.errors import Untrusted

EMPTY_ROOT = hashlib.sha256(b"").digest()  # RFC 6962 section 2.1: the hash of an empty list


def leaf_hash(data: bytes) -> bytes:
    """SHA-256 of a zero byte and the entry (RFC 6962 section 2.1), 32 bytes."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256 of a one byte and both children (RFC 6962 section 2.1), 32 bytes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The Merkle tree hash of leaf hashes in order, 32 bytes; of none, the hash of the empty string."""
    level = list(leaf_hashes)
    while len(level) > 1:
        level = _level_above(level)
    return level[0] if level else EMPTY_ROOT


def inclusion_proof(leaf_hashes: Sequence[bytes], index: int) -> list[bytes]:
    """The audit path of leaf `index` (RFC 6962 section 2.1.1), lowest sibling first; IndexError outside the tree."""
    if not 0 <= index < len(leaf_hashes):
        raise IndexError(f"leaf {index} of a tree of {len(leaf_hashes)}")
    proof = []
    level = list(leaf_hashes)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):  # the last node of an odd level has none and moves up as it is
            proof.append(level[sibling])
        level = _level_above(level)
        index //= 2
    return proof


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that leaf hash `leaf` is entry `index` of the tree of `size` entries under `root`; Untrusted otherwise."""
    if not 0 <= index < size:
        raise Untrusted(f"log proof: entry {index} is outside a log of {size}")
    found = leaf
    path = iter(proof)
    last = size - 1
    while last > 0:
        if index & 1 or index < last:
            sibling = next(path, b"")
            if len(sibling) != 32:
                raise Untrusted("log proof: too few hashes, or one that is not 32 bytes")
            found = node_hash(sibling, found) if index & 1 else node_hash(found, sibling)
        index //= 2
        last //= 2
    if next(path, None) is not None:
        raise Untrusted("log proof: too many hashes")
    if found != root:
        raise Untrusted(f"log proof: leads to root {found.hex()}, not {root.hex()}")


class Frontier:
    """The right edge of a growing tree: appends in O(1) on average and gives the root of any size in O(log n)."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []  # roots of the perfect subtrees, largest first, one per set bit of size

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        self.size += 1
        carry = self.size
        while carry & 1 == 0:  # each trailing zero bit joins two equal subtrees
            leaf = node_hash(self._peaks.pop(), leaf)
            carry >>= 1
        self._peaks.append(leaf)

    def root(self) -> bytes:
        """The Merkle tree hash of all leaves so far, 32 bytes."""
        if not self._peaks:
            return EMPTY_ROOT
        found = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            found = node_hash(peak, found)
        return found


def _level_above(level: list[bytes]) -> list[bytes]:
    above = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    if len(level) % 2:
        above.append(level[-1])
    return above
