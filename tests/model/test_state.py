"""States and their documents."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from auditkit.formats.tensors import tensor_digest
from auditkit.model.state import ROLES, State, document, expected_tensors, initial_state, state_digests
from auditkit.model.step import step
from auditkit.numerics import reference
from tests.golden.make_training import RECIPES, tokens_of

RECIPE = RECIPES[min(RECIPES)]


def test_state_0_has_zero_moments_and_a_document_of_every_tensor() -> None:
    state = initial_state(RECIPE)
    assert not any(array.any() for role in (state.adam_m, state.adam_v) for array in role.values())
    made = document(state, RECIPE)
    assert (made.step, made.sequence, made.seed, made.recipe) == (0, 0, RECIPE.init.seed, RECIPE.digest())
    assert {(e.name, e.role): e.shape for e in made.tensors} == expected_tensors(RECIPE)
    assert len(made.tensors) == len(ROLES) * len(state.params)
    assert all(e.digest == tensor_digest(getattr(state, _field(e.role))[e.name]) for e in made.tensors)


def _field(role: str) -> str:
    return "params" if role == "param" else role


def test_the_cursor_moves_with_the_step() -> None:
    state, _ = step(initial_state(RECIPE), tokens_of(RECIPE, 0), RECIPE, reference)
    made = document(state, RECIPE)
    assert (made.step, made.sequence) == (1, RECIPE.batch.sequences)


@pytest.mark.parametrize("role", ["params", "adam_m", "adam_v"])
def test_every_bit_and_the_step_number_enter_the_root(role: str) -> None:
    state, _ = step(initial_state(RECIPE), tokens_of(RECIPE, 0), RECIPE, reference)
    root = document(state, RECIPE).root()
    name = list(state.params)[-1]
    arrays = dict(getattr(state, role))
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1).view(np.uint32)[-1] ^= 1
    assert document(dataclasses.replace(state, **{role: arrays}), RECIPE).root() != root
    assert document(dataclasses.replace(state, step=2), RECIPE).root() != root
    assert document(State(1, state.params, state.adam_m, state.adam_v), RECIPE).root() == root


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_root_without_a_document_is_that_of_the_document(name: str) -> None:
    """Several recipes and steps in turn, since what stays the same is kept from step to step."""
    recipe = RECIPES[name]
    state = initial_state(recipe)
    for _ in range(2):
        digests = state_digests(state, recipe)
        assert digests.root(state.step) == document(state, recipe).root()
        moved = dataclasses.replace(state, step=7)
        assert digests.root(7) == document(moved, recipe).root()
        state = step(state, tokens_of(recipe, state.step), recipe, reference)[0]


def test_another_seed_or_batch_has_another_root() -> None:
    state = initial_state(RECIPE)
    for recipe in (
        dataclasses.replace(RECIPE, init=dataclasses.replace(RECIPE.init, seed=RECIPE.init.seed + 1)),
        dataclasses.replace(RECIPE, batch=dataclasses.replace(RECIPE.batch, sequences=RECIPE.batch.sequences + 1)),
    ):
        made = state_digests(state, recipe).root(3)
        assert made == document(dataclasses.replace(state, step=3), recipe).root()
        assert made != state_digests(state, RECIPE).root(3)
