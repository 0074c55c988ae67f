"""Plans: each wanted step is reached from the nearest published state, and replays are shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditkit.replay.plan import Interval, following, intervals


def test_a_published_start_needs_one_step() -> None:
    assert intervals([500], [0, 500, 1000]) == (Interval(500, 501, (500,)),)


def test_a_step_in_between_is_reached_from_the_state_before() -> None:
    assert intervals([503], [0, 500, 1000]) == (Interval(500, 504, (503,)),)


def test_steps_share_replays() -> None:
    plan = intervals([7, 3, 3, 12, 25], [0, 10, 20, 30])
    assert plan == (Interval(0, 8, (3, 7)), Interval(10, 13, (12,)), Interval(20, 26, (25,)))


def test_the_seed_gives_state_0_where_it_is_not_published() -> None:
    assert intervals([2], [5]) == (Interval(0, 3, (2,)),)


def test_a_step_on_the_way_or_beside_makes_steps_follow_each_other() -> None:
    assert not following(intervals([0, 10], [0, 10]))
    assert following(intervals([0, 11], [0, 10])) and following(intervals([0, 1], [0]))


@given(st.sets(st.integers(0, 200), min_size=1), st.sets(st.integers(0, 200)))
def test_every_wanted_step_is_replayed_once_from_a_state_at_hand(wanted: set[int], published: set[int]) -> None:
    plan = intervals(wanted, published)
    assert sorted(step for interval in plan for step in interval.wanted) == sorted(wanted)
    replayed = [step for interval in plan for step in interval.steps]
    assert len(replayed) == len(set(replayed))
    for interval in plan:
        for step in interval.wanted:
            assert interval.start == max(state for state in published | {0} if state <= step)
