"""Moves and plain additions between the ops: at most one binary32 addition an element (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.formats import blake3_tree
from auditkit.formats.digest import Digest, Hasher
from auditkit.formats.tensors import little_endian, tensor_digest
from auditkit.numerics.arrays import F32, I64, ieee
from auditkit.numerics.nonfinite import NonFinite


@ieee
def add(x: F32, y: F32) -> F32:
    """x + y elementwise: residual stream, and gradients that meet."""
    total: F32 = x + y
    return total


def split_heads(x: F32, batch: int, heads: int) -> F32:
    """(N, heads * D) -> (B, heads, T, D), contiguous."""
    dim = x.shape[1] // heads
    return np.ascontiguousarray(x.reshape(batch, -1, heads, dim).transpose(0, 2, 1, 3))


def merge_heads(x: F32) -> F32:
    """(B, heads, T, D) -> (N, heads * D), contiguous."""
    batch, heads, tokens, dim = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch * tokens, heads * dim)


def join_rows(parts: Sequence[F32]) -> F32:
    """Parts (n, ...) of one dtype and width, one below the other; a single part is itself."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def columns(parts: Sequence[F32], first: int, stop: int) -> F32:
    """Columns first .. stop - 1 of parts (n, V) that lie one below the other, contiguous; one part whole is itself."""
    if len(parts) == 1 and (first, stop) == (0, parts[0].shape[1]):
        return parts[0]
    return np.concatenate([part[:, first:stop] for part in parts])


def digests(arrays: Sequence[F32 | I64], key: bytes | None = None) -> list[Digest]:
    """The tensor digest of each array; with a key of 32 bytes, in BLAKE3's keyed mode."""
    return [tensor_digest(array, key) for array in arrays]


def block_nodes(parts: Sequence[F32], firsts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """`blake3_tree.block_nodes`: parts[i] begins with block firsts[i] of a tensor of sizes[i] bytes."""
    return blake3_tree.block_nodes([little_endian(part) for part in parts], firsts, sizes)


def check_finite(arrays: Mapping[str, F32]) -> None:
    """Raises NonFinite naming the first array that holds inf or NaN."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise NonFinite(f"the update makes {name} non-finite")


def place(array: F32) -> F32:
    """A host array where the arrays of these ops live: here as it is."""
    return array


@dataclass(frozen=True)
class Here:
    """An array that is where it is wanted."""

    array: F32

    left = 0

    def begin(self) -> None:
        """Go on to bring it: there is nothing left."""

    def end(self) -> None:
        """Want no more of it."""

    def __call__(self) -> F32:
        """The array."""
        return self.array


def bring(array: F32, parts: int = 1) -> Here:  # noqa: ARG001 - there is nothing to bring
    """Begin to place a host array that does not change, the first of some parts of it; `begin` goes on with the next
    one. The result, called once, gives the array.
    """
    return Here(array)


def host(array: F32) -> F32:
    """An array of these ops as a NumPy array: here as it is."""
    return array


class TensorDigest:
    """The digest of a tensor whose elements come in pieces, in C order."""

    def __init__(self, size: int, key: bytes | None = None) -> None:
        """size: bytes of the whole tensor; key: 32 bytes for BLAKE3's keyed mode."""
        self._hasher, self._left = Hasher(key), size

    def add(self, piece: F32 | I64) -> None:
        """The next elements; all pieces but the last are of whole blocks of 128 KiB."""
        self._hasher.update(little_endian(piece))
        self._left -= piece.nbytes

    def digest(self) -> Digest:
        """The digest of all pieces. ValueError: other bytes came than the tensor has."""
        if self._left:
            raise ValueError(f"{self._left} bytes are missing")
        return self._hasher.hexdigest()


def read_digests(made: Sequence[TensorDigest]) -> list[Digest]:
    """The digests of tensors whose pieces are all there."""
    return [one.digest() for one in made]


def join_sums(sums: Sequence[I64]) -> I64:
    """n exact sums of shape () as one array, (n,) int64."""
    return np.array([int(each) for each in sums], np.int64)
