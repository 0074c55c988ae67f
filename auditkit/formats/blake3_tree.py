"""BLAKE3 of bytes that lie in parts: the nodes of aligned blocks of 128 KiB, and their joint digest.

BLAKE3 hashes chunks of 1024 bytes and joins neighbours to a binary tree, in which every aligned run of 2^k chunks is a
subtree (the BLAKE3 paper, sections 2.1 to 2.5). So whoever holds whole blocks can make their nodes alone, and nobody
needs all bytes to make the digest. The `blake3` package does not give out nodes; here they are made with NumPy, many
chunks at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from auditkit.formats.digest import Digest

U32: TypeAlias = npt.NDArray[np.uint32]

CHUNK_BYTES = 1024
BLOCK_BYTES = 128 * CHUNK_BYTES
NODE_BYTES = 32

_WORDS = 16  # of a block of the compression, 64 bytes
_AT_ONCE = 2048  # chunks: the words of one compression of all of them stay in a core's cache

_IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_PERMUTATION = np.array([2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8])
_ROUNDS = 7
_TURNED = [np.roll(np.arange(4), -turn) for turn in range(4)]


def blocks_of(size: int) -> int:
    """How many blocks `size` bytes fill, the last one perhaps in part."""
    return max(1, -(-size // BLOCK_BYTES))


def block_nodes(parts: Sequence[npt.NDArray[Any]], firsts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """The nodes of the blocks of parts of tensors, 32 bytes each; of all parts at once, for many chunks cost as few do.

    parts    C-contiguous, any dtype, little-endian: whole blocks, the last one of a tensor may be short
    firsts   number of the block of its tensor that each part begins with
    sizes    bytes of the whole tensors, more than one block: a single one has a digest and no node
    ValueError for a part that is none.
    """
    raws = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
    chunks = [_Chunks.of(*part) for part in zip(raws, firsts, sizes, strict=True)]
    if not chunks:
        return []
    found = np.concatenate([_chunk_nodes(batch) for batch in _batches(chunks)], axis=1)
    ends = list(itertools.accumulate(part.words.shape[0] for part in chunks))
    return _blocks([found[:, end - part.words.shape[0] : end] for part, end in zip(chunks, ends, strict=True)])


@dataclass(frozen=True)
class _Chunks:
    """Chunks of 1024 bytes: words (n, 256), the last one padded; the number of each in its tensor, its bytes."""

    words: U32
    numbers: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, raw: npt.NDArray[np.uint8], first: int, size: int) -> _Chunks:
        """Those of a part."""
        check_part(raw.size, first, size)
        count = -(-raw.size // CHUNK_BYTES)
        padded = raw
        if raw.size % CHUNK_BYTES:
            padded = np.zeros(count * CHUNK_BYTES, np.uint8)
            padded[: raw.size] = raw
        begin = first * (BLOCK_BYTES // CHUNK_BYTES)
        lengths = np.full(count, CHUNK_BYTES, np.int64)
        lengths[-1] = raw.size - (count - 1) * CHUNK_BYTES
        words = padded.view("<u4").astype(np.uint32, copy=False).reshape(count, -1)
        return cls(words, np.arange(begin, begin + count, dtype=np.uint64), lengths)


def _batches(parts: Sequence[_Chunks]) -> Iterator[_Chunks]:
    """The chunks of all parts, a batch of as many as fit the cache after the other."""
    waiting: list[_Chunks] = []
    count = 0
    for part in parts:
        at = 0
        while at < part.words.shape[0]:
            end = min(part.words.shape[0], at + _AT_ONCE - count)
            waiting.append(_Chunks(part.words[at:end], part.numbers[at:end], part.lengths[at:end]))
            count += end - at
            at = end
            if count == _AT_ONCE:
                yield _together(waiting)
                waiting, count = [], 0
    if waiting:
        yield _together(waiting)


def _together(parts: list[_Chunks]) -> _Chunks:
    return _Chunks(
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def check_part(part_size: int, first: int, size: int) -> None:
    """ValueError unless `part_size` bytes are whole blocks, from block `first` on, of a tensor of `size` bytes."""
    end = first * BLOCK_BYTES + part_size
    if size <= BLOCK_BYTES or part_size < 1 or not 0 <= first * BLOCK_BYTES < end <= size:
        raise ValueError(f"{part_size} bytes from block {first} on are no part of {size} bytes in several blocks")
    if part_size % BLOCK_BYTES and end != size:
        raise ValueError(f"{part_size} bytes are no whole blocks")


def join_nodes(nodes: bytes) -> Digest:
    """The digest of the bytes whose blocks have these nodes, two or more, in order."""
    cv = np.frombuffer(nodes, "<u4").astype(np.uint32).reshape(-1, 8).T  # (8, n)
    if cv.shape[1] < 2:
        raise ValueError("fewer than two nodes")
    while cv.shape[1] > 2:
        cv = _join(cv, 0)
    return _bytes(_join(cv, _ROOT)).hex()


def _bytes(cv: U32) -> bytes:
    return np.ascontiguousarray(cv.T).astype("<u4").tobytes()


def _chunk_nodes(chunks: _Chunks) -> U32:
    """(8, n) nodes of n chunks."""
    count = chunks.words.shape[0]
    low, high = chunks.numbers.astype(np.uint32), (chunks.numbers >> np.uint64(32)).astype(np.uint32)
    cv = np.repeat(_IV[:, None], count, axis=1)
    for block in range(CHUNK_BYTES // 64):
        left = chunks.lengths - 64 * block  # bytes of each chunk from here on
        flags = np.where(left <= 64, np.uint32(_CHUNK_END), np.uint32(0)) | np.uint32(0 if block else _CHUNK_START)
        lengths = np.clip(left, 0, 64).astype(np.uint32)
        message = np.ascontiguousarray(chunks.words[:, _WORDS * block : _WORDS * (block + 1)].T)
        made = _compress(cv, message, (low, high, lengths, flags))
        cv = made if left.min() > 0 else np.where(left > 0, made, cv)  # some have ended before
    return cv


def _blocks(parts: Sequence[U32]) -> list[bytes]:
    """(8, n) nodes of each part's chunks to those of its blocks of 128; the last block may have fewer."""
    chunks = BLOCK_BYTES // CHUNK_BYTES
    counts = [part.shape[1] // chunks for part in parts]
    full = np.concatenate([part[:, : count * chunks] for part, count in zip(parts, counts, strict=True)], axis=1)
    for _ in range(chunks.bit_length() - 1):
        full = _join(full, 0)
    made, at = [], 0
    for part, count in zip(parts, counts, strict=True):
        rest = part[:, count * chunks :]
        while rest.shape[1] > 1:
            rest = _join(rest, 0)
        made.append(_bytes(np.concatenate([full[:, at : at + count], rest], axis=1)))
        at += count
    return made


def _join(cv: U32, flag: int) -> U32:
    """Neighbours of (8, n) nodes joined; a last one without a neighbour rises as it is."""
    pairs = cv.shape[1] // 2
    message = np.concatenate([cv[:, 0 : 2 * pairs : 2], cv[:, 1 : 2 * pairs : 2]])
    zeros, full = np.zeros(pairs, np.uint32), np.full(pairs, 64, np.uint32)
    start = np.repeat(_IV[:, None], pairs, axis=1)
    made = _compress(start, message, (zeros, zeros, full, np.full(pairs, _PARENT | flag, np.uint32)))
    return np.concatenate([made, cv[:, 2 * pairs :]], axis=1)


def _compress(cv: U32, message: U32, tail: tuple[U32, U32, U32, U32]) -> U32:
    """The compression of message (16, n) under cv (8, n); tail is counter low and high, length, flags, (n,) each."""
    a, b = cv[:4].copy(), cv[4:].copy()
    c = np.repeat(_IV[:4, None], cv.shape[1], axis=1)
    d = np.stack(tail)
    order = np.arange(_WORDS)
    for _ in range(_ROUNDS):
        _mix(a, b, c, d, message[order[0:8:2]], message[order[1:8:2]])  # the columns
        b, c, d = b[_TURNED[1]], c[_TURNED[2]], d[_TURNED[3]]
        _mix(a, b, c, d, message[order[8:16:2]], message[order[9:16:2]])  # the diagonals
        b, c, d = b[_TURNED[3]], c[_TURNED[2]], d[_TURNED[1]]
        order = order[_PERMUTATION]
    return np.concatenate([a ^ c, b ^ d])


def _mix(a: U32, b: U32, c: U32, d: U32, x: U32, y: U32) -> None:
    """The quarter round, on four columns of all chunks at once, in place."""
    for more, first, second in ((x, 16, 12), (y, 8, 7)):
        a += b
        a += more
        d ^= a
        _rotate(d, first)
        c += d
        b ^= c
        _rotate(b, second)


def _rotate(x: U32, right: int) -> None:
    left = x << np.uint32(32 - right)
    x >>= np.uint32(right)
    x |= left
