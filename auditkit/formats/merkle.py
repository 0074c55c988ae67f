"""RFC 6962 Merkle trees over SHA-256: the log of the step records and the tree of a step's micro-batches.

SHA-256 and not BLAKE3, because public transparency logs and their verifiers speak RFC 6962. All hashes here are 32 raw
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from auditkit.errors import Untrusted

HASH_BYTES = 32
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
            sibling = _next(path)
            found = node_hash(sibling, found) if index & 1 else node_hash(found, sibling)
        index //= 2
        last //= 2
    if next(path, None) is not None:
        raise Untrusted("log proof: too many hashes")
    if found != root:
        raise Untrusted(f"log proof: leads to root {found.hex()}, not {root.hex()}")


Range = tuple[int, int]  # first entry and the one after the last: the subtree over these entries


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The subtrees whose hashes are the audit path of entry `index`, lowest first (RFC 6962 section 2.1.1)."""
    path, first, stop = [], 0, size
    while stop - first > 1:
        middle = first + _split(stop - first)
        if index < middle:
            path.append((middle, stop))
            stop = middle
        else:
            path.append((first, middle))
            first = middle
    return path[::-1]


def consistency_ranges(old: int, new: int) -> list[Range]:
    """The subtrees whose hashes prove that the first `old` of `new` entries are an older tree (section 2.1.2).

    None for an old tree that is empty or the new one itself.
    """
    if not 0 < old < new:
        return []
    path, first, stop = [], 0, new
    while stop != old:
        middle = first + _split(stop - first)
        if old <= middle:
            path.append((middle, stop))
            stop = middle
        else:
            path.append((first, middle))
            first = middle
    if first:  # else the old tree is this subtree, and who checks has its root
        path.append((first, stop))
    return path[::-1]


def complete_ranges(first: int, stop: int) -> list[Range]:
    """A subtree as complete ones of 2^k entries, largest first; `chain` of their hashes is its hash.

    `first` must be a multiple of the largest of them, as it is for every range above.
    """
    found = []
    while first < stop:
        size = 1 << (stop - first).bit_length() - 1
        found.append((first, first + size))
        first += size
    return found


def chain(hashes: Sequence[bytes]) -> bytes:
    """The hash of the tree whose complete subtrees, largest first, have these hashes; of none, that of an empty one."""
    if not hashes:
        return EMPTY_ROOT
    found = hashes[-1]
    for left in reversed(hashes[:-1]):
        found = node_hash(left, found)
    return found


def consistency_proof(leaf_hashes: Sequence[bytes], old: int) -> list[bytes]:
    """The proof that the first `old` entries are an older tree (RFC 6962 section 2.1.2); IndexError outside."""
    if not 0 <= old <= len(leaf_hashes):
        raise IndexError(f"an older tree of {old} entries, in one of {len(leaf_hashes)}")
    return [tree_root(leaf_hashes[first:stop]) for first, stop in consistency_ranges(old, len(leaf_hashes))]


def verify_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Check that the tree of `old` entries under `old_root` is the begin of that of `new` entries under `new_root`.

    Untrusted otherwise. Two trees of one size must have one root; an empty tree is the begin of any.
    """
    if not 0 <= old <= new:
        raise Untrusted(f"log proof: a log of {new} entries cannot continue one of {old}")
    if old in (0, new):
        if proof:
            raise Untrusted("log proof: too many hashes")
        if old == new and old_root != new_root:
            raise Untrusted(f"log proof: two roots of {new} entries, {old_root.hex()} and {new_root.hex()}")
        return
    before, after = _replayed(old, new, proof, old_root)
    if before != old_root:
        raise Untrusted(f"log proof: the first {old} entries have root {before.hex()}, not {old_root.hex()}")
    if after != new_root:
        raise Untrusted(f"log proof: leads to root {after.hex()}, not {new_root.hex()}")


def _replayed(old: int, new: int, proof: Sequence[bytes], old_root: bytes) -> tuple[bytes, bytes]:
    """The roots of both trees that a consistency proof gives (RFC 9162 section 2.1.4.2)."""
    at, last = old - 1, new - 1
    while at & 1:  # what is complete in both trees
        at >>= 1
        last >>= 1
    path = iter(proof)
    before = after = _next(path) if at else old_root  # a complete old tree is not in the proof
    while last:
        if at & 1 or at == last:
            left = _next(path)
            before, after = node_hash(left, before), node_hash(left, after)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            after = node_hash(after, _next(path))
        at >>= 1
        last >>= 1
    if next(path, None) is not None:
        raise Untrusted("log proof: too many hashes")
    return before, after


def _next(path: Iterator[bytes]) -> bytes:
    found = next(path, b"")
    if len(found) != HASH_BYTES:
        raise Untrusted("log proof: too few hashes, or one that is not 32 bytes")
    return found


def _split(size: int) -> int:
    """The largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


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
        return chain(self._peaks)


def _level_above(level: list[bytes]) -> list[bytes]:
    above = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    if len(level) % 2:
        above.append(level[-1])
    return above
