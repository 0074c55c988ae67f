"""What every op gives for fixed inputs; the self-test compares the digests with known_answers.json.

tests/vectors/make_known_answers.py makes the file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.recipe import ScheduleConfig
from auditkit.numerics import operand_answers
from auditkit.numerics.answers import digest_of, right
from auditkit.numerics.arrays import I64
from auditkit.numerics.exact_sum import GRADIENT_UNIT, LOSS_UNIT, SOFTMAX_UNIT
from auditkit.numerics.known_inputs import SEED, attention_inputs, floats, rows
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.normal import normal
from auditkit.numerics.operand_answers import BITS, EPS, Outputs, Place
from auditkit.numerics.philox import philox
from auditkit.numerics.shuffle import window_order

ONE = np.float32(1)

PROBES: dict[str, Callable[[Any, Place], Outputs]] = dict(operand_answers.PROBES)


def _probe(function: Callable[[Any, Place], Outputs]) -> Callable[[Any, Place], Outputs]:
    """Register the probe of the op whose name follows the underscore."""
    PROBES[function.__name__.removeprefix("_")] = function
    return function


@_probe
def _dot(ops: Any, place: Place) -> Outputs:
    long = floats(5, 2, 8200, low=-1, high=-1)  # past the 2^53 limit of fx21
    for bits in BITS:
        for x, y in ((rows(33), rows(33)[::-1]), (long, np.abs(long)), (floats(6, 2, 3, 7), floats(7, 2, 4, 7))):
            yield ops.dot(ops.quantise(place(x), bits), ops.quantise(place(np.ascontiguousarray(y)), bits))


@_probe
def _to_fixed(ops: Any, place: Place) -> Outputs:
    for unit in (SOFTMAX_UNIT, LOSS_UNIT, GRADIENT_UNIT):
        halves = floats(8, 64, low=-unit - 2, high=-unit + 3)
        yield ops.to_fixed(place(np.concatenate([halves, floats(9, 64, low=-149, high=4)])), unit)


@functools.cache
def _integers() -> I64:
    """Of every size below 2^61, with ties of the rounding to 24 bits and a bit far below them."""
    words = philox(SEED, 10, 0, 32).astype(np.int64)  # (32, 4)
    random = ((words[:, 0] << 29) ^ words[:, 1]) >> (words[:, 2] % 61)
    ties = np.array([((1 << 24) + odd << s) + t for odd in (1, 3) for s in (1, 20, 36) for t in (-1, 0, 1)], np.int64)
    return np.concatenate([random, -random, ties, -ties, np.zeros(1, np.int64)])


@_probe
def _from_fixed(ops: Any, place: Place) -> Outputs:
    for unit in (SOFTMAX_UNIT, LOSS_UNIT, GRADIENT_UNIT):
        yield from ops.from_fixed([place(_integers())], unit)


@_probe
def _add_sums(ops: Any, place: Place) -> Outputs:
    yield from ops.add_sums([place(_integers() >> 1)], [place(np.ascontiguousarray(_integers()[::-1] >> 1))])


@_probe
def _add_terms(ops: Any, place: Place) -> Outputs:
    products = floats(46, 17, 17, low=-149, high=4)
    for totals in ([], [place(_integers() >> 1), place(np.tile(_integers(), 3)[:289].reshape(17, 17))]):
        sums, digests = ops.add_terms(totals, [place(_integers() >> 1), place(products)], GRADIENT_UNIT)
        yield from (*sums, *digests)


@_probe
def _add_pieces(ops: Any, place: Place) -> Outputs:
    block, terms = 16_384, _integers() >> 1  # elements of a block of 128 KiB
    products = floats(47, block + terms.size, low=-149, high=4)
    digests = [ops.TensorDigest(8 * size) for size in (products.size, products.size, terms.size)]
    first, last, totals = (
        products[:block],
        products[block:],
        [place(terms.copy()) for _ in range(2)],
    )  # added to in place
    whole = place(products)
    yield from ops.add_pieces([None, None, totals[0]], [place(first), whole, place(terms)], GRADIENT_UNIT, digests)
    yield from ops.add_pieces(totals[1:], [place(last)], GRADIENT_UNIT, digests[:1])
    yield from (digest.digest() for digest in digests)


@_probe
def _largest(ops: Any, place: Place) -> Outputs:
    deepest = np.array([5, -(1 << 62), (1 << 62) - 1], np.int64)
    yield ops.largest([place(_integers() >> 3), place(_integers())])
    yield from (ops.largest([place(deepest[:n])]) for n in range(4))


@_probe
def _add(ops: Any, place: Place) -> Outputs:
    yield ops.add(place(rows(33)), place(np.ascontiguousarray(rows(33)[::-1])))


@_probe
def _split_heads(ops: Any, place: Place) -> Outputs:
    yield ops.split_heads(place(floats(11, 6, 12)), 2, 3)


@_probe
def _merge_heads(ops: Any, place: Place) -> Outputs:
    yield ops.merge_heads(place(floats(12, 2, 3, 5, 4)))


@_probe
def _digests(ops: Any, place: Place) -> Outputs:
    arrays = [place(rows(33)), place(_integers()), place(floats(13, 1000))]
    yield " ".join(ops.digests(arrays))
    yield " ".join(ops.digests(arrays, bytes(range(32))))


@_probe
def _block_nodes(ops: Any, place: Place) -> Outputs:
    long = floats(34, 34_000)  # a block of 128 KiB and a ragged one
    rest = place(np.ascontiguousarray(long[-1232:]))
    nodes = ops.block_nodes([place(long), rest], [0, 1], [long.nbytes, long.nbytes])
    yield " ".join(node.hex() for node in nodes)


@_probe
def _check_finite(ops: Any, place: Place) -> Outputs:
    for value in (1.0, np.inf, -np.inf, np.nan):
        tail = np.append(floats(14, 70), np.float32(value))
        try:
            ops.check_finite({"first": place(rows(9)), "second": place(tail)})
            yield "finite"
        except NonFinite:
            yield "not finite"


@_probe
def _rms_norm_forward(ops: Any, place: Place) -> Outputs:
    for width in (8, 33):
        yield ops.rms_norm_forward(place(rows(width)), place(floats(15, width)), EPS)[0]


@_probe
def _rms_norm_backward(ops: Any, place: Place) -> Outputs:
    for width in (8, 33):
        weight = place(floats(15, width))
        cache = ops.rms_norm_forward(place(rows(width)), weight, EPS)[1]
        yield from ops.rms_norm_backward(place(floats(16, 8, width, low=-20, high=-2)), weight, cache)


@_probe
def _rms_norm_backward_add(ops: Any, place: Place) -> Outputs:
    for width in (8, 33):
        weight = place(floats(15, width))
        cache = ops.rms_norm_forward(place(rows(width)), weight, EPS)[1]
        dys = [place(floats(48 + i, 8, width, low=-20, high=-2)) for i in range(3)]
        for count, residual in ((1, rows(width)[::-1]), (2, rows(width)), (3, rows(width)[::-1]), (3, None)):
            onto = None if residual is None else place(np.ascontiguousarray(residual))
            yield from ops.rms_norm_backward_add(dys[:count], weight, cache, onto)


@_probe
def _rope_table(ops: Any, place: Place) -> Outputs:
    pairs = np.zeros((50, 8), np.float32)
    pairs[:, :4] = 1.0  # the rotation of (1, 0) is (cos, sin)
    yield ops.rope_forward(place(pairs), ops.rope_table(50, 8, 500_000.0))


@_probe
def _rope_forward(ops: Any, place: Place) -> Outputs:
    yield ops.rope_forward(place(rows(8)), ops.rope_table(8, 8, 10_000.0))


@_probe
def _rope_heads(ops: Any, place: Place) -> Outputs:
    for dim in (8, 6):
        yield ops.rope_heads(place(rows(3 * dim)), 2, 3, ops.rope_table(4, dim, 10_000.0))


@_probe
def _rope_backward(ops: Any, place: Place) -> Outputs:
    yield ops.rope_backward(place(rows(8)), ops.rope_table(8, 8, 10_000.0))


@_probe
def _attention_forward(ops: Any, place: Place) -> Outputs:
    q, k, v, _ = (place(a) for a in attention_inputs())
    for bits in BITS:
        for window in (0, 3):
            yield ops.attention_forward(q, k, v, window=window, bits=bits)[0]


@_probe
def _attention_backward(ops: Any, place: Place) -> Outputs:
    q, k, v, dout = (place(a) for a in attention_inputs())
    for bits in BITS:
        for window in (0, 3):
            yield from ops.attention_backward(dout, ops.attention_forward(q, k, v, window=window, bits=bits)[1])


def _made_again(ops: Any, place: Place, make: Callable[..., Any]) -> Outputs:
    """An attention whose cache is made again by make(q, k, v, cache, kept, window=, bits=)."""
    q, k, v, dout = (place(a) for a in attention_inputs())
    for bits in BITS:
        for window in (0, 3):
            cache = ops.attention_forward(q, k, v, window=window, bits=bits)[1]
            kept = cache.out, cache.row_max, cache.row_sum
            out, made = make(q, k, v, cache, kept, window=window, bits=bits)
            yield from (out, *ops.attention_backward(dout, made))


@_probe
def _attention_again(ops: Any, place: Place) -> Outputs:
    def make(q: Any, k: Any, v: Any, _: Any, kept: Any, **options: int) -> Any:
        return ops.attention_again(q, k, v, kept, **options)

    yield from _made_again(ops, place, make)


@_probe
def _attention_restored(ops: Any, place: Place) -> Outputs:
    def make(q: Any, k: Any, v: Any, cache: Any, kept: Any, **options: int) -> Any:
        heads = ops.attention_heads(q, k, v, cache)
        return ops.attention_restored(heads, kept, tuple(q.shape), int(k.shape[1]), **options)

    yield from _made_again(ops, place, make)


@_probe
def _swiglu_forward(ops: Any, place: Place) -> Outputs:
    yield ops.swiglu_forward(place(rows(33)), place(floats(24, 8, 33)))[0]
    yield ops.swiglu_forward(place(floats(25, 8, 33, low=0, high=7)), place(floats(24, 8, 33)))[0]


@_probe
def _swiglu_backward(ops: Any, place: Place) -> Outputs:
    for gate in (rows(33), floats(25, 8, 33, low=0, high=7)):
        cache = ops.swiglu_forward(place(gate), place(floats(24, 8, 33)))[1]
        yield from ops.swiglu_backward(place(floats(26, 8, 33)), cache)


_TOKENS = np.array([3, 0, 3, 3, 6, 0, 1, 3], np.int64)


@_probe
def _embedding_forward(ops: Any, place: Place) -> Outputs:
    yield ops.embedding_forward(place(_TOKENS), place(rows(9)))


@_probe
def _embedding_backward(ops: Any, place: Place) -> Outputs:
    yield ops.embedding_backward(place(floats(27, 8, 9, low=-149, high=2)), place(_TOKENS), 8)


@_probe
def _cross_entropy(ops: Any, place: Place) -> Outputs:
    usual = np.concatenate([rows(33)[[0, 1, 2, 5, 6, 7]], floats(28, 2, 33, low=2, high=6)])
    for z_loss in (0.0, 1e-4):
        loss_sum, gradient = ops.cross_entropy(place(usual.copy()), place(_TOKENS), np.float32(z_loss), 100)
        yield int(loss_sum)
        yield gradient


@_probe
def _cross_entropy_rows(ops: Any, place: Place) -> Outputs:
    usual = np.concatenate([rows(33)[[0, 1, 2, 5, 6, 7]], floats(28, 2, 33, low=2, high=6)])
    loss_sum, gradient, kept = ops.cross_entropy_rows(place(usual.copy()), place(_TOKENS), np.float32(1e-4), 100)
    yield int(loss_sum)
    yield gradient
    yield kept


@_probe
def _cross_entropy_operand(ops: Any, place: Place) -> Outputs:
    for bits in BITS:
        logits, targets = place(floats(28, 6, 33, low=2, high=6).copy()), place(_TOKENS[:6])
        loss_sum, gradient, kept, operand = ops.cross_entropy_operand(logits, targets, np.float32(1e-4), 100, bits)
        yield int(loss_sum)
        yield gradient
        yield kept
        yield ops.dot(operand, ops.quantise(place(np.eye(33, dtype=np.float32)), bits))


@_probe
def _cross_entropy_columns(ops: Any, place: Place) -> Outputs:
    usual = np.concatenate([rows(33)[[0, 1, 2, 5, 6, 7]], floats(28, 2, 33, low=2, high=6)])
    _, _, kept = ops.cross_entropy_rows(place(usual.copy()), place(_TOKENS), np.float32(1e-4), 100)
    for first, end in ((0, 5), (5, 33)):
        part = place(np.ascontiguousarray(usual[:, first:end]))
        yield ops.cross_entropy_columns(part, first, place(_TOKENS), kept, 100)


@_probe
def _weight_rows(ops: Any, place: Place) -> Outputs:
    for bits in BITS:
        yield ops.dot(ops.quantise(place(rows(37)), bits), ops.weight_rows(place(floats(34, 5, 37)), bits))


@_probe
def _weight_rows_t(ops: Any, place: Place) -> Outputs:
    for bits in BITS:
        yield ops.dot(ops.quantise(place(rows(37)), bits), ops.weight_rows_t(place(floats(35, 37, 5)), bits))


@_probe
def _join_rows(ops: Any, place: Place) -> Outputs:
    yield ops.join_rows([place(floats(36, n, 3)) for n in (1, 4, 2)])


@_probe
def _columns(ops: Any, place: Place) -> Outputs:
    parts = [place(floats(36, n, 12)) for n in (1, 4, 2)]
    yield from (ops.columns(parts, first, stop) for first, stop in ((0, 12), (4, 8), (1, 6)))


@_probe
def _mean_loss(ops: Any, place: Place) -> Outputs:
    yield from (ops.mean_loss(total, n) for total, n in ((0, 1), (12345678901234567, 1536), (1 << 61, 99_991)))


@_probe
def _squares(ops: Any, place: Place) -> Outputs:
    yield from (ops.squares([place(floats(29, 130, low=low, high=low + 8))]) for low in (-149, -36, -18, 4))


@_probe
def _norm_from_squares(ops: Any, place: Place) -> Outputs:
    totals = ([0], [1], [3, 1 << 70], [(1 << 53) + 1], [((1 << 24) + 1) ** 2], [(1 << 93) + 12345, 1 << 92])
    yield from (ops.norm_from_squares(list(t)) for t in totals)


@_probe
def _clip_factor(ops: Any, place: Place) -> Outputs:
    pairs = ((0.5, 1.0), (1.0, 1.0), (3.7, 1.0), (7.0, 0.3), (9.0, 0.0))
    yield from (ops.clip_factor(np.float32(norm), np.float32(limit)) for norm, limit in pairs)


@_probe
def _learning_rate(ops: Any, place: Place) -> Outputs:
    cosine = ScheduleConfig("cosine", 0.001, 0.0001, 5, 0, 40)
    wsd = ScheduleConfig("wsd", 0.001, 0.0001, 5, 10, 40)
    yield from (float(ops.learning_rate(schedule, step)) for schedule in (cosine, wsd) for step in range(0, 42, 3))


def _scalars(ops: Any, update: int) -> Any:
    return ops.adamw_scalars(lr=np.float32(1e-3), beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, update=update)


@_probe
def _adamw_scalars(ops: Any, place: Place) -> Outputs:
    for update in (1, 2, 256, 65_536, (1 << 24) + 1):
        yield from dataclasses.astuple(_scalars(ops, update))


@_probe
def _adamw(ops: Any, place: Place) -> Outputs:
    moments = floats(30, 130, low=-30, high=-3), np.abs(floats(31, 130, low=-149, high=-10))
    for low, decayed in ((-149, True), (-75, False), (-8, True)):
        arrays = floats(32, 130), *moments, floats(33, 130, low=low, high=low + 12)
        placed = [[place(a)] for a in arrays]
        for (new,) in ops.adamw(*placed, clip=np.float32(0.3), scalars=_scalars(ops, 3), decayed=[decayed]):
            yield new


def answer(name: str, ops: Any, place: Place = np.asarray) -> Digest:
    """The digest of all that op `name` gives for its fixed inputs."""
    return digest_of(ops, PROBES[name](ops, place))


def initial_values() -> Digest:
    """The digest of some initial values: state 0 is checked with this function, on every back end."""
    return content_digest(normal(SEED, "self-test", (1000,), ONE))


def order() -> Digest:
    """The digest of a window order: the data of a step are derived with this function, on every back end."""
    return content_digest(window_order(SEED, 1, 1000).astype("<i8"))


COMMON: dict[str, Callable[[], Digest]] = {"normal": initial_values, "shuffle": order}


def known() -> dict[str, Digest]:
    """The right digests by name of op."""
    return right("known_answers.json")
