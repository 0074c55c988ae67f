"""BLAKE3 of device memory, where it lies: what the `blake3` package says of the same bytes (cuda/blake3.cu)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from auditkit.formats.blake3_tree import BLOCK_BYTES, blocks_of, check_part
from auditkit.formats.digest import KEY_BYTES, Digest, Hasher
from auditkit.kernels.device import Array, Device
from auditkit.kernels.gather import WORDS, gather

CHUNK_BYTES = 1024
CHUNKS = 128  # chunks that a block joins to one node
_PARENTS = 256  # threads of a block of `parents`, which joins twice as many nodes


def digests(device: Device, arrays: Sequence[Array], key: bytes | None = None) -> list[Digest]:
    """The digest of each array's bytes in C order, plain or with a key of 32 bytes; waits for the device.

    arrays: C-contiguous, of any dtype and size, also empty. Arrays of up to 128 KiB take one launch for all of them
    together, up to 64 MiB two, up to 32 GiB three. ValueError: an array with strides, or a key of another size.
    """
    if not arrays:
        return []
    return read_words(device, digest_words(device, arrays, key))


def digest_words(device: Device, arrays: Sequence[Array], key: bytes | None = None) -> Array:
    """The same digests, left on the device: (n, 8) uint32, little-endian words. Does not wait."""
    if any(not array.flags.c_contiguous for array in arrays):
        raise ValueError("only C-contiguous arrays can be hashed in place")
    mode, keys = _mode(device, key)
    n, lengths = len(arrays), [array.nbytes for array in arrays]

    def chunks(table: Array, first: Array, blocks: int, nodes: Array, found: Array) -> None:
        args = [table[:n], table[n:], first, np.int64(n), nodes, found, *keys]
        device.launch("blake3", f"chunks{mode}", blocks, CHUNKS, args)

    return tree_digests(device, lengths, [[device.address(array) for array in arrays], lengths], chunks, mode, keys)


def tree_digests(
    device: Device,
    lengths: Sequence[int],
    rows: Sequence[Sequence[int]],
    chunks: Callable[[Array, Array, int, Array, Array], None],
    mode: str = "",
    keys: Sequence[Array] = (),
) -> Array:
    """The digests (n, 8) u32 of n buffers of so many bytes, whose first nodes `chunks` makes.

    chunks launches on: the table of n columns with these rows, which is uploaded here; `first` (n + 1) of so many
    blocks; nodes (blocks, 8), and digests (n, 8) for buffers of one block.
    """
    n, firsts = len(lengths), _levels(np.array(lengths, np.uint64))
    words = device.upload(np.concatenate([np.array(row, np.uint64) for row in (*rows, *firsts)]))
    at = len(rows) * n
    first = [words[at + level * (n + 1) : at + (level + 1) * (n + 1)] for level in range(len(firsts))]
    blocks = [int(level[-1]) for level in firsts]
    found = device.empty((n, 8), np.uint32)
    nodes = device.empty((blocks[0], 8), np.uint32)
    chunks(words[:at], first[0], blocks[0], nodes, found)
    _join(device, nodes, first, blocks, found, mode, keys)
    return found


def _join(
    device: Device,
    nodes: Array,
    first: Sequence[Array],
    blocks: Sequence[int],
    found: Array,
    mode: str = "",
    keys: Sequence[Array] = (),
) -> None:
    """Digests (n, 8) of the nodes (blocks[0], 8) of n buffers, level by level; first: (n + 1) of each level."""
    for level in range(1, len(blocks)):
        joined = device.empty((blocks[level], 8), np.uint32)
        args = [nodes, first[level - 1], first[level], np.int64(found.shape[0]), joined, found, *keys]
        device.launch("blake3", f"parents{mode}", blocks[level], _PARENTS, args)
        nodes = joined


def read_words(device: Device, words: Array) -> list[Digest]:
    """Digests from (n, 8) u32; waits for the device."""
    text = device.download(words).astype("<u4").tobytes().hex()
    return [text[64 * i : 64 * i + 64] for i in range(words.shape[0])]


def block_nodes(device: Device, parts: Sequence[Array], firsts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """The nodes of parts of tensors, as `auditkit.formats.blake3_tree.block_nodes`: 32 bytes for each block of 128 KiB.

    parts[i] is C-contiguous and begins with block firsts[i] of a tensor of sizes[i] bytes. One launch each; waits for
    the device. ValueError: a part that is not one of whole blocks.
    """
    made = [_part_nodes(device, *part) for part in zip(parts, firsts, sizes, strict=True)]
    return [device.download(nodes).astype("<u4").tobytes() for nodes in made]


class TensorDigest:
    """The digest of a tensor whose elements come in pieces, in C order; made on the device, with a key on the host."""

    def __init__(self, device: Device, size: int, key: bytes | None = None) -> None:
        """size: bytes of the whole tensor; key: 32 bytes for BLAKE3's keyed mode."""
        self._device, self.size, self.key = device, size, key
        self.blocks = self.nbytes = 0  # blocks of 128 KiB, and bytes, so far
        self.words: Array | None = None  # the digest on the device, (1, 8) uint32
        self.nodes: list[Array] = []  # or the nodes of its blocks, (n, 8) uint32 each
        self._hasher: Hasher | None = None

    def add(self, piece: Array) -> None:
        """The next elements. Where all pieces but the last are of whole blocks of 128 KiB, they stay on the device."""
        if piece.nbytes == self.size and (self.key is not None or blocks_of(self.size) == 1):
            self.end(digest_words(self._device, [piece], self.key))
        elif self.is_on_host(piece.nbytes):
            self._hasher = self._hasher or Hasher(self.key)
            self._hasher.update(self._device.download(piece))
            self.nbytes += piece.nbytes
        else:
            self.go_on(_part_nodes(self._device, piece, self.blocks, self.size), piece.nbytes)

    def is_on_host(self, nbytes: int) -> bool:
        """Whether the host must hash the next piece, of so many bytes: as it does the first one."""
        if self.nodes or self._hasher is not None or nbytes == self.size:
            return self._hasher is not None
        return self.key is not None or blocks_of(self.size) == 1 or nbytes % BLOCK_BYTES > 0

    def end(self, words: Array) -> None:
        """The digest of the whole tensor, (1, 8) uint32; of one in several blocks the nodes are enough (`go_on`)."""
        if self.is_there:
            raise ValueError(f"all of the {self.size} bytes came before")
        self.words, self.nbytes = words, self.size

    def go_on(self, nodes: Array, nbytes: int) -> None:
        """The nodes of the next piece, (n, 8) uint32 for its so many bytes."""
        self.nodes.append(nodes)
        self.blocks += blocks_of(nbytes)
        self.nbytes += nbytes

    def digest(self) -> Digest:
        """The digest of all pieces; waits for the device."""
        return read_digests(self._device, [self])[0]

    @property
    def is_there(self) -> bool:
        """Whether all bytes came, be it in one empty piece."""
        found = self.words is not None or self.nodes or self._hasher is not None
        return bool(found) and self.nbytes == self.size

    @property
    def of_host(self) -> Digest | None:
        """The digest, if the host has hashed the pieces."""
        return None if self._hasher is None else self._hasher.hexdigest()


def read_digests(device: Device, made: Sequence[TensorDigest]) -> list[Digest]:
    """The digests of tensors whose pieces are all there; waits for the device once for all of them.

    ValueError: a tensor has had other bytes than it has.
    """
    if not made:
        return []
    for one in made:
        if not one.is_there:
            raise ValueError(f"{one.nbytes} bytes came of {one.size}")
    words = read_words(device, _joined(device, made))
    return [found if one.of_host is None else one.of_host for one, found in zip(made, words, strict=True)]


def _joined(device: Device, made: Sequence[TensorDigest]) -> Array:
    """(n, 8) uint32 of n tensors: digests of what the device has hashed; rows of those of the host mean nothing."""
    n, counts = len(made), [sum(int(nodes.shape[0]) for nodes in one.nodes) for one in made]
    firsts = _levels_of(counts)
    table = device.upload(np.concatenate(firsts))
    first = [table[level * (n + 1) : (level + 1) * (n + 1)] for level in range(len(firsts))]
    both = device.empty((n + sum(counts), WORDS), np.uint32)
    _gather(device, made, both)
    _join(device, both[n:], first, [int(level[-1]) for level in firsts], both[:n])
    return both[:n]


def _gather(device: Device, made: Sequence[TensorDigest], both: Array) -> None:
    """Digests that are there to the first rows, one for each tensor, and all nodes to those below."""
    parts, targets, at = [], [], len(made)
    for number, one in enumerate(made):
        if one.words is not None:
            parts.append(one.words)
            targets.append(number)
        for nodes in one.nodes:
            parts.append(nodes)
            targets.append(at)
            at += int(nodes.shape[0])
    gather(device, parts, targets, both)


def _part_nodes(device: Device, part: Array, first: int, size: int) -> Array:
    """(blocks, 8) uint32. The kernel is told of the whole tensor, and runs only the blocks that lie here."""
    check_part(part.nbytes, first, size)
    if not part.flags.c_contiguous:
        raise ValueError("only C-contiguous arrays can be hashed in place")
    begin = device.address(part) - first * BLOCK_BYTES  # where the tensor would begin
    words = np.array([begin, size, -first], np.int64).view(np.uint64)  # block 0 of the launch is block `first`
    table = device.upload(words)
    nodes = device.empty((blocks_of(part.nbytes), 8), np.uint32)
    args = [table[:1], table[1:2], table[2:3], np.int64(1), nodes, nodes]
    device.launch("blake3", "chunks", nodes.shape[0], CHUNKS, args)
    return nodes


def _mode(device: Device, key: bytes | None) -> tuple[str, list[Array]]:
    """How the kernels of the mode end, and what they take besides: the key's words (8,) u32."""
    if key is None:
        return "", []
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return "_keyed", [device.upload(np.frombuffer(key, "<u4").astype(np.uint32))]


def _levels(lengths: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.uint64]]:
    """Of buffers of so many bytes, as `_levels_of` of the nodes that the launch for their chunks makes."""
    chunks = (max(1, -(-int(length) // CHUNK_BYTES)) for length in lengths)
    return _levels_of([-(-count // CHUNKS) for count in chunks])


def _levels_of(counts: Sequence[int]) -> list[npt.NDArray[np.uint64]]:
    """For each launch the number of the first node that it makes of each buffer, and of all: (n+1,) u64 each.

    counts: nodes that the first launch makes of each. A buffer that a launch brings down to one node has none in the
    next one; the list ends when none has any.
    """
    firsts = [np.cumsum([0, *counts], dtype=np.uint64)]
    while any(count > 1 for count in counts):
        counts = [-(-count // (2 * _PARENTS)) if count > 1 else 0 for count in counts]
        firsts.append(np.cumsum([0, *counts], dtype=np.uint64))
    return firsts
