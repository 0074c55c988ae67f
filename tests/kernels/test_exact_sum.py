"""cuda/exact_sum.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.exact_sum import (
    add_sums,
    add_terms,
    from_fixed,
    join_sums,
    largest,
    small_term,
    to_fixed,
)
from auditkit.numerics import exact_sum as reference
from auditkit.numerics import lists
from auditkit.numerics.lists import largest as reference_largest
from tests.kernels.emulator import EmulatedDevice
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


OUT_OF_RANGE = pytest.mark.parametrize(
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


@OUT_OF_RANGE
def test_a_sum_out_of_range_sets_status(device: Any, a: int, b: int) -> None:
    for run in runs(device):
        small = [run.up(np.zeros(4097, np.int64)), run.up(np.zeros(3, np.int64))]
        terms = [run.up(np.zeros(4097, np.int64)), run.up(np.array([0, 0, b], np.int64))]
        add_sums(run.device, run.status, small, terms[:1] + [run.up(np.zeros(3, np.int64))])
        assert run.bits() == 0
        add_sums(run.device, run.status, [small[0], run.up(np.array([0, 0, a], np.int64))], terms)
        assert run.bits() == SUM_RANGE


# Elements around a block of BLAKE3, a slice, a chunk, a block of chunks and two of them; odd ones among them.
TERMS = (0, 1, 7, 8, 9, 15, 16, 17, 127, 128, 129, 255, 257, 16_383, 16_384, 16_385, 32_769, 50_001)


def both_kinds() -> list[Any]:
    """float32 and int64 terms of all these sizes, in turns: values of every size, ties, subnormals."""
    rng = np.random.default_rng(31)
    found: list[Any] = []
    for size in TERMS:
        found.append(floats(size, size, low=-149 if size % 3 else -57, high=4))
        found.append(rng.integers(-(1 << 61), 1 << 61, size) >> rng.integers(0, 61, size))
    ties = np.ldexp(np.arange(-9, 10, dtype=np.float32), -57)
    found.append(np.concatenate([ties, [BELOW, -BELOW], floats(5, 99, low=-149, high=-127)]).astype(np.float32))
    found.append(floats(6, 3, 43, low=-40, high=3))
    found.append(np.array(5, np.int64))
    return found


def test_add_terms(device: Any) -> None:
    """Sums and digests, into new arrays and in place, and of the first micro-batch, whose terms are the totals."""
    terms = both_kinds()
    rng = np.random.default_rng(32)
    totals = [rng.integers(-(1 << 36), 1 << 36, term.shape) for term in terms]  # with 2^62 - 2^38 still in the range
    first, found = lists.add_terms([], terms, 56)
    wanted = lists.add_terms(totals, terms, 56)[0]
    for run in runs(device):
        held, before = [run.up(term) for term in terms], [run.up(total) for total in totals]
        for given, want in (([], first), (before, wanted)):
            sums, digests = add_terms(run.device, run.status, given, held, 56)
            assert digests == found
            for got, expected in zip(sums, want, strict=True):
                assert_same_bits(run.down(got), np.asarray(expected))
        for array, total in zip(before, totals, strict=True):
            assert_same_bits(run.down(array), np.asarray(total))
        sums, digests = add_terms(run.device, run.status, before, held, 56, out=before)
        assert digests == found and all(new is old for new, old in zip(sums, before, strict=True))
        for array, expected in zip(before, wanted, strict=True):
            assert_same_bits(run.down(array), np.asarray(expected))
        for array, term in zip(held, terms, strict=True):
            assert_same_bits(run.down(array), term)
        assert run.bits() == 0


@pytest.mark.parametrize("unit", [30, 32, 56])
def test_add_terms_of_every_unit(device: Any, unit: int) -> None:
    x = floats(unit, 1500, low=-unit - 3, high=61 - unit - 1)
    want = lists.add_terms([], [x], unit)
    for run in runs(device):
        (sums,), digests = add_terms(run.device, run.status, [], [run.up(x)], unit)
        assert digests == want[1]
        assert_same_bits(run.down(sums), want[0][0])
        assert run.bits() == 0


@pytest.mark.parametrize("skipped", [1, 2, 3])
def test_add_terms_at_any_address(device: Any, skipped: int) -> None:
    """Views that begin at no whole 16 bytes."""
    x, exact = floats(3, 700, low=-57, high=4), np.arange(700, dtype=np.int64) << 40
    for terms in (x, exact):
        want = lists.add_terms([exact[skipped:]], [terms[skipped:]], 56)
        for run in runs(device):
            total = run.up(exact)
            given = run.up(terms)[skipped:]
            _, digests = add_terms(run.device, run.status, [total[skipped:]], [given], 56, out=[total[skipped:]])
            assert digests == want[1]
            assert_same_bits(run.down(total), np.concatenate([exact[:skipped], want[0][0]]))


@pytest.mark.parametrize("value", [*BAD_VALUES, BEYOND, -BEYOND], ids=str)
@pytest.mark.parametrize("place", [0, 500, 16_400])
def test_terms_out_of_range_set_status_as_they_are_added(device: Any, place: int, value: np.float32) -> None:
    x = floats(1, 16_401)
    x[place] = value
    for run in runs(device):
        add_terms(run.device, run.status, [], [run.up(floats(2, 9)), run.up(x)], 56)
        assert run.bits() == NOT_FINITE
        run.status = run.device.zeros((1,), np.uint32)
        add_terms(run.device, run.status, [run.device.zeros(x.shape, np.int64)], [run.up(x)], 56)
        assert run.bits() == NOT_FINITE


@OUT_OF_RANGE
@pytest.mark.parametrize("place", [0, 300, 16_400])
def test_sums_out_of_range_set_status_as_their_terms_are_hashed(device: Any, place: int, a: int, b: int) -> None:
    """As add_sums; and where there is no total yet, nothing is added and nothing can leave its range."""
    total, term = np.zeros(16_401, np.int64), np.zeros(16_401, np.int64)
    total[place], term[place] = a, b
    for run in runs(device):
        small = [run.up(np.zeros(9, np.int64)), run.up(total)]
        terms = [run.up(np.zeros(9, np.int64)), run.up(term)]
        add_terms(run.device, run.status, [], terms, 56)
        assert run.bits() == 0
        sums, _ = add_terms(run.device, run.status, small, terms, 56)
        assert run.bits() == SUM_RANGE
        assert int(run.down(sums[1])[place]) == ((a + b + (1 << 63)) % (1 << 64)) - (1 << 63)


def test_a_term_that_takes_a_total_out_of_its_range_sets_status(device: Any) -> None:
    for run in runs(device):
        total = run.up(np.array([0, 1 << 61], np.int64))
        add_terms(run.device, run.status, [total], [run.up(np.array([33, 31], np.float32))], 56, out=[total])
        assert run.bits() == 0
        add_terms(run.device, run.status, [total], [run.up(np.array([0, 1], np.float32))], 56, out=[total])
        assert run.bits() == SUM_RANGE


def test_add_terms_takes_two_launches_for_all_tensors_and_refuses_what_it_cannot_do(device: Any) -> None:
    status = device.zeros((1,), np.uint32)
    held = [device.upload(term) for term in both_kinds()]
    before = len(getattr(device, "launches", []))
    add_terms(device, status, [], held, 56)
    if isinstance(device, EmulatedDevice):
        assert device.launches[before:] == [("exact_sum", "add_hashed"), ("blake3", "parents")]
    assert add_terms(device, status, [], [], 56) == ([], [])
    with pytest.raises(ValueError, match="different sizes"):
        add_terms(device, status, held[3:4], held[4:5], 56)
    with pytest.raises(ValueError, match="different sizes"):
        add_terms(device, status, held[3:4], held[3:5], 56)
    with pytest.raises(ValueError, match="C-contiguous"):
        add_terms(device, status, [], [device.upload(np.zeros((4, 4), np.float32)).T], 56)


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


def test_join_sums(device: Any) -> None:
    values = [0, 5, -(1 << 61), (1 << 62) - 1]
    for run in runs(device):
        held = [run.up(np.array(value, np.int64)) for value in values]
        assert run.down(join_sums(run.device, run.status, held)).tolist() == values
        assert run.down(join_sums(run.device, run.status, [])).tolist() == []
        assert run.bits() == 0
