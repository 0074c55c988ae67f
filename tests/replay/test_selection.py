"""Selections: every way to name steps, what is refused, and samples that a seed repeats everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.replay.selection import Selection, in_words, sample, select

PINNED = (204, 343, 536, 700, 840)


def test_one_step() -> None:
    assert select(step=3).resolve(4) == (3,)
    assert select(step=3).describe() == "step 3"


@pytest.mark.parametrize("steps", ["2:5", (2, 5), range(2, 5)])
def test_a_range_is_half_open(steps: str | tuple[int, int] | range) -> None:
    assert select(steps=steps).resolve(10) == (2, 3, 4)
    assert select(steps=steps).describe() == "steps 2:5 (2 to 4)"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("7,3", (3, 7)), ("3,3,2:5", (2, 3, 4)), ("5:7,0", (0, 5, 6)), ("0:2,1:3", (0, 1, 2)), ("9,9", (9,))],
)
def test_a_list_gives_each_step_once(steps: str, expected: tuple[int, ...]) -> None:
    assert select(steps=steps).resolve(10) == expected
    assert select(steps=steps).describe() == f"steps {steps}"
    with pytest.raises(UsageError, match="not in this run"):
        select(steps=steps + ",10").resolve(10)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=2))
def test_a_list_in_words_is_read_back(items: list[tuple[int, int]]) -> None:
    ranges = tuple((first, first + length) for first, length in items)
    assert select(steps=in_words(ranges)).ranges == ranges


def test_a_long_list_is_described_in_short() -> None:
    said = select(steps=",".join(map(str, range(0, 2000, 2)))).describe()
    assert said == "steps 0,2,4,6,8,10,12,14,16,18,20,22 and 988 more ranges"


def test_a_part_is_of_what_was_asked_for() -> None:
    assert select(steps="2:8", part="2/2").resolve(10, [0, 5]) == (5, 6, 7)
    assert select(steps="2:8", part=(1, 2)).resolve(10, [0, 5]) == (2, 3, 4)
    assert select(steps="2:8", part="2/2").describe() == "part 2 of 2 of steps 2:8 (2 to 7)"
    sampled = select(random=4, seed=1).resolve(10)
    parts = [select(random=4, seed=1, part=(i, 2)).resolve(10, [0, 5]) for i in (1, 2)]
    assert sorted(parts[0] + parts[1]) == list(sampled)


def test_more_parts_than_steps_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="3 steps cannot be split into 4 parts"):
        select(steps="2:5", part="1/4").resolve(10)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"step": 1, "random": 2},
        {"step": 1, "steps": "1:2"},
        {"step": -1},
        {"step": True},
        {"step": 2**53},
        {"step": "1"},
        {"steps": "5"},
        {"steps": "5:5"},
        {"steps": "5:4"},
        {"steps": ":4"},
        {"steps": "-1:4"},
        {"steps": "\u0663:\u0664"},
        {"steps": "1:99999999999999999999"},
        {"steps": range(0, 10, 2)},
        {"steps": "3,"},
        {"steps": ",3"},
        {"steps": "3,,4"},
        {"steps": "3,5:5"},
        {"steps": "3, 4"},
        {"steps": "3:4:5,6"},
        {"steps": [3, 4]},
        {"random": 0},
        {"random": -3},
        {"seed": 3, "step": 1},
        {"random": 3, "seed": -1},
        {"random": 3, "seed": 2**64},
        {"random": 3, "part": "1/2"},
        {"steps": "0:4", "part": "0/2"},
        {"steps": "0:4", "part": "3/2"},
        {"steps": "0:4", "part": "1/0"},
        {"steps": "0:4", "part": "1"},
        {"steps": "0:4", "part": "1/1000001"},
        {"steps": "0:4", "part": "-1/2"},
        {"steps": "0:4", "part": 1},
        {"steps": "0:4", "part": (1, 2.0)},
    ],
)
def test_wrong_selections_are_usage_errors(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        select(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("selection", [Selection(step=10), Selection(ranges=((9, 11),)), Selection(random=11)])
def test_steps_beyond_the_run_are_usage_errors(selection: Selection) -> None:
    with pytest.raises(UsageError, match="10"):
        selection.resolve(10)


def test_sample_of_a_seed_is_pinned() -> None:
    """The sample is part of what auditors agree on, so its values may not change between releases."""
    assert sample(1000, 5, 7) == PINNED


@given(st.integers(1, 300), st.data())
def test_samples_are_distinct_sorted_and_inside(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, size))
    chosen = sample(size, count, data.draw(st.integers(0, 2**64 - 1)))
    assert len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    assert all(0 <= step < size for step in chosen)


def test_all_steps_can_be_sampled_and_every_step_is_reachable() -> None:
    assert sample(50, 50, 1) == tuple(range(50))
    assert {step for seed in range(400) for step in sample(20, 1, seed)} == set(range(20))


def test_a_sample_without_a_seed_is_fresh_and_named() -> None:
    first, second = select(random=3), select(random=3)
    assert first.seed != second.seed
    assert str(first.seed) in first.describe()
    assert first.resolve(1000) == select(random=3, seed=first.seed).resolve(1000)
