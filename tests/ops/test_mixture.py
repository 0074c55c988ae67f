"""Period: vectors, the written rule, shares within one sequence at every point, inverse, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.numerics.mixture import MAX_SUM, Period
from tests.ops.elementary_checks import load
from tests.ops.oracle.order import period as oracle

weights_of_some = st.lists(st.integers(1, 60), min_size=1, max_size=9)


def test_vectors() -> None:
    vector = load("mixture")
    for weights, first, pairs in vector["cases"]:
        source, own = Period.of(weights).drawn(first, first + len(pairs))
        assert [list(pair) for pair in zip(source.tolist(), own.tolist(), strict=True)] == pairs
    whole = Period.of([40000, 25000, 536]).source
    assert blake3(whole.astype("<i8").tobytes()).hexdigest() == vector["digest"]


@settings(max_examples=60)
@given(weights_of_some)
def test_follows_the_written_rule_and_keeps_every_share(weights: list[int]) -> None:
    period, total = Period.of(weights), sum(weights)
    found = list(zip(period.source.tolist(), period.place.tolist(), strict=True))
    assert found == oracle(weights)
    counts = [0] * len(weights)
    for number, (source, place) in enumerate(found, start=1):
        assert place == counts[source]
        counts[source] += 1
        assert all(abs(Fraction(number * w, total) - c) < 1 for w, c in zip(weights, counts, strict=True))
    assert counts == weights


@settings(max_examples=30)
@given(weights_of_some, st.integers(0, 1000))
def test_any_part_of_a_run_can_be_asked_for(weights: list[int], first: int) -> None:
    period = Period.of(weights)
    source, own = period.drawn(0, first + 40)
    later = period.drawn(first, first + 40)
    assert (later[0].tolist(), later[1].tolist()) == (source[first:].tolist(), own[first:].tolist())
    for i in range(len(weights)):  # the sequences of a source are numbered without a gap
        assert own[source == i].tolist() == list(range(np.count_nonzero(source == i)))
    for number in range(first, first + 40):
        assert period.number_of(int(source[number]), int(own[number])) == number


@pytest.mark.parametrize(
    ("weights", "names"), [([3, 1], "aaab"), ([1, 1, 1], "abc"), ([4, 1, 1, 1], "aabacad"), ([1, 2], "bab")]
)
def test_small_mixtures_by_hand(weights: list[int], names: str) -> None:
    assert "".join("abcd"[i] for i in Period.of(weights).source) == names


def test_one_in_a_thousand_comes_once_a_period() -> None:
    source = Period.of([1000, 1]).drawn(0, 10 * 1001)[0]
    assert np.diff(np.flatnonzero(source == 1)).tolist() == [1001] * 9


@given(weights_of_some, st.integers(2, 9))
def test_only_the_ratio_of_weights_matters(weights: list[int], factor: int) -> None:
    period, scaled = Period.of(weights), Period.of([w * factor for w in weights])
    count = 3 * factor * sum(weights)
    for once, again in zip(period.drawn(0, count), scaled.drawn(0, count), strict=True):
        assert once.tolist() == again.tolist()


@pytest.mark.parametrize("weights", [[], [0], [1, 0], [-1, 3], [MAX_SUM, 1], [MAX_SUM + 1]])
def test_other_weights_are_refused(weights: list[int]) -> None:
    with pytest.raises(UsageError, match="weights are integers"):
        Period.of(weights)


@pytest.mark.parametrize(("first", "end"), [(-1, 0), (2, 1), (0, (1 << 62) + 1)])
def test_other_sequences_are_refused(first: int, end: int) -> None:
    with pytest.raises(UsageError, match="outside"):
        Period.of([1]).drawn(first, end)
