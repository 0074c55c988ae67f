"""Three steps of a training whose product is f32: no fixed-point row is made, and no bit depends on the threads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from auditkit.errors import AuditkitError
from auditkit.formats.recipe import NumericsConfig, Recipe
from auditkit.model.state import State, document, initial_state
from auditkit.model.step import StepResult, step
from auditkit.numerics import attention, exact_dot, reference
from tests.golden.make_training import RECIPES, tokens_of

PLAIN = NumericsConfig(1, "f32", 24, 24)


def with_numerics(recipe: Recipe, numerics: NumericsConfig) -> Recipe:
    """The recipe of a golden training with another product."""
    return dataclasses.replace(recipe, numerics=numerics)


RECIPES_PLAIN = {name: with_numerics(recipe, PLAIN) for name, recipe in RECIPES.items()}


def train(recipe: Recipe, threads: int = 1) -> tuple[State, list[StepResult]]:
    """Three steps on the first batch."""
    state, results = initial_state(recipe), []
    for _ in range(3):
        state, result = step(state, tokens_of(recipe, 0), recipe, reference, threads=threads)
        results.append(result)
    return state, results


@pytest.mark.parametrize("name", RECIPES_PLAIN)
def test_three_steps_learn_without_a_fixed_point_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a fixed-point row in a training with plain binary32")

    for module in (exact_dot, attention):
        monkeypatch.setattr(module, "quantise", refuse)
    losses = [float(result.loss) for result in train(RECIPES_PLAIN[name])[1]]
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize("name", RECIPES_PLAIN)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    recipe = RECIPES_PLAIN[name]
    (state, results), (other, others) = train(recipe, 1), train(recipe, 4)
    assert results == others
    assert document(state, recipe).root() == document(other, recipe).root()


@pytest.mark.parametrize("name", RECIPES_PLAIN)
def test_it_is_another_training_than_fx21_and_close_to_it(name: str) -> None:
    fixed = with_numerics(RECIPES[name], NumericsConfig(1, "fx", 21, 21))
    plain = RECIPES_PLAIN[name]
    (state, results), (other, others) = train(plain), train(fixed)
    for a, b in zip(results, others, strict=True):
        assert a.gradient != b.gradient
        assert float(a.loss) == pytest.approx(float(b.loss), rel=1e-5)
        assert float(a.norm) == pytest.approx(float(b.norm), rel=1e-4)
    assert document(state, plain).root() != document(other, fixed).root()


def test_weights_that_overflow_the_product_have_no_result() -> None:
    recipe = next(iter(RECIPES_PLAIN.values()))
    state = initial_state(recipe)
    for name, array in state.params.items():
        if "proj" in name:
            array[...] = np.float32(3e38)
    with pytest.raises(AuditkitError) as caught:
        step(state, tokens_of(recipe, 0), recipe, reference)
    assert caught.value.verdict.name == "MISMATCH"
