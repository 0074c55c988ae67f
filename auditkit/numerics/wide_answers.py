"""What ops give for fixed inputs of the shapes of real models; as known_answers.py, in wide_answers.json.

A card has kernels that only larger shapes choose, which the small inputs of the known answers never reach; so have the
products of a BLAS. Vector code has its whole vectors and its rests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.numerics.answers import digest_of, right
from auditkit.numerics.arrays import F32
from auditkit.numerics.known_inputs import floats
from auditkit.numerics.operand_answers import EPS, Outputs, Place

FX = (14, 21)
# Elements of a row: no multiple of 128; one, of up to 3,840; and beyond, where sums of 14 bits no longer fit 32 bits.
ODD, SHORT, LONG = 320, 384, 4096


def _rows(stream: int, count: int, width: int) -> F32:
    """Usual rows, one of them zeros, (count, width) float32; of five, one is of subnormal numbers and one of large."""
    made = floats(stream, count, width).copy()
    made[1] = 0.0
    if count > 4:
        made[3], made[4] = floats(stream + 1, width, low=-149, high=-120), floats(stream + 2, width, low=50, high=62)
    return made


def dots(ops: Any, place: Place, bits: int, length: int) -> Outputs:
    """Products of rows of `length` elements, alone and as a batch; of short ones more than a tile of 64, and ragged."""
    x, y = (_rows(stream, 6 if length == LONG else rows, length) for stream, rows in ((51, 70), (54, 67)))
    yield ops.dot(ops.quantise(place(x), bits), ops.quantise(place(y), bits))
    x, y = floats(57, 2, 3, length), floats(58, 2, 5, length)
    yield ops.dot(ops.quantise(place(x), bits), ops.quantise(place(y), bits))


def _quantise(ops: Any, place: Place) -> Outputs:
    for bits in FX:
        for rows, width in ((5, 100), (5, 128), (5, 256), (5, 512), (2, 16_450)):
            y = ops.quantise(place(floats(63, 2, width)), bits)
            yield ops.dot(ops.quantise(place(_rows(60, rows, width)), bits), y)


def _heads(ops: Any, place: Place) -> Outputs:
    """Whole tiles of 64 by 64, which begin in the middle of a sequence."""
    x = place(floats(88, 2, 2, 70, 64))
    for bits in FX:
        rows, columns = ops.merge_heads_both(x, bits)
        yield ops.dot(rows, ops.quantise(place(floats(89, 2, 128)), bits))
        yield ops.dot(columns, ops.quantise(place(floats(90, 2, 140)), bits))


def _peaks(stream: int, count: int, width: int) -> F32:
    """Rows whose largest magnitudes lie everywhere, (count, width) float32: each column has one that is 2^8 times as
    large as the others, in the row after that of the column before, and each row one that is 2^16 times as large.
    """
    made = floats(stream, count, width).copy()
    rows, columns = np.arange(count), np.arange(width)
    made[columns % count, columns] *= np.float32(2**8)
    made[rows, 37 * rows % width] *= np.float32(2**16)
    return made


def _shown(ops: Any, place: Place, bits: int, *operands: Any) -> Outputs:
    """Products with the rows and the columns of matrices (64, 256), in turn."""
    by = [ops.quantise(place(floats(92 + i, 2, length)), bits) for i, length in enumerate((256, 64))]
    for i, operand in enumerate(operands):
        yield ops.dot(operand, by[i % 2])


def _largest(ops: Any, place: Place) -> Outputs:
    """Maxima of whole blocks, where a card takes several rows at a time; the last rows are longer than it holds."""
    x = _peaks(91, 64, 256)
    for bits in FX:
        both = ops.quantise_both(place(x), bits)
        heads = ops.merge_heads_both(ops.split_heads(place(x), 2, 4), bits)
        yield from _shown(ops, place, bits, *both, *heads)
        yield from _shown(ops, place, bits, ops.quantise(place(x), bits), ops.quantise_t(place(x), bits))
        for width in (128, 256, 512):
            rows = ops.merge_heads_rows(place(np.ascontiguousarray(_peaks(99, 64, width).reshape(2, 4, 32, -1))), bits)
            yield ops.dot(rows, ops.quantise(place(floats(92, 2, width)), bits))
        parts = [place(np.ascontiguousarray(part)) for part in (x[:40], x[40:])]
        yield ops.dot(ops.quantise_columns(parts, 4, 200, bits), ops.quantise(place(floats(93, 2, 64)), bits))
    long = ops.quantise(place(np.tile(x[:32], 65)), 14)
    yield ops.dot(long, ops.quantise(place(np.tile(floats(92, 2, 256), 65)), 14))


def _swiglu(ops: Any, place: Place) -> Outputs:
    """As `_largest`, of what SwiGLU makes in the same pass."""
    gate, up = place(floats(94, 64, 256)), place(floats(95, 64, 256))
    cache = ops.swiglu_forward(gate, up)[1]
    for bits in FX:
        peaks = place(_peaks(96, 64, 256))
        rows, kept, _ = ops.swiglu_keep(gate, peaks, bits)
        of_gate, of_up = ops.swiglu_backward_both(place(_peaks(97, 64, 256)), cache, bits)
        yield from _shown(ops, place, bits, rows, ops.kept_columns(kept, bits), *of_gate, *of_up)
        columns = ops.kept_columns(ops.swiglu_columns(gate, peaks, bits)[0], bits)
        yield from _shown(ops, place, bits, ops.swiglu_rows(gate, peaks, bits), columns)
        narrow = [place(np.ascontiguousarray(_peaks(stream, 64, 128))) for stream in (94, 96)]
        yield ops.dot(ops.swiglu_rows(*narrow, bits), ops.quantise(place(floats(92, 2, 128)), bits))


def _rms_norm(ops: Any, place: Place) -> Outputs:
    for width in (128, 256, 384, 512, 6144, 8192):
        x, weight = place(_rows(66, 2, width)), place(floats(69, width))
        y, cache = ops.rms_norm_forward(x, weight, EPS)
        yield y
        dys = [place(floats(stream, 2, width, low=-20, high=-2)) for stream in (70, 87, 88)]
        yield from ops.rms_norm_backward(dys[0], weight, cache)
        yield from ops.rms_norm_backward_add(dys[:2], weight, cache, x)
        yield from ops.rms_norm_backward_add(dys, weight, cache, None)
        rows, kept, _ = ops.rms_norm_keep(x, weight, EPS, 14)
        yield ops.dot(rows, ops.quantise(place(floats(71, 2, width)), 14))
        yield ops.dot(ops.kept_columns(kept, 14), ops.quantise(place(floats(72, 2, 2)), 14))
        yield ops.dot(ops.rms_norm_rows(x, weight, EPS, 14), ops.quantise(place(floats(71, 2, width)), 14))


def _attention(ops: Any, place: Place) -> Outputs:
    """A tile of usual rows, and one with rows that the quick rounding does not take."""
    q, k, v, dout = (floats(73 + i, 1, heads, 150, 128).copy() for i, heads in enumerate((2, 1, 1, 2)))
    q[0, 1, 145], k[0, 0, 140], v[0, 0, 141] = 0.0, floats(84, 128, low=-70, high=-60), 0.0
    v[0, 0, 142], dout[0, 0, 143] = floats(85, 128, low=-80, high=-70), floats(86, 128, low=-149, high=-100)
    q, k, v, dout = (place(x) for x in (q, k, v, dout))
    for bits in FX:
        for window in (0, 40):
            out, cache = ops.attention_forward(q, k, v, window=window, bits=bits)
            kept = cache.out, cache.row_max, cache.row_sum
            again, made = ops.attention_again(q, k, v, kept, window=window, bits=bits)
            yield from (out, again, *ops.attention_backward(dout, made))
            heads, shape, keys = ops.attention_heads(q, k, v, cache), tuple(q.shape), int(k.shape[1])
            again, made = ops.attention_restored(heads, kept, shape, keys, window=window, bits=bits)
            yield from (again, *ops.attention_backward(dout, made))


def _cross_entropy(ops: Any, place: Place) -> Outputs:
    targets = place(np.array([3, 0, 41], np.int64))
    for vocab in (44, 30_000):
        logits = floats(77, 3, vocab, low=-3, high=5)
        yield from ops.cross_entropy(place(logits.copy()), targets, np.float32(1e-4), 100)
        for bits in FX:
            found = ops.cross_entropy_operand(place(logits.copy()), targets, np.float32(1e-4), 100, bits)
            yield ops.dot(found[3], ops.quantise(place(floats(98, 2, vocab)), bits))


def _blocks(ops: Any, place: Place) -> Outputs:
    """Digests of more than one block of 128 KiB."""
    arrays = [place(floats(78, 70_001)), place(floats(79, 3))]
    yield " ".join(ops.digests(arrays))
    yield " ".join(ops.digests(arrays, bytes(range(32))))


def _pieces(ops: Any, place: Place) -> Outputs:
    """Digests that are read together: of tensors in pieces of whole blocks, whole, and of one block."""
    x = floats(78, 70_001)
    made = [ops.TensorDigest(4 * size) for size in (70_001, 70_001, 3)]
    for at in (0, 32_768, 65_536):
        made[0].add(place(x[at : at + 32_768]))
    made[1].add(place(x))
    made[2].add(place(x[:3]))
    yield " ".join(ops.read_digests(made))


def _moves(ops: Any, place: Place) -> Outputs:
    """Rows of a multiple of four elements where the known answers have others, and the other way round."""
    yield ops.embedding_forward(place(np.array([2, 0, 2, 4], np.int64)), place(floats(80, 5, 8)))
    yield ops.split_heads(place(floats(81, 6, 9)), 2, 3)
    yield ops.merge_heads(place(floats(82, 2, 3, 5, 3)))
    table = ops.rope_table(8, 6, 10_000.0)
    yield ops.rope_forward(place(floats(83, 8, 6)), table)
    yield ops.rope_backward(place(floats(83, 8, 6)), table)


PROBES: dict[str, Callable[[Any, Place], Outputs]] = {
    "quantise": _quantise,
    "heads": _heads,
    "largest": _largest,
    "swiglu": _swiglu,
    "rms_norm": _rms_norm,
    "attention": _attention,
    "cross_entropy": _cross_entropy,
    "digests": _blocks,
    "pieces": _pieces,
    "moves": _moves,
}
# Products, which several kernels make: bits and length of their rows.
_DOTS = ((14, ODD), (14, SHORT), (14, LONG), (21, ODD), (21, SHORT), (24, SHORT))
DOTS = {f"dot_{bits}_{length}": (bits, length) for bits, length in _DOTS}
PROBES |= {name: functools.partial(dots, bits=bits, length=length) for name, (bits, length) in DOTS.items()}


def answer(name: str, ops: Any, place: Place = np.asarray) -> Digest:
    """The digest of all that a probe gives."""
    return digest_of(ops, PROBES[name](ops, place))


def known() -> dict[str, Digest]:
    """The right digests by name of probe."""
    return right("wide_answers.json")
