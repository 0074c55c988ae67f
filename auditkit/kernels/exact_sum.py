"""Fixed point, exact sums and back on the device (cuda/exact_sum.cu); SPEC.md section 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def add_piece(
    device: Device, status: Array, total: Array | None, terms: Array, unit: int, digest: TensorDigest
) -> Array:
    """`add_terms` of the next piece of a tensor, in place of its total if there is one; `digest` goes on with them.

    Does not wait, unless the host must hash the pieces.
    """
    nbytes, totals = 8 * int(terms.size), [] if total is None else [total]
    if digest.key is not None or digest.is_on_host(nbytes):
        exact = terms if terms.dtype == np.int64 else to_fixed(device, status, terms, unit)
        digest.add(exact)
        return add_sums(device, status, totals, [exact], out=totals)[0] if totals else exact
    sums, chunks = total if total is not None else device.empty(terms.shape, np.int64), _hashing(device, status, unit)
    if nbytes == digest.size and blocks_of(nbytes) == 1:
        digest.end(tree_digests(device, [nbytes], _rows(device, totals, [terms], [sums]), chunks))
        return sums
    first = digest.blocks
    check_part(nbytes, first, digest.size)
    begin = first * (BLOCK_BYTES // 8)  # the kernel is told of the whole tensor, and runs only the blocks that lie here
    rows = [[digest.size // 8], *_rows(device, totals, [terms], [sums], begin)[1:], [-first]]
    words = device.upload(np.array(rows, np.int64).view(np.uint64).reshape(-1))
    nodes = device.empty((blocks_of(nbytes), 8), np.uint32)
    chunks(words[:-1], words[-1:], int(nodes.shape[0]), nodes, nodes)
    digest.go_on(nodes, nbytes)
    return sums


def _rows(
    device: Device, totals: Sequence[Array], terms: Sequence[Array], sums: Sequence[Array], begin: int = 0
) -> list[list[int]]:
    """The table of the kernel `add_hashed`, of tensors of which these are the elements from number `begin` on."""
    if any(not array.flags.c_contiguous for array in (*terms, *totals, *sums)):
        raise ValueError("only C-contiguous arrays can be hashed in place")
    sizes = [int(array.size) for array in terms]
    if any([int(array.size) for array in others] != sizes for others in (totals, sums) if others):
        raise ValueError("totals and terms have different sizes")

    def addresses(arrays: Sequence[Array]) -> list[int]:
        return [device.address(array) - begin * int(array.itemsize) for array in arrays]

    given = [(address, array.dtype) for address, array in zip(addresses(terms), terms, strict=True)]
    products, exact = ([at if dtype == wanted else 0 for at, dtype in given] for wanted in (np.float32, np.int64))
    return [sizes, products, exact, addresses(totals) or [0] * len(terms), addresses(sums)]


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
