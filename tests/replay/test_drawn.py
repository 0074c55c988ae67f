"""Which window each sequence is: against the oracle, with every window of a source once an epoch, and its end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.data_spec import DataSpec, Source
from auditkit.numerics.shuffle import window_order
from auditkit.replay.drawn import MixedOrder, SortedOrder, check_end, order_of
from tests.formats import sources
from tests.ops.oracle import order

WIDTH = 4


def data(*declared: tuple[int, int, int]) -> DataSpec:
    """Sources of (windows, weight, epochs), with three tokens too many for one window more."""
    listed = tuple(
        Source(f"s{number}", "t", "l", windows * WIDTH + 4, weight, epochs)
        for number, (windows, weight, epochs) in enumerate(declared)
    )
    total = sum(windows for windows, _, _ in declared)
    return dataclasses.replace(sources.DATA, context_length=WIDTH, sources=listed, windows=total, seed=9)


@pytest.mark.parametrize("weights", [[1], [3, 1], [1, 1, 1], [5, 3, 2]])
def test_each_sequence_is_that_of_the_oracle(weights: list[int]) -> None:
    windows = [7, 3, 11][: len(weights)]
    found = order_of(data(*((w, weight, 0) for w, weight in zip(windows, weights, strict=True)))).drawn(0, 90)
    for number in range(90):
        want = order.sequence(9, weights, windows, number)
        assert (int(found.source[number]), int(found.epoch[number]), int(found.window[number])) == want


@pytest.mark.parametrize("weights", [(3, 1), (1, 1), (1, 5)])
def test_each_window_of_a_source_comes_once_in_each_of_its_epochs(weights: tuple[int, int]) -> None:
    found = order_of(data((7, weights[0], 0), (3, weights[1], 0))).drawn(0, 400)
    for source, windows in ((0, 7), (1, 3)):
        own = found.window[found.source == source]
        for epoch in range(len(own) // windows):
            assert sorted(own[epoch * windows : (epoch + 1) * windows].tolist()) == list(range(windows))


def test_one_in_a_thousand() -> None:
    found = order_of(data((50, 1000, 0), (2, 1, 0))).drawn(0, 4004)
    assert np.flatnonzero(found.source == 1).tolist() == [1000, 2001, 3002, 4003]
    assert found.epoch[found.source == 1].tolist() == [0, 0, 1, 1]


def test_any_part_can_be_asked_for() -> None:
    rule = order_of(data((7, 3, 0), (3, 1, 0)))
    whole = rule.drawn(0, 60)
    for first, end in ((0, 0), (0, 1), (13, 29), (59, 60)):
        part = rule.drawn(first, end)
        for name in ("source", "epoch", "window"):
            assert getattr(part, name).tolist() == getattr(whole, name)[first:end].tolist()


def test_a_corpus_of_a_billion_windows_needs_no_table() -> None:
    """Case of 10^9 windows: 8 bytes each would be 8 GB."""
    found = order_of(data((10**9, 3, 0), (10**7, 1, 0))).drawn(10**8, 10**8 + 512)
    assert len(set(zip(found.source.tolist(), found.epoch.tolist(), found.window.tolist(), strict=True))) == 512


def test_one_corpus_is_sorted_as_before() -> None:
    found = SortedOrder(3, 10).drawn(5, 27)
    want = [int(window_order(3, s // 10, 10)[s % 10]) for s in range(5, 27)]
    assert found.window.tolist() == want
    assert found.epoch.tolist() == [s // 10 for s in range(5, 27)]
    assert not found.source.any()


@pytest.mark.parametrize(
    ("declared", "end"),
    [
        (((7, 1, 1),), 7),
        (((7, 1, 3),), 21),
        (((6, 3, 1), (9, 1, 0)), 8),  # slots aaab: the seventh of a would be sequence 8
        (((6, 3, 0), (2, 1, 1)), 11),  # b is sequence 3, 7, 11
        (((6, 3, 2), (2, 1, 1)), 11),
        (((6, 3, 1), (2, 1, 1)), 8),
        (((5, 2, 1), (5, 2, 1)), 10),
    ],
)
def test_the_end_is_the_first_sequence_that_does_not_exist(
    declared: tuple[tuple[int, int, int], ...], end: int
) -> None:
    spec = data(*declared)
    found = order_of(spec).drawn(0, end)
    for number, (_, _, epochs) in enumerate(declared):
        assert not epochs or int(found.epoch[found.source == number].max(initial=0)) < epochs
    check_end(spec, end)
    with pytest.raises(BadArtifact, match=f"the data end after {end} sequences"):
        check_end(spec, end + 1)
    with pytest.raises(BadArtifact, match=f"the data end after {end} sequences"):
        order_of(spec).drawn(0, end + 1)


def test_without_limits_there_is_no_end() -> None:
    check_end(data((7, 1, 0), (3, 1, 0)), 1 << 60)
    check_end(sources.samples.DATA, 1 << 60)


@given(
    st.lists(st.tuples(st.integers(3, 9), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_the_end_is_found_without_its_table_as_with_it(sources: list[tuple[int, int, int]], sequences: int) -> None:
    spec = data(*sources)
    ends = [check_end, lambda given, count: MixedOrder(given).check_end(count)]
    refused = []
    for end in ends:
        try:
            end(spec, sequences)
        except BadArtifact as error:
            refused.append(error.message)
    assert len(refused) in (0, 2) and len(set(refused)) < 2
