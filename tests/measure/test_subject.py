"""What is measured is a real step: the state of the recipe's seed, under the plan for the memory that may be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.measure.subject import StoppedClock, Subject, subject_of, tokens_of
from auditkit.model.plan import Plan
from auditkit.model.state import document, initial_state
from auditkit.replay.backend import Backend
from auditkit.replay.layout import Layout


@pytest.mark.parametrize("params", ["held", "memory", "host", "disk"])
def test_the_state_is_that_of_the_seed_wherever_it_lies(subject: Subject, params: str) -> None:
    if params != "held":
        plan = Plan(True, params=params)  # type: ignore[arg-type]
        subject = replace(subject, layout=Layout(plan, subject.layout.need))
    state = subject.planned().host(subject.state())
    assert document(state, subject.recipe) == document(initial_state(subject.recipe), subject.recipe)


def test_tokens_are_within_the_vocabulary_and_fill_it(recipe: Recipe) -> None:
    tokens = tokens_of(recipe)
    assert tokens.shape == (3, 9)
    assert 0 <= tokens.min() < 3
    assert 20 < tokens.max() < 24


def test_a_part_has_so_many_micro_batches(subject: Subject) -> None:
    assert subject.part(7).batch.micro_batches == 7


def test_too_little_memory_is_unsupported(recipe: Recipe, backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="at least"):
        subject_of(recipe, backend, 1000, tmp_path)


def test_no_time_passes_on_the_clock_that_keeps_nothing() -> None:
    clock = StoppedClock()
    assert clock.now() == clock.now()
