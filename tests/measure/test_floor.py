"""The floor: counted by hand on a small model, and below what a step really takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditkit.formats.recipe import Recipe
from auditkit.measure.floor import Floor, floor_of, operations, work_of
from auditkit.measure.models import recipe_of
from auditkit.measure.rates import Rates

RATES = Rates(copy=1e12, operations=1e15, digest=1e12, unpack=1e9, product=8192)


def test_operations_are_those_of_every_product(recipe: Recipe) -> None:
    """One layer, 8 tokens of 16 features, 2 heads of 8 with one key head, 24 in the feed-forward part, 24 tokens."""
    body = 16 * 16 + 8 * 16 + 8 * 16 + 16 * 16 + 3 * 16 * 24
    attention = 7 * 2 * 8 * (8 + 1) / 2  # seven products, of 16 features and on average 4.5 keys
    head = 24 * 16
    assert operations(recipe, cuda=False) == 2 * 8 * (3 * body + attention + 3 * head)
    assert operations(recipe, cuda=True) == 2 * 8 * (3 * (3 * body + attention) + 6 * 3 * head)


def test_a_window_leaves_fewer_keys(recipe: Recipe) -> None:
    window = replace(recipe, model=replace(recipe.model, sliding_window=3))
    keys = (1 + 2 + 6 * 3) / 8
    difference = operations(recipe, cuda=False) - operations(window, cuda=False)
    assert difference == pytest.approx(2 * 8 * 7 * 16 * (4.5 - keys))


def test_the_work_grows_with_tokens_but_for_weights_and_sums() -> None:
    one, two = (work_of(recipe_of("1.6b", size), cuda=True) for size in (1, 2))
    assert two.operations == 2 * one.operations
    assert one.bytes < two.bytes < 2 * one.bytes
    assert two.step_bytes == one.step_bytes


def test_a_micro_batch_takes_the_longer_of_both() -> None:
    assert Floor(2.0, 1.0, 0.5).step(10) == 20.5
    assert Floor(1.0, 2.0, 0.5).micro_batch == 2.0


def test_the_floor_is_work_over_rates() -> None:
    recipe = recipe_of("1.6b")
    work, floor = work_of(recipe, cuda=True), floor_of(recipe, True, RATES)
    assert work.operations == pytest.approx(floor.arithmetic * 1e15)
    assert work.bytes == pytest.approx(floor.traffic * 1e12)
    assert work.step_bytes == pytest.approx(floor.step_traffic * 1e12)
