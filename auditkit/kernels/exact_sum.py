"""Fixed point, exact sums and back on the device (cuda/exact_sum.cu); SPEC.md section 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from auditkit.formats.blake3_tree import BLOCK_BYTES, blocks_of, check_part
from auditkit.formats.digest import Digest
from auditkit.kernels.blake3 import CHUNKS, TensorDigest, read_words, tree_digests
from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import launch_quads
from auditkit.kernels.tensor_table import BLOCK, TensorTable

SUM_BITS = 62  # a sum lies in [-2^62, 2^62)
_ROWS = 5  # of the table of `add_hashed`
_THREADS = 2048  # for each multiprocessor: a block looks at many tiles before it tells what it found


def small_term(terms: int) -> int:
    """2^62 / terms or less, a power of two: terms below it need no check when `terms` of them are added."""
    return 1 << (SUM_BITS - max(0, terms - 1).bit_length())


def to_fixed(
    device: Device, status: Array, x: Array, unit: int, *, total: Array | None = None, block: int | None = None
) -> Array:
    """rint(x * 2^unit) elementwise: float32 -> int64 of the same shape.

    total: an int64 array of that shape, to which the terms are added in place; it is then the result. A term that is
    not finite or reaches 2^62 in size sets bit 0 of `status`, a sum out of range bit 1.
    """
    made = device.empty(x.shape, np.int64) if total is None else total
    kernel = "to_fixed" if total is None else "add_fixed"
    launch_quads(device, "exact_sum", kernel, x.size, (x, made, status, np.float32(2.0**unit)), block)
    return made


def from_fixed(
    device: Device, status: Array, sums: Sequence[Array], unit: int, *, block: int | None = None
) -> list[Array]:
    """sum * 2^-unit rounded once to binary32, for each int64 array: float32 arrays of the same shapes, one launch.

    A sum outside [-2^62, 2^62) sets bit 1 of `status`.
    """
    rounded = [device.empty(array.shape, np.float32) for array in sums]
    table = TensorTable.of(device, sums, rounded)
    table.launch(device, "exact_sum", "from_fixed", (status, np.float32(2.0**-unit)), block=block)
    return rounded


def add_sums(
    device: Device,
    status: Array,
    totals: Sequence[Array],
    terms: Sequence[Array],
    *,
    out: Sequence[Array] | None = None,
    block: int | None = None,
) -> list[Array]:
    """totals + terms elementwise for each pair of int64 arrays, in one launch.

    out: where the sums go, e.g. totals; new arrays by default. An operand or a sum outside [-2^62, 2^62) sets bit 1 of
    `status`.
    """
    sums = list(out) if out is not None else [device.empty(array.shape, np.int64) for array in totals]
    TensorTable.of(device, totals, terms, sums).launch(device, "exact_sum", "add_sums", (status,), block=block)
    return sums


def add_terms(
    device: Device,
    status: Array,
    totals: Sequence[Array],
    terms: Sequence[Array],
    unit: int,
    *,
    out: Sequence[Array] | None = None,
) -> tuple[list[Array], list[Digest]]:
    """totals + terms elementwise, int64, and the digest of each tensor's terms; waits for the device.

    terms: int64, or float32 that stand for rint(x * 2^unit); totals: none at all, or one for each. What goes through
    the memory is terms and totals once and the sums once. out: where the sums go, e.g. totals; new arrays by default.
    `status` is set as by `to_fixed` and `add_sums`. ValueError: an array with strides, or totals of other sizes.
    """
    if not terms:
        return [], []
    sums = list(out) if out is not None else [device.empty(array.shape, np.int64) for array in terms]
    rows, lengths = _rows(device, totals, terms, sums), [8 * int(array.size) for array in terms]
    return sums, read_words(device, tree_digests(device, lengths, rows, _hashing(device, status, unit)))


def add_pieces(
    device: Device,
    status: Array,
    totals: Sequence[Array | None],
    terms: Sequence[Array],
    unit: int,
    digests: Sequence[TensorDigest],
) -> list[Array]:
    """`add_terms` of the next piece of each tensor, in place of its total if there is one; its digest goes on.

    Whole tensors go by together in one launch. Does not wait, unless the host must hash a piece.
    """
    sums: list[Any] = [None] * len(terms)
    together = [at for at, term in enumerate(terms) if _is_whole(term, digests[at])]
    if together:
        some = [totals[at] for at in together], [terms[at] for at in together], [digests[at] for at in together]
        for at, made in zip(together, _add_tensors(device, status, *some, unit), strict=True):
            sums[at] = made
    for at, made in enumerate(sums):
        if made is None:
            sums[at] = _add_piece(device, status, totals[at], terms[at], unit, digests[at])
    return sums


def _is_whole(terms: Array, digest: TensorDigest) -> bool:
    """Whether the piece is all of its tensor, and the device hashes it."""
    return digest.key is None and 8 * int(terms.size) == digest.size and not digest.nbytes


def _add_tensors(
    device: Device,
    status: Array,
    totals: Sequence[Array | None],
    terms: Sequence[Array],
    digests: Sequence[TensorDigest],
    unit: int,
) -> list[Array]:
    """The sums of whole tensors, by one launch, and the nodes of their digests."""
    sums = [device.empty(term.shape, np.int64) if total is None else total
            for total, term in zip(totals, terms, strict=True)]  # fmt: skip
    counts = [blocks_of(digest.size) for digest in digests]
    firsts, n = [0, *accumulate(counts)], len(terms)
    words = [word for row in (*_rows(device, totals, terms, sums), firsts) for word in row]
    table = device.upload(np.array(words, np.uint64))
    found, nodes = device.empty((n, 8), np.uint32), device.empty((firsts[-1], 8), np.uint32)
    _hashing(device, status, unit)(table[: _ROWS * n], table[_ROWS * n :], firsts[-1], nodes, found)
    for at, (digest, count) in enumerate(zip(digests, counts, strict=True)):
        if count == 1:
            digest.end(found[at : at + 1])
        else:
            digest.go_on(nodes[firsts[at] : firsts[at + 1]], digest.size)
    return sums


def _add_piece(
    device: Device, status: Array, total: Array | None, terms: Array, unit: int, digest: TensorDigest
) -> Array:
    """Of one tensor, a piece that is not all of it, or that the host must hash."""
    nbytes, totals = 8 * int(terms.size), [] if total is None else [total]
    if digest.key is not None or digest.is_on_host(nbytes):
        exact = terms if terms.dtype == np.int64 else to_fixed(device, status, terms, unit)
        digest.add(exact)
        return add_sums(device, status, totals, [exact], out=totals)[0] if totals else exact
    sums, chunks = total if total is not None else device.empty(terms.shape, np.int64), _hashing(device, status, unit)
    first = digest.blocks
    check_part(nbytes, first, digest.size)
    begin = first * (BLOCK_BYTES // 8)  # the kernel is told of the whole tensor, and runs only the blocks that lie here
    rows = [[digest.size // 8], *_rows(device, [total], [terms], [sums], begin)[1:], [-first]]
    words = device.upload(np.array(rows, np.int64).view(np.uint64).reshape(-1))
    nodes = device.empty((blocks_of(nbytes), 8), np.uint32)
    chunks(words[:-1], words[-1:], int(nodes.shape[0]), nodes, nodes)
    digest.go_on(nodes, nbytes)
    return sums


def _rows(
    device: Device, totals: Sequence[Array | None], terms: Sequence[Array], sums: Sequence[Array], begin: int = 0
) -> list[list[int]]:
    """The table of the kernel `add_hashed`, of tensors of which these are the elements from number `begin` on.

    totals: none at all, or one or None for each.
    """
    there = [total for total in totals if total is not None]
    if any(not array.flags.c_contiguous for array in (*terms, *there, *sums)):
        raise ValueError("only C-contiguous arrays can be hashed in place")
    sizes = [int(array.size) for array in terms]
    given = list(totals) or [None] * len(terms)
    fits = len(given) == len(sums) == len(sizes) and all(
        int(array.size) == size for arrays in (given, sums) for array, size in zip(arrays, sizes, strict=True)
        if array is not None
    )  # fmt: skip
    if not fits:
        raise ValueError("totals and terms have different sizes")

    def addresses(arrays: Sequence[Array | None]) -> list[int]:
        return [0 if array is None else device.address(array) - begin * int(array.itemsize) for array in arrays]

    at = list(zip(addresses(terms), (array.dtype for array in terms), strict=True))
    products, exact = ([place if dtype == kind else 0 for place, dtype in at] for kind in (np.float32, np.int64))
    return [sizes, products, exact, addresses(given), addresses(sums)]


def _hashing(device: Device, status: Array, unit: int) -> Callable[[Array, Array, int, Array, Array], None]:
    """What launches `add_hashed`, as `tree_digests` wants it."""

    def chunks(table: Array, first: Array, blocks: int, nodes: Array, found: Array) -> None:
        args = [table, first, np.int64(table.size // _ROWS), status, np.float32(2.0**unit), nodes, found]
        device.launch("exact_sum", "add_hashed", blocks, CHUNKS, args)

    return chunks


def largest(device: Device, sums: Sequence[Array], *, block: int | None = None, blocks: int | None = None) -> Array:
    """max |element| over all int64 arrays, in one launch -> uint64 (1,), 0 for no elements."""
    found = device.zeros((1,), np.uint64)
    most = blocks or device.multiprocessors * (_THREADS // (block or BLOCK))
    TensorTable.of(device, sums).launch(device, "exact_sum", "largest", (found,), block=block, blocks=most)
    return found
