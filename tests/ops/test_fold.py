"""The ordered fold: the declared brackets, and nothing held that need not be."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from auditkit.numerics.fold import Fold
from auditkit.numerics.layout import add
from tests.ops.cases import floats, frozen
from tests.ops.oracle import update as oracle
from tests.same_bits import assert_same_bits


def brackets(terms: int, radices: tuple[int, ...]) -> str:
    """What is added to what: the fold of the names a, b, c, .."""
    fold: Fold[str] = Fold(radices, lambda x, y: f"({x}{y})")
    for number in range(terms):
        fold.push(chr(ord("a") + number))
    return fold.total()


@pytest.mark.parametrize(
    ("terms", "radices", "want"),
    [
        (1, (2,), "a"),
        (4, (), "(((ab)c)d)"),
        (4, (8,), "(((ab)c)d)"),
        (4, (4,), "(((ab)c)d)"),
        (4, (2,), "((ab)(cd))"),
        (5, (2,), "(((ab)(cd))e)"),
        (8, (2, 2), "(((ab)(cd))((ef)(gh)))"),
        (8, (2, 2, 2), "(((ab)(cd))((ef)(gh)))"),
        (7, (2, 2), "(((ab)(cd))((ef)g))"),
        (6, (2, 2), "(((ab)(cd))(ef))"),
        (5, (2, 2), "(((ab)(cd))e)"),
        (9, (3,), "((((ab)c)((de)f))((gh)i))"),
        (10, (3, 2), "((((ab)c)((de)f))(((gh)i)j))"),
        (11, (3, 2), "((((ab)c)((de)f))(((gh)i)(jk)))"),
        (12, (2, 3), "((((ab)(cd))(ef))(((gh)(ij))(kl)))"),
        (13, (2, 3), "(((((ab)(cd))(ef))(((gh)(ij))(kl)))m)"),
    ],
)
def test_the_brackets(terms: int, radices: tuple[int, ...], want: str) -> None:
    assert brackets(terms, radices) == want


def test_the_fold_is_the_oracles_for_every_count_and_radix() -> None:
    x = floats(3, 27, 5, low=-20, high=3)
    for count, radices in product(range(1, 28), [(), (2,), (3,), (2, 2), (3, 2), (2, 3, 2), (4, 8), (27,), (28,)]):
        fold: Fold[Any] = Fold(radices, add)
        for term in frozen(*x[:count]):
            fold.push(term)
        want = [oracle.fold(list(column), radices) for column in x[:count].T]
        assert_same_bits(fold.total(), np.array(want, np.float32))


def test_radices_can_change_a_bit_and_those_that_group_nothing_cannot() -> None:
    x = floats(4, 16, 100, low=-20, high=3)

    def total(*radices: int) -> bytes:
        fold: Fold[Any] = Fold(radices, add)
        for term in x:
            fold.push(term)
        return bytes(fold.total().tobytes())

    assert len({total(), total(2), total(4), total(2, 2), total(4, 2)}) == 5
    assert total() == total(16) == total(17) == total(16, 5)


def test_it_holds_one_sum_a_level() -> None:
    fold: Fold[Any] = Fold((2, 2), add)
    for number in range(1000):
        fold.push(np.full(3, number, np.float32))
        assert sum(level.held is not None for level in fold._levels) <= 3
    assert_same_bits(fold.total(), np.full(3, 1000 * 999 / 2, np.float32))
    assert_same_bits(fold.total(), np.full(3, 1000 * 999 / 2, np.float32))  # asking changes nothing


def test_no_terms_have_no_sum() -> None:
    with pytest.raises(ValueError, match="no terms"):
        Fold((2,), add).total()
