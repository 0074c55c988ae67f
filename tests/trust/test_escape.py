"""The chance to have escaped: exact against counting every subset, and words that claim no more than the number."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.trust import escape
from auditkit.trust.escape import Escape


def by_counting(size: int, covered: int, tampered: int) -> Fraction:
    """Every set of covered steps, counted one by one."""
    bad = set(range(tampered))
    sets = list(itertools.combinations(range(size), covered))
    return Fraction(sum(not bad & set(chosen) for chosen in sets), len(sets))


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_the_chance_is_the_share_of_the_sets_that_miss_every_tampered_step(size: int) -> None:
    for covered, tampered in itertools.product(range(size + 1), repeat=2):
        assert escape.chance(size, covered, tampered) == float(by_counting(size, covered, tampered))


@given(st.integers(1, 3000), st.data())
def test_the_chance_is_the_hypergeometric_one_correctly_rounded(size: int, data: st.DataObject) -> None:
    covered, tampered = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    exact = Fraction(comb(size - tampered, covered), comb(size, covered))
    found = escape.chance(size, covered, tampered)
    assert found == float(exact) or (found == 0.0 and exact < Fraction(1, 10**300))


@given(st.integers(1, 400), st.data(), st.sampled_from(escape.CONFIDENCES))
def test_the_extent_is_the_least_number_that_is_caught_often_enough(
    size: int, data: st.DataObject, confidence: int
) -> None:
    covered = data.draw(st.integers(1, size))
    escaped = [Fraction(comb(size - k, covered), comb(size, covered)) for k in range(size + 1)]
    expected = next(k for k in range(size + 1) if 1 - escaped[k] >= Fraction(confidence, 100))
    assert escape.caught_with(size, covered, confidence) == expected


def test_the_figures_of_the_documentation() -> None:
    """docs/trust.md: 1,000 steps, 50 verified; one false step is missed with 95 %, fifty with 7 %."""
    assert escape.chance(1000, 50, 1) == 0.95
    assert round(escape.chance(1000, 50, 50), 2) == 0.07
    assert escape.caught_with(1000, 50, 95) == 57


def test_nothing_covered_catches_nothing_and_everything_covered_catches_one() -> None:
    assert [row.chance for row in escape.table(1000, 0)] == [1.0, 1.0, 1.0]
    assert escape.caught_with(1000, 0, 95) is None
    assert all(row.impossible and row.chance == 0.0 for row in escape.table(1000, 1000))
    assert escape.caught_with(1000, 1000, 99) == 1


def test_the_rows_are_those_that_the_run_has() -> None:
    assert [row.tampered for row in escape.table(100_000, 7)] == [1, 10, 100, 1000]
    assert [row.tampered for row in escape.table(1000, 7)] == [1, 10, 100]
    assert [row.tampered for row in escape.table(8, 7)] == [1]
    assert escape.table(0, 0) == []


def test_ten_million_steps_take_no_huge_integers() -> None:
    size = 10_000_000
    assert 0 < escape.chance(size, size // 2, 1000) < 1e-300
    assert escape.chance(size, size // 2, size // 100) == 0.0
    assert escape.caught_with(size, 1, 95) == 9_500_000
    assert escape.caught_with(size, size // 2, 99) == 7


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Escape(1, 1.0, False), "100.00 %"),
        (Escape(1, 0.99999, False), "above 99.99 %"),
        (Escape(1, 0.95, False), "95.00 %"),
        (Escape(1, 0.0001, False), "0.01 %"),
        (Escape(1, 3.24e-7, False), "3.2e-07"),
        (Escape(1, 0.0, False), "below 1e-300"),
        (Escape(1, 0.0, True), "impossible"),
    ],
)
def test_words_claim_no_more_than_the_number(row: Escape, text: str) -> None:
    assert row.text == text
