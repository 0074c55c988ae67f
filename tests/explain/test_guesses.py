"""Guesses stay within what a recipe may be: a publisher chooses the values that they begin from."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.explain.micro_guesses import flushing
from auditkit.explain.seed import _others
from auditkit.explain.update_guesses import named_rates
from auditkit.formats.canonical import MAX_INT
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe, ScheduleConfig
from auditkit.numerics import reference
from auditkit.replay.run import open_run
from auditkit.store.progress import Silent
from tests.replay.conftest import honest, parts

__all__ = ["honest", "parts"]

SCHEDULES = [
    ScheduleConfig("wsd", 1e-3, 1e-4, 2, 8, 10),  # no room between warm-up and decay
    ScheduleConfig("wsd", 1e-3, 1e-4, 0, 10, 10),
    ScheduleConfig("cosine", 1e-3, 1e-4, 10, 0, 10),
    ScheduleConfig("cosine", 1e-3, 1e-4, 0, 0, LIMITS.steps),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_at_the_edge_of_what_is_allowed(schedule: ScheduleConfig) -> None:
    assert len(list(named_rates(schedule, 5))) > 2


@pytest.mark.parametrize("seed", [0, 1, MAX_INT - 1, MAX_INT])
def test_seeds_at_the_edge_of_what_is_allowed(honest: object, seed: int) -> None:
    with open_run(str(honest), progress=Silent()) as run:
        recipe = replace(run.recipe, init=replace(run.recipe.init, seed=seed))
        lie: Any = SimpleNamespace(recipe=recipe, manifest=run.manifest)
        tried = [recipe for _, recipe in _others(lie, True)]
    for recipe in tried:
        assert Recipe.parse(recipe.encode()) == recipe


def test_flush_to_zero_takes_the_sum_of_two_gradients_too() -> None:
    """A subnormal sum, of which the norm would make normal numbers."""
    x, weight = np.full((1, 4), 1e-3, np.float32), np.full(4, 1e9, np.float32)
    dys = [np.array([[1e-39, -3e-39, 2e-39, 0.0]], np.float32), np.zeros((1, 4), np.float32)]
    _, cache = reference.rms_norm_forward(x, weight, np.float32(1e-5))
    ops: Any = reference
    plain, _ = ops.rms_norm_backward_add(dys, weight, cache, None)
    flushed, _ = flushing(ops).rms_norm_backward_add(dys, weight, cache, None)
    assert abs(plain).max() > 1e-30 and not flushed.any()
