"""Exact sums at the edges of their range (SPEC.md section 4): device and reference agree on which have a result.

Only true totals decide, so the reference is exact however the terms are ordered. The device may set SUM_RANGE, "cannot
tell", where a total comes close; it may never give a result that the reference denies, nor deny one that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.embedding import CHUNK
from auditkit.numerics import reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.nonfinite import NonFinite
from tests.kernels.variants import Run, variants
from tests.same_bits import assert_same_bits

LIMIT = 1 << 62
# The largest binary32 below 64: 2^62 - 2^38 in units 2^-56.
LARGEST = float(np.nextafter(np.float32(64), np.float32(0)))
UNIT = 2.0**-56  # the least term
Call = Callable[[Any, Callable[[Any], Any]], Any]  # (ops, place) -> array


def devices(device: Any) -> Iterator[CudaOps]:
    """The ops of some variants of a device."""
    for variant in variants(device):
        with variant.use():
            yield CudaOps(variant)


def outcome(call: Call, ops: Any, place: Callable[[Any], Any]) -> Any:
    """What a call gives, "none" where it finds that there is no result, "unsure" where it cannot tell."""
    try:
        found = call(ops, place)
        ops.check_finite({})
    except NonFinite:
        return "none"
    except Unsupported:
        return "unsure"
    return found


def check(device: Any, call: Call, *, sure: bool | None = None) -> None:
    """The device gives what the reference gives, or cannot tell. sure: whether it must be able to tell, must not."""
    want = outcome(call, reference, np.asarray)
    for ops in devices(device):
        found = outcome(call, ops, ops.place)
        if not isinstance(found, str):
            assert not isinstance(want, str), "a result that the specification denies"
            assert_same_bits(ops.host(found), np.asarray(want))
        elif found == "none":
            assert isinstance(want, str), "a result denied that the specification gives"
        if sure is not None:
            assert (isinstance(found, str) and found == "unsure") is not sure


def gradient(terms: list[float], head: int | None = None) -> Call:
    """The rounded gradient of a token that occurs with these gradients, in this order; `head`: a tied table's term."""
    dx = np.array(terms, np.float32)[:, None] * np.ones((1, 5), np.float32)
    tokens = np.full(len(terms), 1, np.uint32)

    def call(ops: Any, place: Callable[[Any], Any]) -> Any:
        total = None if head is None else place(np.full((3, 5), head, np.int64))
        sums = ops.embedding_backward(place(dx), tokens, 3, total)
        return ops.from_fixed([sums], GRADIENT_UNIT)[0]

    return call


# Terms whose sum is next to an edge, and whether there is a result. Where small terms come last, no check of a term
# sees the edge.
SUMS: dict[str, tuple[list[float], bool]] = {
    "two halves": ([32.0, 32.0], False),
    "two negative halves": ([-32.0, -32.0], True),  # the range is half open
    "below, then small ones up to the edge": ([LARGEST, *[2.0**-18 / 128] * 128], False),
    "below, then small ones up to less": ([LARGEST, *[2.0**-18 / 128] * 127, 2.0**-25 - 2.0**-49], True),
    "negative, then small ones to the edge": ([-LARGEST, *[-(2.0**-18) / 128] * 128], True),
    "negative, then small ones beyond it": ([-LARGEST, *[-(2.0**-18) / 128] * 128, -UNIT], False),
    "far beyond by small ones": ([LARGEST, *[0.4] * 150], False),
    "beyond on the way, back at the end": ([63.0, 63.0, -63.0], True),
    "wraps on the way, back at the end": ([63.0] * 5 + [-63.0] * 5, True),
    "wraps and does not come back": ([63.0] * 5, False),
    "wraps to a sum that looks small": ([LARGEST] * 4 + [2.0**-16], False),
    "a whole chunk of large ones": ([1.0] * CHUNK, False),
    "a whole chunk but one": ([1.0] * (CHUNK - 1), True),
    "small ones alone up to the edge": ([0.5] * 128, False),
    "small ones alone up to less": ([0.5] * 127 + [0.25], True),
}


@pytest.mark.parametrize("case", SUMS)
def test_embedding_backward(device: Any, case: str) -> None:
    terms, has_result = SUMS[case]
    call = gradient(terms)
    assert isinstance(outcome(call, reference, np.asarray), str) is not has_result
    check(device, call)
    check(device, gradient(terms[::-1]))


@pytest.mark.parametrize("head", [0, 1, -1, LIMIT // 2 - 1, LIMIT // 2, -LIMIT // 2, LIMIT - 1, -LIMIT])
@pytest.mark.parametrize("case", SUMS)
def test_embedding_backward_of_a_tied_table(device: Any, case: str, head: int) -> None:
    """One sum must be in range, of the embedding's terms and the head's."""
    check(device, gradient(SUMS[case][0], head))


def test_what_the_heads_term_takes_back(device: Any) -> None:
    """The embedding's terms alone would leave the range; with the head's they do not."""
    check(device, gradient([LARGEST, 2.0**-18], -LIMIT // 2), sure=True)
    check(device, gradient([0.5] * 128, -LIMIT // 2), sure=True)


@pytest.mark.parametrize("head", [0, 1 << 56, -(1 << 60)])
def test_a_tied_table_far_from_the_edges_has_a_result(device: Any, head: int) -> None:
    """Gradients of an element up to 16, far more than a step that trains has."""
    check(device, gradient([0.5] * 30, head), sure=True)
    check(device, gradient([3.0, -5.0, 15.0, 2.0**-50], head), sure=True)


def weight_gradient(terms: list[float], width: int) -> Call:
    """The rounded gradient of an RMSNorm weight over rows that add these terms: xhat is 1 in all elements."""
    dy = np.array(terms, np.float32)[:, None] * np.ones((1, width), np.float32)
    x, weight = np.ones_like(dy), np.ones(width, np.float32)

    def call(ops: Any, place: Callable[[Any], Any]) -> Any:
        _, cache = ops.rms_norm_forward(place(x), place(weight), np.float32(0))
        _, sums = ops.rms_norm_backward(place(dy), place(weight), cache)
        return ops.from_fixed([sums], GRADIENT_UNIT)[0]

    return call


@pytest.mark.parametrize("width", [8, 33])  # rows in registers, and of any width
@pytest.mark.parametrize("case", SUMS)
def test_rms_norm_backward(device: Any, case: str, width: int) -> None:
    check(device, weight_gradient(SUMS[case][0], width))
    check(device, weight_gradient(SUMS[case][0][::-1], width))


def mean_loss(losses: list[float]) -> Call:
    """The mean loss of rows with these losses, 32 or more: the target's distance from the only other logit."""
    targets = np.ones(len(losses), np.uint32)
    logits = np.stack([np.array(losses, np.float32), np.zeros(len(losses), np.float32)], axis=1)
    z_loss = np.float32(0)

    def call(ops: Any, place: Callable[[Any], Any]) -> Any:
        sums, _ = ops.cross_entropy(place(logits.copy()), targets, z_loss, len(losses))
        total = int(sums if isinstance(ops, type(reference)) else ops.host(sums))
        return place(np.array([ops.mean_loss(total, len(losses))]))

    return call


LOSSES: dict[str, tuple[list[float], bool]] = {
    "two halves": ([2.0**29, 2.0**29], False),
    "a half and less": ([2.0**29, 2.0**29 - 64], True),
    "below, then small ones up to the edge": ([2.0**30 - 64 * 128, *[64.0] * 128], False),
    "below, then small ones up to less": ([2.0**30 - 64 * 128, *[64.0] * 127, 32.0], True),
    "small ones alone up to the edge": ([2.0**23] * 128, False),
    "small ones alone up to less": ([2.0**23] * 127, True),
    "wraps": ([2.0**30 - 64] * 4, False),
}


@pytest.mark.parametrize("case", LOSSES)
def test_cross_entropy(device: Any, case: str) -> None:
    """The losses of one micro-batch, which no sum over micro-batches looks at."""
    losses, has_result = LOSSES[case]
    assert isinstance(outcome(mean_loss(losses), reference, np.asarray), str) is not has_result
    check(device, mean_loss(losses))
    check(device, mean_loss(losses[::-1]))


def test_sums_over_micro_batches(device: Any) -> None:
    """Both edges are decided, not refused."""
    for a, b, has_result in (
        (LIMIT // 2, LIMIT // 2 - 1, True),
        (LIMIT // 2, LIMIT // 2, False),
        (-LIMIT // 2, -LIMIT // 2, True),
        (-LIMIT // 2, -LIMIT // 2 - 1, False),
        (LIMIT - 1, -LIMIT, True),
    ):

        def call(ops: Any, place: Callable[[Any], Any], a: int = a, b: int = b) -> Any:
            pair = [place(np.array([0, value, 1], np.int64)) for value in (a, b)]
            return ops.add_sums(pair[:1], pair[1:])[0]

        assert isinstance(outcome(call, reference, np.asarray), str) is not has_result
        check(device, call, sure=True if has_result else None)


def norm(grads: list[Any]) -> Call:
    """The norm of a gradient, from its squares."""

    def call(ops: Any, place: Callable[[Any], Any]) -> Any:
        return place(np.array([ops.norm_from_squares([ops.squares([place(grad) for grad in grads])])]))

    return call


@pytest.mark.parametrize(
    ("elements", "has_result"),
    [
        ([2.0**15] * 4, False),
        ([2.0**15] * 3 + [2.0**15 - 1], True),
        ([2.0**15] * 3 + [2.0**14] * 4, False),
        ([2.0**15] * 3 + [2.0**14] * 3 + [2.0**14 - 2.0**-9], True),
        ([65535.0] * 2, False),
        ([65535.0] * 400, False),  # wraps many times
        ([65536.0], False),
        ([float("nan")], False),
        ([float("inf")] * 5, False),
        ([1.0] * 5000, True),
    ],
)
def test_squares(device: Any, elements: list[float], has_result: bool) -> None:
    """Q < 2^94 in units 2^-62. What wrapped or was not finite ends in a verdict before a root is taken of it."""
    grads = [np.array(elements, np.float32), np.zeros(9, np.float32)]
    assert isinstance(outcome(norm(grads), reference, np.asarray), str) is not has_result
    check(device, norm(grads))


def test_any_terms(device: Any) -> None:
    """Random terms around the edges, in random order, of few and many tokens."""
    rng = np.random.default_rng(3)
    for n in (2, 3, 5, 67, 150):
        sizes = np.exp2(rng.uniform(-56, 6, n))
        sizes[: n // 2] = 64.0 / n * rng.uniform(0.9, 1.1, n // 2)
        terms = np.minimum(sizes * rng.choice([-1, 1, 1, 1], n), LARGEST).tolist()
        head = int(rng.integers(-LIMIT, LIMIT))
        for call in (gradient(terms), gradient(terms, head), weight_gradient(terms, 8), weight_gradient(terms, 5)):
            check(device, call)


def test_status_of_one_step_is_not_the_next_ones(device: Any) -> None:
    """A step that ends before the status word is read leaves it; `reset` is what begins the next one."""
    for ops in devices(device):
        run = Run(ops.device)
        ops.status = run.up(np.array([1], np.uint32))
        ops.reset()
        ops.check_finite({})
