"""cuda/exact_sum.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.exact_sum import add_sums, from_fixed, largest, small_term, to_fixed
from auditkit.numerics import exact_sum as reference
from auditkit.numerics.lists import largest as reference_largest
from tests.kernels.variants import NOT_FINITE, SUM_RANGE, runs
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.ops.cases import awkward_rows, floats, with_value
from tests.same_bits import assert_same_bits

BLOCKS = (32, 64, 256)
SIZES = (0, 1, 2, 3, 4, 5, 127, 128, 129, 1023, 1024, 1025, 4095, 4096, 4097, 9001)
BEYOND = np.float32(64)  # times 2^56 is 2^62
BELOW = np.nextafter(BEYOND, np.float32(0))


@pytest.mark.parametrize("unit", [30, 32, 56])
@pytest.mark.parametrize("size", SIZES)
def test_to_fixed(device: Any, size: int, unit: int) -> None:
    x = floats(size, size, low=-unit - 3, high=61 - unit - 1)
    want = reference.to_fixed(x, unit)
    before = np.arange(size, dtype=np.int64) * -(1 << 40)
    for run in runs(device):
        for block in BLOCKS:
            assert_same_bits(run.down(to_fixed(run.device, run.status, run.up(x), unit, block=block)), want)
        total = run.up(before)
        assert to_fixed(run.device, run.status, run.up(x), unit, total=total) is total
        assert_same_bits(run.down(total), before + want)
        assert run.bits() == 0


def test_to_fixed_of_awkward_values(device: Any) -> None:
    """Ties, subnormals, the largest term."""
    ties = np.ldexp(np.arange(-9, 10, dtype=np.float32), -57)
    x = np.concatenate([ties, [BELOW, -BELOW], *(row for row in awkward_rows(9) if abs(row).max() < 64)])
    want = reference.to_fixed(x.astype(np.float32), 56)
    for run in runs(device):
        got = to_fixed(run.device, run.status, run.up(x.astype(np.float32)), 56)
        assert_same_bits(run.down(got), want)
        assert run.bits() == 0


@pytest.mark.parametrize("value", [*BAD_VALUES, BEYOND, -BEYOND], ids=str)
def test_a_term_out_of_range_sets_status(device: Any, value: np.float32) -> None:
    x = with_value(floats(1, 501), value)
    for run in runs(device):
        to_fixed(run.device, run.status, run.up(x), 56)
        assert run.bits() == NOT_FINITE
        run.status = run.device.zeros((1,), np.uint32)
        to_fixed(run.device, run.status, run.up(x), 56, total=run.device.zeros(x.shape, np.int64))
        assert run.bits() == NOT_FINITE


def test_a_total_out_of_range_sets_status(device: Any) -> None:
    for run in runs(device):
        total = run.up(np.array([0, 1 << 61], np.int64))
        to_fixed(run.device, run.status, run.up(np.array([33, 31], np.float32)), 56, total=total)
        assert run.bits() == 0
        to_fixed(run.device, run.status, run.up(np.array([0, 1], np.float32)), 56, total=total)
        assert run.bits() == SUM_RANGE


@pytest.mark.parametrize("unit", [30, 32, 56])
def test_from_fixed(device: Any, unit: int) -> None:
    """Many tensors at once; sums of all sizes, and those that lie between two binary32 numbers."""
    rng = np.random.default_rng(unit)
    edges = [0, 1, -1, (1 << 62) - 1, 1 - (1 << 62), (1 << 24) + 1, (1 << 24) + 3, (1 << 40) + (1 << 16), -(1 << 62)]
    sums = [rng.integers(-(1 << 62), 1 << 62, size) >> rng.integers(0, 62, size) for size in SIZES]
    sums.append(np.array(edges, np.int64).reshape(3, 3))
    sums.append(np.array(5 << unit, np.int64))
    for run in runs(device):
        for block in BLOCKS:
            got = from_fixed(run.device, run.status, [run.up(array) for array in sums], unit, block=block)
            for mine, array in zip(got, sums, strict=True):
                assert_same_bits(run.down(mine), np.asarray(reference.from_fixed(array, unit)))
        assert from_fixed(run.device, run.status, [], unit) == []
        assert run.bits() == 0


@pytest.mark.parametrize("total", [1 << 62, -(1 << 62) - 1, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("place", [0, 3, 4096, 4100])
def test_rounding_a_sum_out_of_range_sets_status(device: Any, place: int, total: int) -> None:
    for run in runs(device):
        sums = [np.zeros(7, np.int64), np.zeros(4101, np.int64)]
        from_fixed(run.device, run.status, [run.up(array) for array in sums], 56)
        assert run.bits() == 0
        sums[1][place] = total
        from_fixed(run.device, run.status, [run.up(array) for array in sums], 56)
        assert run.bits() == SUM_RANGE


def test_add_sums(device: Any) -> None:
    rng = np.random.default_rng(9)
    pairs = [tuple(rng.integers(-(1 << 61), 1 << 61, size) for _ in range(2)) for size in SIZES]
    pairs.append((np.array(3, np.int64), np.array(4, np.int64)))
    half, last = 1 << 61, (1 << 62) - 1
    pairs.append((np.array([half, -half, last, -last, 0], np.int64), np.array([half - 1, -half, 0, -1, -last - 1])))
    for run in runs(device):
        for block in BLOCKS:
            totals, terms = ([run.up(pair[i]) for pair in pairs] for i in range(2))
            new = add_sums(run.device, run.status, totals, terms, block=block)
            same = add_sums(run.device, run.status, totals, terms, out=totals, block=block)
            for got, in_place, total, (a, b) in zip(new, same, totals, pairs, strict=True):
                assert in_place is total
                for array in (got, total):
                    assert_same_bits(run.down(array), np.asarray(reference.add_sums(a, b)))
        assert run.bits() == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1 << 61, 1 << 61),
        (-(1 << 61), -(1 << 61) - 1),
        (1 << 62, 0),
        (1 << 62, -5),
        (-5, 1 << 62),
        ((1 << 63) - 1, (1 << 63) - 1),
        (-1, -(1 << 62)),
        (-(1 << 62), -(1 << 62)),
        ((1 << 63) - 1, -(1 << 62)),
        (-(1 << 63), 5),
    ],
)
def test_a_sum_out_of_range_sets_status(device: Any, a: int, b: int) -> None:
    for run in runs(device):
        small = [run.up(np.zeros(4097, np.int64)), run.up(np.zeros(3, np.int64))]
        terms = [run.up(np.zeros(4097, np.int64)), run.up(np.array([0, 0, b], np.int64))]
        add_sums(run.device, run.status, small, terms[:1] + [run.up(np.zeros(3, np.int64))])
        assert run.bits() == 0
        add_sums(run.device, run.status, [small[0], run.up(np.array([0, 0, a], np.int64))], terms)
        assert run.bits() == SUM_RANGE


def test_largest(device: Any) -> None:
    """In any tensor, at any place, of either sign, up to the numbers whose size no int64 holds."""
    rng = np.random.default_rng(17)
    arrays = [rng.integers(-1000, 1000, size) for size in SIZES]
    for run in runs(device):
        held = [run.up(array) for array in arrays]
        for block in BLOCKS:
            assert run.down(largest(run.device, held, block=block)).tolist() == [reference_largest(arrays)]
        assert run.down(largest(run.device, held, blocks=1)).tolist() == [reference_largest(arrays)]
        assert run.down(largest(run.device, [])).tolist() == run.down(largest(run.device, held[:1])).tolist() == [0]
    for value in (1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63), -1001):
        for run in runs(device):
            for size, at in ((9001, 0), (9001, 4096), (9001, 9000), (1, 0), (4097, 4095)):
                changed = np.zeros(size, np.int64)
                changed[at] = value
                assert run.down(largest(run.device, [run.up(arrays[3]), run.up(changed)])).tolist() == [abs(value)]


def test_small_term() -> None:
    for terms in (0, 1, 2, 3, 4, 5, 1 << 20, (1 << 20) + 1):
        assert max(terms, 1) * small_term(terms) <= 1 << 62
        assert small_term(terms) & (small_term(terms) - 1) == 0
