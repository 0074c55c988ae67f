"""The golden run that skips steps: made again byte for byte, and by the step under the recipe with the rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auditkit.formats.bits import f32_text
from auditkit.formats.leaves import micro_root
from auditkit.model.state import document, initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from tests.golden import make_skips
from tests.golden.make_skips import SUMS, skipping
from tests.golden.make_training import tokens_of

GOLDEN: dict[str, Any] = json.loads(make_skips.FILE.read_text(encoding="ascii"))


def test_the_generator_makes_the_committed_bytes() -> None:
    assert make_skips.encode() == make_skips.FILE.read_bytes()


@pytest.mark.parametrize("name", sorted(SUMS))
def test_steps_of_both_kinds_are_skipped_and_others_taken(name: str) -> None:
    kinds = [row["skipped"] for row in GOLDEN[name]["steps"]]
    assert set(kinds) == {"", "norm", "no result"}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", sorted(SUMS))
def test_the_step_follows_the_rule(name: str, threads: int) -> None:
    recipe, golden = skipping(SUMS[name]), GOLDEN[name]
    state = initial_state(recipe)
    assert (recipe.digest(), document(state, recipe).root()) == (golden["recipe"], golden["state"])
    for number, row in enumerate(golden["steps"]):
        state, result = step(state, tokens_of(recipe, number), recipe, reference, threads=threads)
        scalars = {key: f32_text(float(getattr(result, key))) for key in ("loss", "norm", "lr")}
        found = {"skipped": result.skipped, "gradient": result.gradient, **scalars}
        assert found | {"micro_root": micro_root(result.leaves), "state": document(state, recipe).root()} == row
        assert bool(result.skipped) == bool(result.why)
