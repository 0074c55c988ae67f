"""The training step: threads, micro-batches, errors, and what the result says."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest

from auditkit.formats.recipe import BatchConfig
from auditkit.model.state import document, initial_state
from auditkit.model.step import NonFinite, _in_order, micro_batches, step
from auditkit.numerics import reference
from tests.golden.make_training import RECIPES, tokens_of

RECIPE = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]


def test_micro_batches_cut_in_order_and_the_last_may_be_short() -> None:
    tokens = tokens_of(RECIPE, 0)
    parts = list(micro_batches(tokens, RECIPE))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert (np.concatenate(parts) == tokens).all()


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_threads_change_no_bit(name: str) -> None:
    recipe = RECIPES[name]
    tokens, start = tokens_of(recipe, 0), initial_state(recipe)
    new, result = step(start, tokens, recipe, reference)
    for threads in (2, 3, 8):
        other, found = step(start, tokens, recipe, reference, threads=threads)
        assert document(other, recipe) == document(new, recipe)
        assert dataclasses.asdict(found) == dataclasses.asdict(result)


def test_the_result_holds_every_micro_batch_and_the_sums_of_their_losses() -> None:
    seen: list[int] = []
    _, result = step(initial_state(RECIPE), tokens_of(RECIPE, 0), RECIPE, reference, on_micro_batch=seen.append)
    assert seen == [1, 2, 3] and len(result.leaves) == 3
    targets = tokens_of(RECIPE, 0)[:, 1:].size
    total = sum(leaf.loss_sum for leaf in result.leaves)
    assert result.loss == np.float32(total / (targets << 32))
    assert result.lr == np.float32(reference.learning_rate(RECIPE.schedule, 0))
    assert len({leaf.gradient for leaf in result.leaves} | {result.gradient}) == 4


def test_the_start_state_is_not_changed() -> None:
    start = initial_state(RECIPE)
    root = document(start, RECIPE).root()
    step(start, tokens_of(RECIPE, 0), RECIPE, reference, threads=2)
    assert document(start, RECIPE).root() == root


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_value_that_is_not_finite_ends_the_step(value: float, threads: int) -> None:
    state = initial_state(RECIPE)
    state.params["model.layers.0.self_attn.v_proj.weight"][...] = value
    with pytest.raises(NonFinite):
        step(state, tokens_of(RECIPE, 0), RECIPE, reference, threads=threads)


def test_a_micro_batch_larger_than_the_batch_is_one() -> None:
    recipe = dataclasses.replace(RECIPE, batch=BatchConfig(3, 3))
    _, result = step(initial_state(recipe), tokens_of(recipe, 0)[:3], recipe, reference, threads=4)
    assert len(result.leaves) == 1


def test_work_never_runs_further_ahead_than_its_workers() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(item: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        return item

    taken = 0
    for result in _in_order(work, (np.full(1, i) for i in range(20)), 3):
        assert int(result[0]) == taken
        taken += 1
        with lock:
            running -= 1
    assert taken == 20 and most <= 4
