"""Parts: together they are the whole, each once, and none replays more than it must."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.replay.parts import share
from auditkit.replay.plan import intervals

FEW, MANY = (0,), tuple(range(0, 1000, 10))


def replays(steps: tuple[int, ...], published: tuple[int, ...]) -> int:
    """How many steps a machine replays to reach these."""
    return sum(len(interval.steps) for interval in intervals(steps, published))


@pytest.mark.parametrize("published", [FEW, (0, 400), (0, 250, 500, 750), (0, 7, 8, 9, 990), MANY, tuple(range(1000))])
@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5)))[::5])
def test_four_parts_cover_each_step_exactly_once_in_any_order(
    published: tuple[int, ...], order: tuple[int, ...]
) -> None:
    done = [step for number in order for step in share(range(3, 997), published, number, 4)]
    assert sorted(done) == list(range(3, 997))


def test_whole_intervals_go_to_a_part_and_neighbours_to_the_same_one() -> None:
    parts = [share(range(1000), MANY, number, 4) for number in range(1, 5)]
    assert parts == [tuple(range(first, first + 250)) for first in (0, 250, 500, 750)]
    assert [replays(part, MANY) for part in parts] == [250] * 4


def test_uneven_intervals_are_shared_by_what_must_be_replayed() -> None:
    published = (0, 600, 700, 800, 900)
    parts = [share(range(1000), published, number, 3) for number in range(1, 4)]
    assert [(part[0], part[-1]) for part in parts] == [(0, 599), (600, 899), (900, 999)]
    assert [replays(part, published) for part in parts] == [600, 300, 100]  # no split is done sooner than 600


def test_steps_before_the_first_one_asked_for_are_counted_where_they_are_replayed() -> None:
    # 90:100 is reached from state 0 and costs 100 replays, 100:200 costs as many
    parts = [share(range(90, 200), (0, 100), number, 2) for number in (1, 2)]
    assert parts == [tuple(range(90, 100)), tuple(range(100, 200))]


def test_with_more_parts_than_states_an_interval_is_cut_evenly() -> None:
    assert [len(share(range(1000), (0,), number, 4)) for number in range(1, 5)] == [250] * 4
    assert [len(share(range(1000), (0, 800), number, 4)) for number in range(1, 5)] == [266, 267, 267, 200]
    assert [len(share(range(8), (0, 7), number, 8)) for number in range(1, 9)] == [1] * 8


def test_fewer_steps_than_parts_are_refused_on_every_machine() -> None:
    for number in range(1, 4):
        with pytest.raises(UsageError, match="2 steps cannot be split into 3 parts"):
            share([4, 9], (0,), number, 3)


@given(st.data())
def test_parts_are_a_partition_and_the_longest_is_as_short_as_can_be(data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, 60), min_size=1))
    published = tuple(sorted(data.draw(st.sets(st.integers(0, 60), max_size=9)) | {0}))
    count = data.draw(st.integers(1, len(wanted)))
    parts = [share(wanted, published, number, count) for number in range(1, count + 1)]
    assert all(parts)
    assert [step for part in parts for step in part] == sorted(wanted)
    plan = intervals(wanted, published)
    if count <= len(plan):
        costs = [len(interval.steps) for interval in plan]
        assert sum(replays(part, published) for part in parts) == sum(costs)
        assert max(replays(part, published) for part in parts) == shortest(costs, count)


def shortest(costs: list[int], count: int) -> int:
    """The least possible cost of the dearest of `count` ranges of neighbours, by trying all."""
    cuts = itertools.combinations(range(1, len(costs)), count - 1)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cut, len(costs)))) for cut in cuts)


def test_no_order_and_no_repetition_of_the_inputs_matters() -> None:
    chooser = random.Random(3)
    wanted, published = list(range(100)), [0, 20, 30, 77]
    expected = share(wanted, published, 2, 3)
    for _ in range(5):
        chooser.shuffle(wanted)
        chooser.shuffle(published)
        assert share(wanted * 2, published, 2, 3) == expected
