"""Fixed point, exact sums and back on the device (cuda/exact_sum.cu); SPEC.md section 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from auditkit.formats.blake3_tree import BLOCK_BYTES, blocks_of, check_part
from auditkit.formats.digest import Digest
from auditkit.kernels.blake3 import CHUNKS, TensorDigest, read_words, tree_digests
from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import launch_quads
from auditkit.kernels.tensor_table import BLOCK, TensorTable

SUM_BITS = 62  # a sum lies in [-2^62, 2^62)
_ROWS = 6  # of the table of `add_hashed`
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


def join_sums(device: Device, status: Array, sums: Sequence[Array]) -> Array:
    """n int64 arrays of shape () as one, (n,), by one launch. Sets `status` as `add_sums` does."""
    joined, nothing = device.empty((len(sums),), np.int64), device.zeros((), np.int64)
    add_sums(device, status, sums, [nothing] * len(sums), out=[joined[at : at + 1] for at in range(len(sums))])
    return joined


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
    """`add_terms` of the next pieces of tensors, in place of their totals if there are any; their digests go on.

    One launch for all but those that the host must hash, for which it waits.
    """
    _check(totals, terms)  # before a digest goes on
    sums, together, firsts = list[Any](), list[int](), [0]
    found = device.empty((len(terms), 8), np.uint32)
    nodes = device.empty((sum(blocks_of(8 * int(term.size)) for term in terms), 8), np.uint32)
    before = [0] * len(terms)  # blocks of the same tensor that came earlier
    for at, (total, term, digest) in enumerate(zip(totals, terms, digests, strict=True)):
        nbytes = 8 * int(term.size)
        if digest.key is not None or digest.is_on_host(nbytes):
            sums.append(_add_on_host(device, status, total, term, unit, digest))
            continue
        sums.append(device.empty(term.shape, np.int64) if total is None else total)
        before[at] = digest.blocks
        firsts.append(firsts[-1] + blocks_of(nbytes))
        if blocks_of(digest.size) == 1:
            digest.end(found[len(together) : len(together) + 1])
        else:
            check_part(nbytes, digest.blocks, digest.size)
            digest.go_on(nodes[firsts[-2] : firsts[-1]], nbytes)
        together.append(at)
    if together:
        some: list[list[Any]] = [[those[at] for at in together] for those in (totals, terms, sums, before)]
        wholes = [digests[at].size // 8 for at in together]
        rows = _rows(device, some[0], some[1], some[2], wholes, some[3])
        words = device.upload(np.array([word for row in (*rows, firsts) for word in row], np.int64).view(np.uint64))
        cut = _ROWS * len(together)
        _hashing(device, status, unit)(words[:cut], words[cut:], firsts[-1], nodes, found)
    return sums


def _add_on_host(
    device: Device, status: Array, total: Array | None, terms: Array, unit: int, digest: TensorDigest
) -> Array:
    """Of a piece that the host must hash."""
    totals = [] if total is None else [total]
    exact = terms if terms.dtype == np.int64 else to_fixed(device, status, terms, unit)
    digest.add(exact)
    return add_sums(device, status, totals, [exact], out=totals)[0] if totals else exact


def _rows(
    device: Device,
    totals: Sequence[Array | None],
    terms: Sequence[Array],
    sums: Sequence[Array],
    wholes: Sequence[int] = (),
    before: Sequence[int] = (),
) -> list[list[int]]:
    """The table of the kernel `add_hashed`. totals: none at all, or one or None for each.

    wholes, before: where these are pieces, the elements of each whole tensor, and its blocks before the piece.
    """
    given = list(totals) or [None] * len(terms)
    _check(given, terms, sums)
    blocks = list(before) or [0] * len(terms)
    skipped = [count * (BLOCK_BYTES // 8) for count in blocks]

    def addresses(arrays: Sequence[Array | None], dtype: type) -> list[int]:
        """Of where the whole tensors would begin; 0 for those of another dtype."""
        return [
            0 if array is None or array.dtype != dtype else device.address(array) - skip * int(array.itemsize)
            for array, skip in zip(arrays, skipped, strict=True)
        ]

    exact = [addresses(arrays, np.int64) for arrays in (terms, given, sums)]
    return [list(wholes) or [int(array.size) for array in terms], addresses(terms, np.float32), *exact, blocks]


def _check(*lists: Sequence[Array | None]) -> None:
    """ValueError unless the arrays of all lists are C-contiguous, and those of a place in them of one size."""
    if any(array is not None and not array.flags.c_contiguous for arrays in lists for array in arrays):
        raise ValueError("only C-contiguous arrays can be hashed in place")
    sizes = ({int(array.size) for array in place if array is not None} for place in zip_longest(*lists))
    if len({len(arrays) for arrays in lists}) > 1 or any(len(found) > 1 for found in sizes):
        raise ValueError("totals and terms have different sizes")


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
