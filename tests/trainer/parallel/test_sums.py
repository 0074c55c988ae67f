"""Sums over ranks at the edges of their range: what one device finds, on any ranks, however much wraps between."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from auditkit.errors import UsageError
from auditkit.formats.recipe import BatchConfig
from auditkit.model.step import GradSum, micro_batches
from auditkit.model.totals import ExactTotals
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.golden.make_training import RECIPES, tokens_of
from tests.same_bits import assert_same_bits
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer.parallel.layout import Layout
from trainer.parallel.memory import HostMemory
from trainer.parallel.sums import LIMIT, ExactSums, Summed, Work

BASE = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]
Arrays = dict[str, np.ndarray]


def work_of(batches: Sequence[Arrays], *, threads: int = 1, fails: int = -1) -> Work:
    """A step whose micro-batches have these gradients; number `fails` has no result."""
    recipe = dataclasses.replace(BASE, batch=BatchConfig(len(batches), 1))
    parts = list(micro_batches(tokens_of(recipe, 0), recipe))

    def run(tokens: Any, on_gradient: Any) -> GradSum:
        number = next(i for i, part in enumerate(parts) if part is tokens)
        for name in reversed(batches[number]):
            if number == fails and name == min(batches[number]):
                raise NonFinite("a value is not finite")
            on_gradient(name, batches[number][name])
        return GradSum(dict(batches[number]), np.array(number))

    return Work(parts, run, recipe, threads)


def arrays(value: int, seed: int = 0, size: int = 1 << 40) -> Arrays:
    """Random sums below `size` in every tensor, and `value` in two places."""
    rng = np.random.default_rng(seed)
    made = {slot.name: rng.integers(-size, size, slot.shape) for slot in Layout(BASE.model, 1).slots}
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        made[name].reshape(-1)[-1] = value
    return made


def on_one_device(batches: Sequence[Arrays]) -> list[np.ndarray] | None:
    """The rounded gradient, None where there is none."""
    totals = ExactTotals(reference)
    try:
        for batch in batches:
            totals.add(batch)
    except NonFinite:
        return None
    return totals.rounded()


def on_ranks(
    batches: Sequence[Arrays], size: int, *, seed: int = 0, bucket: int = 1 << 22, **options: Any
) -> list[Summed] | None:
    """What each rank finds, None where all find that there is no result."""
    layout, memory, ended = Layout(BASE.model, size), HostMemory(), [False] * size

    def one(group: ThreadGroup) -> Summed | None:
        sums = ExactSums(group, layout, memory, reference, len(batches), bucket=bucket)
        for _ in range(2):  # its line is used again
            try:
                found = sums(work_of(batches, **options))
            except NonFinite:
                ended[group.rank] = True
                found = None
        return found

    found = play(size, one, seed=seed)
    assert all(ended) or not any(ended)
    return None if all(ended) else [summed for summed in found if summed is not None]


def assert_the_same(batches: Sequence[Arrays], size: int, **options: Any) -> None:
    """The ranks find what one device finds."""
    want, found = on_one_device(batches), on_ranks(batches, size, **options)
    if want is None or found is None:
        assert want is found
        return
    layout = Layout(BASE.model, size)
    whole = dict(zip(layout.slot, want, strict=True))
    for pieces, summed in zip(layout.pieces, found, strict=True):
        assert [leaf.loss_sum for leaf in summed.leaves] == list(range(len(batches)))
        for piece, rounded in zip(pieces, summed.rounded, strict=True):
            assert_same_bits(rounded, whole[piece.slot.name].reshape(-1)[piece.first : piece.stop])


H = LIMIT // 2
CASES: dict[str, list[int]] = {
    "the last in range": [H, H - 1],
    "the first out of range": [H, H],
    "the last in range below": [-H, -H],
    "the first out of range below": [-H, -H - 1],
    "in range by many": [LIMIT // 8] * 7 + [LIMIT // 8 - 1],
    "out of range by many": [LIMIT // 8] * 8,
    "out of range, and back": [H, H, -H],
    "back before it is out of range": [H, -H, H],
    "wraps in another order": [LIMIT - 1, -LIMIT, LIMIT - 1, -LIMIT, LIMIT - 1, -LIMIT, LIMIT - 1],
    "wraps in this order": [LIMIT - 1, LIMIT - 1, LIMIT - 1, -LIMIT, -LIMIT],
    "wraps to a sum that looks small": [LIMIT - 1, LIMIT - 1, LIMIT - 1, LIMIT - 1, 5],
    "wraps below": [-LIMIT, -LIMIT, -LIMIT, -LIMIT, 7],
    "all of the range at once": [LIMIT - 1, 0, 0, -LIMIT, LIMIT - 1],
    "alone at the edge": [-LIMIT],
    "far from the edges": [5, -7, 11],
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("case", CASES)
def test_the_edges_of_the_range(case: str, size: int) -> None:
    assert_the_same([arrays(value, seed) for seed, value in enumerate(CASES[case])], size, seed=size)


def test_the_cases_lie_on_both_sides() -> None:
    found = {name: on_one_device([arrays(v) for v in values]) is not None for name, values in CASES.items()}
    assert sum(found.values()) == 8 and not found["out of range, and back"] and found["wraps in another order"]


def test_any_values_near_the_edges() -> None:
    chance = random.Random(4)
    for count, size in itertools.product((2, 3, 6), (2, 3, 7)):
        values = [chance.choice([1, -1]) * chance.choice([H, H - 1, LIMIT - 1, LIMIT // 3, 9]) for _ in range(count)]
        assert_the_same([arrays(value, seed) for seed, value in enumerate(values)], size, seed=count)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bucket", [1, 40_000, 1 << 30])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_buckets_and_threads_change_nothing(size: int, bucket: int, threads: int) -> None:
    batches = [arrays(seed, seed) for seed in range(7)]
    assert_the_same(batches, size, seed=bucket + threads, bucket=bucket, threads=threads)


@pytest.mark.parametrize("fails", [0, 3, 6])
@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_a_micro_batch_without_a_result_ends_the_step_on_every_rank(size: int, fails: int) -> None:
    assert on_ranks([arrays(seed, seed) for seed in range(7)], size, fails=fails) is None


def test_buckets_travel_while_the_last_backward_pass_runs() -> None:
    """A rank with one micro-batch begins a bucket before its gradient is complete."""
    began: list[str] = []

    class Watched(ThreadGroup):
        def reduce_scatter(self, parts: Any) -> Any:
            began.append("bucket")
            return super().reduce_scatter(parts)

    batch = arrays(1)

    def one(group: ThreadGroup) -> None:
        group.__class__ = Watched
        work = work_of([batch])
        run = work.run
        work = dataclasses.replace(
            work, run=lambda tokens, told: run(tokens, lambda name, sums: (told(name, sums), began.append(name))[0])
        )
        layout = Layout(dataclasses.replace(BASE.model, vocab_size=40_000), 1)
        batch["model.embed_tokens.weight"] = np.zeros(layout.slots[0].shape, np.int64)
        ExactSums(group, layout, HostMemory(), reference, 1, bucket=1)(work)

    play(1, one)
    assert began.index("bucket") < began.index("model.embed_tokens.weight")
    assert began.count("bucket") == 1 + 12 * 40_000 // (1 << 15)


def test_an_error_that_is_not_about_the_numbers_is_raised_with_its_rank() -> None:
    def one(group: ThreadGroup) -> None:
        work = work_of([arrays(1), arrays(2)])

        def run(tokens: Any, on_gradient: Any) -> GradSum:
            if group.rank == 1:
                raise UsageError("there is no room", hint="make some")
            return work.run(tokens, on_gradient)

        layout = Layout(BASE.model, 2)
        ExactSums(group, layout, HostMemory(), reference, 2)(dataclasses.replace(work, run=run))

    with pytest.raises(UsageError, match="^rank 1: there is no room$") as found:
        play(2, one)
    assert found.value.hint == "make some"
