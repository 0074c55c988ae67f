"""The gradient of a step: the exact sum over micro-batches, or the fold that the recipe declares."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.model.network import prepare
from auditkit.model.state import document, initial_state
from auditkit.model.step import GradSum, gradient_digest, grads, micro_batches, step
from auditkit.model.totals import loss_total, totals
from auditkit.numerics import reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.nonfinite import NonFinite
from tests.golden.make_training import RECIPES, tokens_of

FOLDED = RECIPES["tied head, gradients folded in groups of two, twice"]
LIMIT = 1 << 62


def with_fold(recipe: Recipe, *radices: int) -> Recipe:
    """The same recipe with another fold; none for the exact sum."""
    return dataclasses.replace(recipe, numerics=dataclasses.replace(recipe.numerics, fold=radices))


def parts_of(recipe: Recipe) -> list[GradSum]:
    """The gradient sums of each micro-batch of step 0."""
    tokens = tokens_of(recipe, 0)
    prepared = prepare(initial_state(recipe).params, recipe, reference)
    total = tokens[:, 1:].size
    return [grads(prepared, part, total, recipe, reference) for part in micro_batches(tokens, recipe)]


def test_the_gradient_of_a_step_is_the_declared_fold() -> None:
    """Seven micro-batches in pairs, and pairs of these: ((01)(23)) + ((45) 6)."""
    each = [reference.from_fixed(list(part.grads.values()), GRADIENT_UNIT) for part in parts_of(FOLDED)]
    wanted = {}
    for name, (a, b, c, d, e, f, g) in zip(initial_state(FOLDED).params, zip(*each, strict=True), strict=True):
        wanted[name] = ((a + b) + (c + d)) + ((e + f) + g)
    _, result = step(initial_state(FOLDED), tokens_of(FOLDED, 0), FOLDED, reference)
    assert result.gradient == gradient_digest(wanted, reference)


def test_folds_and_the_exact_sum_share_leaves_and_losses_and_nothing_else() -> None:
    found = {}
    for radices in ((), (2, 2), (4,), (8,), (2,)):
        recipe = with_fold(FOLDED, *radices)
        state, result = step(initial_state(recipe), tokens_of(recipe, 0), recipe, reference)
        found[radices] = (document(state, recipe).root(), result)
    assert len({result.gradient for _, result in found.values()}) == 5
    assert len({(result.leaves, float(result.loss)) for _, result in found.values()}) == 1


def test_threads_change_no_bit_of_a_fold() -> None:
    start = initial_state(FOLDED)
    new, result = step(start, tokens_of(FOLDED, 0), FOLDED, reference)
    for threads in (2, 3, 8):
        other, found = step(start, tokens_of(FOLDED, 0), FOLDED, reference, threads=threads)
        assert document(other, FOLDED) == document(new, FOLDED)
        assert dataclasses.asdict(found) == dataclasses.asdict(result)


def rounded(recipe: Recipe, terms: list[int]) -> float:
    """The gradient of one element with these sums of micro-batches."""
    total = totals(recipe, reference)
    for term in terms:
        total.add({"a": np.array([term])})
    return float(total.rounded()[0][0])


def test_an_exact_sum_must_stay_in_its_range_on_the_way_and_a_fold_has_none() -> None:
    terms = [LIMIT // 2, LIMIT // 2, -LIMIT // 2]
    with pytest.raises(NonFinite):
        rounded(with_fold(FOLDED), terms)
    assert rounded(with_fold(FOLDED, 2), terms) == 32.0
    assert rounded(with_fold(FOLDED), [terms[0], terms[2], terms[1]]) == 32.0


@pytest.mark.parametrize(
    ("losses", "has_result"),
    [
        ([LIMIT - 1], True),
        ([LIMIT - 1, 1], False),
        ([LIMIT - 1, 1, -5], False),
        ([LIMIT - 1, -5, 5], True),
        ([-LIMIT, 1], True),
        ([-LIMIT // 2, -LIMIT // 2], True),
        ([-LIMIT, -1], False),
    ],
)
def test_losses_are_added_exactly_in_the_order_of_the_micro_batches(losses: list[int], has_result: bool) -> None:
    leaves: list[Any] = [MicroBatchLeaf(loss, "0" * 64) for loss in losses]
    if has_result:
        assert loss_total(leaves) == functools.reduce(int.__add__, losses)
    else:
        with pytest.raises(NonFinite):
            loss_total(leaves)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_each_gradient_is_told_once_and_final(name: str) -> None:
    recipe = RECIPES[name]
    tokens = next(micro_batches(tokens_of(recipe, 0), recipe))
    prepared = prepare(initial_state(recipe).params, recipe, reference)
    told: dict[str, bytes] = {}

    def on_gradient(name: str, sums: Any) -> None:
        assert name not in told
        told[name] = sums.tobytes()

    found = grads(prepared, tokens, 100, recipe, reference, on_gradient)
    assert told == {name: sums.tobytes() for name, sums in found.grads.items()}
    assert list(told)[-1] == "model.embed_tokens.weight"


def test_the_sums_of_micro_batches_are_read_and_never_written() -> None:
    """The sum works in its own array from the third micro-batch on; whoever handed the others over keeps them."""
    given = [{"w": np.full(4, value, np.int64)} for value in (1, 10, 100, 1000)]
    total = totals(with_fold(FOLDED), reference)
    for grads_of in given:
        total.add(grads_of)
    assert total.held()[0][0].tolist() == [1111] * 4
    assert [array["w"].tolist() for array in given] == [[value] * 4 for value in (1, 10, 100, 1000)]


def test_what_is_gone_on_from_is_not_written_either() -> None:
    held = np.full(4, 5, np.int64)
    total = totals(with_fold(FOLDED), reference)
    total.resume(1, [[held]])
    for value in (1, 2):
        total.add({"w": np.full(4, value, np.int64)})
    assert total.held()[0][0].tolist() == [8] * 4
    assert held.tolist() == [5] * 4
