"""Named models: of the sizes that their names say, each a recipe that could be published."""

from __future__ import annotations

import pytest

from auditkit.errors import UsageError
from auditkit.formats.recipe import Recipe
from auditkit.measure.models import DEFAULT, MODELS, recipe_of, reduced
from auditkit.model.params import parameter_count


@pytest.mark.parametrize(("name", "least", "most"), [("25m", 24e6, 27e6), ("125m", 115e6, 135e6),
                                                     ("350m", 320e6, 380e6), ("1.6b", 1.55e9, 1.65e9)])  # fmt: skip
def test_a_model_has_the_size_of_its_name(name: str, least: float, most: float) -> None:
    assert least < parameter_count(recipe_of(name).model) < most


@pytest.mark.parametrize("name", MODELS)
def test_every_recipe_passes_the_checks_of_a_published_one(name: str) -> None:
    for recipe in (recipe_of(name), reduced(recipe_of(name))):
        assert Recipe.parse(recipe.encode()) == recipe


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in MODELS


def test_the_large_one_is_a_step_of_almost_five_million_tokens() -> None:
    recipe = recipe_of("1.6b", 4)
    assert recipe.batch.sequences * recipe.model.context_length == 4_718_592
    assert recipe.batch.micro_batches == 288


def test_the_reduced_model_keeps_the_shape_of_the_heads_and_the_precision() -> None:
    full = recipe_of("1.6b")
    small = reduced(full)
    assert small.model.num_heads // small.model.num_kv_heads == full.model.num_heads // full.model.num_kv_heads
    assert (small.numerics, small.model.tied_head) == (full.numerics, full.model.tied_head)
    assert small.batch.micro_batches == 4
    assert parameter_count(small.model) < 10_000_000


@pytest.mark.parametrize(("name", "size"), [("2b", None), ("tiny", 0), ("tiny", 9)])
def test_what_there_is_not_is_a_usage_error(name: str, size: int | None) -> None:
    with pytest.raises(UsageError):
        recipe_of(name, size)
