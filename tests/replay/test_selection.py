"""Selections: every way to name steps, what is refused, and samples that a seed repeats everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.replay.selection import Selection, sample, select

PINNED = (204, 343, 536, 700, 840)


def test_one_step() -> None:
    assert select(step=3).resolve(4) == (3,)
    assert select(step=3).describe() == "step 3"


@pytest.mark.parametrize("steps", ["2:5", (2, 5), range(2, 5)])
def test_a_range_is_half_open(steps: str | tuple[int, int] | range) -> None:
    assert select(steps=steps).resolve(10) == (2, 3, 4)
    assert select(steps=steps).describe() == "steps 2:5 (2 to 4)"


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
        {"random": 0},
        {"random": -3},
        {"seed": 3, "step": 1},
        {"random": 3, "seed": -1},
        {"random": 3, "seed": 2**64},
    ],
)
def test_wrong_selections_are_usage_errors(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        select(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("selection", [Selection(step=10), Selection(steps=(9, 11)), Selection(random=11)])
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
