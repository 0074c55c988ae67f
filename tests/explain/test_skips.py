"""Steps that a recipe skips: taken all the same, or skipped without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auditkit.explain.explain import explain
from auditkit.explain.findings import Explanation, Standing
from auditkit.formats.bits import to_f32
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.formats.skips import NORM
from auditkit.model.divergence import passed, without_result
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import choose
from auditkit.verdict import Verdict
from tests.replay import make_run

WRONG = 4


def recipe_with(max_norm: float) -> Recipe:
    return replace(make_run.RECIPE, divergence=DivergenceConfig("skip", max_norm))


def explained(parts: make_run.Parts, folder: Path) -> Explanation:
    return explain(
        make_run.publish(parts, folder / "run"), step=WRONG, backend=choose("cpu", 1), cache_dir=folder / "c"
    )


def go_on(parts: make_run.Parts) -> make_run.Parts:
    """The honest steps behind the wrong one."""
    for number in range(WRONG + 1, len(parts.batches)):
        state, result = step(parts.states[number], parts.batches[number], parts.recipe, reference)
        parts.states[number + 1], parts.results[number] = state, result
    return parts


@pytest.mark.parametrize(("published", "rate"), [(True, False), (False, False), (True, True)])
def test_a_step_that_is_taken_though_its_norm_skips_it(tmp_path: Path, published: bool, rate: bool) -> None:
    plain = make_run.train(make_run.STEPS)
    bound = float(plain.results[WRONG].norm) * 0.99
    lie = make_run.train(make_run.STEPS, recipe_with(0.0))
    lie.recipe = recipe_with(to_f32(bound))
    for number in range(WRONG):  # those before may be skipped honestly
        lie.states[number + 1], lie.results[number] = step(
            lie.states[number], lie.batches[number], lie.recipe, reference
        )
    taken, result = step(lie.states[WRONG], lie.batches[WRONG], recipe_with(0.0), reference)
    _, honest = step(lie.states[WRONG], lie.batches[WRONG], lie.recipe, reference)
    lie.published = (0, WRONG, WRONG + 1) if published else (0, WRONG)
    lie.states[WRONG + 1], lie.results[WRONG] = taken, replace(result, lr=result.lr if rate else honest.lr)
    assert honest.skipped == NORM
    found = explained(go_on(lie), tmp_path)
    assert found.verdict is Verdict.MISMATCH and found.confirmed
    assert {cause.key for cause in found.causes} == {"not-skipped"}


def test_a_step_that_is_skipped_though_it_has_a_result(tmp_path: Path) -> None:
    lie = make_run.train(make_run.STEPS, recipe_with(0.0))
    lie.states[WRONG + 1] = passed(lie.states[WRONG], lie.recipe)
    lie.results[WRONG] = without_result(lie.recipe, "a lie")
    found = explained(go_on(lie), tmp_path)
    assert found.verdict is Verdict.MISMATCH and found.confirmed
    assert [cause.key for cause in found.causes] == ["skipped"]


def test_a_step_that_is_left_out_under_its_norm(tmp_path: Path) -> None:
    """The record names gradient and norm; the state is the one before."""
    lie = make_run.train(make_run.STEPS, recipe_with(0.0))
    lie.states[WRONG + 1] = passed(lie.states[WRONG], lie.recipe)
    found = explained(go_on(lie), tmp_path)
    assert found.confirmed and [cause.key for cause in found.causes] == ["not-updated"]


def no_result(parts: make_run.Parts) -> None:
    """The state before the step has moments whose update is infinite."""
    state = parts.states[WRONG]
    moments = {name: np.full_like(array, 3e38) for name, array in state.adam_m.items()}
    parts.states[WRONG] = replace(state, adam_m=moments)


def said_of_the_step(parts: make_run.Parts, folder: Path) -> str:
    """The one quantity of an explanation that finds no cause."""
    parts.published = (0, WRONG)
    found = explained(parts, folder)
    assert found.verdict is Verdict.MISMATCH and not found.causes
    (quantity,) = found.quantities
    assert quantity.name == "step" and quantity.standing is Standing.DIFFERENT
    return quantity.detail


def test_a_result_that_the_update_has_not(tmp_path: Path) -> None:
    lie = make_run.train(WRONG + 1, recipe_with(0.0))
    no_result(lie)
    said = said_of_the_step(lie, tmp_path)
    assert said.startswith("the record claims a result, but the declared step has none: the update makes ")


def test_a_step_without_a_result_that_is_recorded_otherwise(tmp_path: Path) -> None:
    """It is not said to have a result, for it has none."""
    lie = make_run.train(WRONG + 1, recipe_with(0.0))
    no_result(lie)
    lie.states[WRONG + 1] = passed(lie.states[WRONG], lie.recipe)
    lie.results[WRONG] = replace(without_result(lie.recipe, ""), loss=np.float32(1))
    assert said_of_the_step(lie, tmp_path).startswith("the step has no result, as the record says; ")


def test_leaves_whose_losses_have_no_sum(tmp_path: Path) -> None:
    """It is theirs that have none; the step has a result."""
    lie = make_run.train(WRONG + 1)
    lie.published = (0, WRONG)
    leaves = (MicroBatchLeaf(2**63 - 1, "ab" * 32),) * 2
    lie.results[WRONG] = replace(lie.results[WRONG], leaves=leaves)
    found = {quantity.name: quantity for quantity in explained(lie, tmp_path).quantities}
    assert "step" not in found and found["gradient"].standing is Standing.SAME
    assert found["loss"].detail == "the losses of the published leaves have no sum: an exact sum leaves 62 bits"
