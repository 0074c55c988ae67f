"""Every plan gives the bits of the plain step: records, leaves, work and every tensor of the state after it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.formats.state import StateDocument
from auditkit.model.kept_results import RESULTS
from auditkit.model.params import parameter_table
from auditkit.model.pieces_step import Room, Told, walk_all
from auditkit.model.plan import Cuts, Place, Plan
from auditkit.model.shelf import InMemory
from auditkit.model.state import HostTensors, State, document, initial_state, state_digests
from auditkit.model.step import NonFinite, StepResult, step
from auditkit.numerics import reference
from tests.golden.make_skips import SUMS, skipping
from tests.golden.make_training import tokens_of as skip_tokens
from tests.golden.recipes import RECIPES, tokens_of
from tests.same_bits import assert_same_bits

KEY = bytes(range(32))
PLACES: tuple[Place, ...] = ("memory", "host")  # of the tables' sums: where they are decides what is done in turn
# Grouped heads, a sliding window, a tied head with z-loss and QK-norm, 21 bits, the product f32; each with a fold too.
CASES = {name: recipe for name, recipe in RECIPES.items()} | {
    f"{name}-fold": replace(recipe, numerics=replace(recipe.numerics, fold=(2,))) for name, recipe in RECIPES.items()
}
_SIZE = CASES["grouped-heads"].batch.micro_batch_sequences
CASES["five"] = replace(CASES["grouped-heads"], batch=BatchConfig(5 * _SIZE, _SIZE))  # micro-batches


@functools.cache
def start(name: str) -> State:
    return initial_state(CASES[name])


@functools.cache
def plain(name: str) -> tuple[State, StepResult, StateDocument]:
    """The step in one piece."""
    recipe = CASES[name]
    new, result = step(start(name), tokens_of(recipe, 0), recipe, reference, work_key=KEY)
    return new, result, document(new, recipe)


def planned(recipe: Recipe, state: State, plan: Plan) -> tuple[State, StepResult]:
    tokens = tokens_of(recipe, 0)
    return step(state, tokens, recipe, reference, work_key=KEY, room=Room(plan, InMemory(), InMemory()))


def check(name: str, plan: Plan) -> State:
    """The same result and the same root of the state; returns that state."""
    recipe = CASES[name]
    _, want, want_document = plain(name)
    new, got = planned(recipe, start(name), plan)
    assert dataclasses.asdict(got) == dataclasses.asdict(want)
    assert state_digests(new, recipe).root(new.step) == want_document.root()
    return new


LEVERS = list(itertools.product((1, 2), (False, True), (0, 7), (0, 50), (0, 1), PLACES))


@pytest.mark.parametrize("levers", LEVERS, ids=str)
def test_every_combination_of_levers(levers: tuple[int, bool, int, int, int, Place]) -> None:
    group, recompute, tokens, rows, key_heads, tables = levers
    plan = Plan(True, group=group, recompute=recompute, cuts=Cuts(tokens, rows, key_heads), tables=tables)
    check("grouped-heads", plan)


KEPT = [RESULTS[:count] for count in range(len(RESULTS) + 1)]
KEEPING = [*itertools.product(KEPT, (0, 1, 2), (0, 1), (False, True))]


@pytest.mark.parametrize("levers", KEEPING, ids=str)
def test_every_combination_of_what_is_kept(levers: tuple[tuple[str, ...], int, int, bool]) -> None:
    keep, near, key_heads, once = levers
    plan = Plan(True, group=2, recompute=True, keep=keep, logits_once=once, cuts=Cuts(7, 50, key_heads), inputs="host")
    check("grouped-heads", replace(plan, near=near, tables=PLACES[near % 2]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keep", [None, (), RESULTS[:1], RESULTS], ids=["all", "inputs", "attention", "products"])
def test_every_recipe(name: str, keep: tuple[str, ...] | None) -> None:
    levers = Plan(True, group=3, recompute=keep is not None, keep=keep or (), cuts=Cuts(11, 64, 1))
    new = check(name, replace(levers, logits_once=keep == RESULTS, tables=PLACES[keep in (None, RESULTS[:1])]))
    assert document(new, CASES[name]) == plain(name)[2]  # every tensor read again, a piece at a time


@settings(deadline=None, max_examples=15)
@given(
    name=st.sampled_from(sorted(CASES)),
    group=st.integers(1, 5),
    recompute=st.booleans(),
    tokens=st.integers(0, 120),
    rows=st.integers(0, 320),
    key_heads=st.integers(0, 4),
    keep=st.lists(st.sampled_from(RESULTS), unique=True),
    more=st.tuples(st.integers(0, 7), st.integers(0, 2)),
    near=st.integers(0, 3),
    once=st.booleans(),
    tables=st.sampled_from(PLACES),
    beside=st.booleans(),
)
def test_any_plan(
    name: str,
    group: int,
    recompute: bool,
    tokens: int,
    rows: int,
    key_heads: int,
    keep: list[str],
    more: tuple[int, int],
    near: int,
    once: bool,
    tables: Place,
    beside: bool,
) -> None:
    plan = Plan(True, group=group, recompute=recompute, cuts=Cuts(tokens, rows, key_heads), near=near)
    kept, count = more
    plan = replace(plan, keep=tuple(keep[:kept]), more=tuple(keep[kept:]), more_layers=count)
    check(name, replace(plan, logits_once=once, tables=tables, beside=beside))


BESIDE = [*itertools.product((1, 2, 3, 4), (False, True), KEPT[::3], (0, 1), (False, True), PLACES)]


@pytest.mark.parametrize("levers", BESIDE, ids=str)
def test_the_forward_pass_of_a_group_beside_the_backward_pass_of_the_one_before(
    levers: tuple[int, bool, tuple[str, ...], int, bool, Place],
) -> None:
    """Groups that follow each other, and one that is smaller."""
    group, recompute, keep, near, once, tables = levers
    plan = Plan(True, group=group, recompute=recompute, beside=True, keep=keep, near=near, logits_once=once)
    check("five", replace(plan, inputs="host", tables=tables, cuts=Cuts(7, 50, 0)))


def test_what_waits_is_told_apart_and_let_go() -> None:
    """Two groups are under way at a time; at the end nothing is on the shelf. A keeper sees no gradient too many."""
    recipe = CASES["five"]
    inputs, sums = Counted(), InMemory()
    seen: list[int] = []

    class Keeping:
        def load(self, keys: Any, shelf: Any) -> tuple[Any, ...]:
            return ()

        def due(self) -> bool:
            return True

        def save(self, leaves: Any, keys: Any, shelf: Any) -> None:
            kept = {key: [array.copy() for array in shelf.get(key)] for key in keys}
            seen.append(len(leaves))
            alone = InMemory()
            part = replace(recipe, batch=replace(recipe.batch, sequences=len(leaves) * size))
            tokens = tokens_of(recipe, 0)[: len(leaves) * size]
            targets = tokens_of(recipe, 0)[:, 1:].size
            room = Room(Plan(True), InMemory(), alone)
            batches = [tokens[at : at + size] for at in range(0, len(tokens), size)]
            walk_all(start("five"), batches, targets, part, reference, room, Told(None))
            for key in keys:
                assert all(np.array_equal(a, b) for a, b in zip(kept[key], alone.get(key) or [], strict=True)), key

    size = recipe.batch.micro_batch_sequences
    plan = Plan(True, group=1, recompute=True, beside=True, logits_once=True)
    step(start("five"), tokens_of(recipe, 0), recipe, reference, room=Room(plan, inputs, sums, Keeping()))
    assert seen == list(range(1, recipe.batch.micro_batches)) and len(seen) > 1
    assert not inputs._held and {key.split(".")[0] for key in inputs.asked} == {"0", "1"}


class Counting:
    """The reference, which counts the calls of its ops."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(reference, name)


class Counted(InMemory):
    """A shelf that counts how often each key is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: collections.Counter[str] = collections.Counter()

    def get(self, key: str) -> list[Any] | None:
        self.asked[key] += 1
        return super().get(key)


@pytest.mark.parametrize(("tables", "times"), [("memory", 1), ("host", 4)])
@pytest.mark.parametrize("once", [False, True])
def test_where_the_tables_sums_are_what_their_gradients_need_is_brought_once(
    once: bool, tables: Place, times: int
) -> None:
    """Beside them; else once for each of four pieces, whose sums are brought once for all micro-batches. What passes
    from layer to layer, x and its gradient, is on no shelf but for layers that are run again.
    """
    recipe = CASES["grouped-heads"]
    rows = -(-recipe.model.vocab_size // 4)
    plan = Plan(True, group=2, recompute=True, logits_once=once, cuts=Cuts(0, rows, 0), tables=tables)
    inputs, sums = Counted(), Counted()
    step(start("grouped-heads"), tokens_of(recipe, 0), recipe, reference, room=Room(plan, inputs, sums))
    groups = -(-recipe.batch.micro_batches // 2)
    assert inputs.asked["0.head"] == (0 if once else groups * times)
    again = {f"0.{layer}" for layer in range(recipe.model.num_layers)}
    assert {key for key in inputs.asked if key.startswith("0.")} == again | (set() if once else {"0.head"})
    assert {inputs.asked[key] for key in again} == {groups}


def test_a_layer_that_is_run_again_rounds_no_columns_before() -> None:
    """Forward only what enters its products is rounded; the columns are made when they are needed."""
    recipe = CASES["grouped-heads"]
    calls = {}
    for recompute in (False, True):
        ops: Any = Counting()
        room = Room(Plan(True, recompute=recompute), InMemory(), InMemory())
        step(start("grouped-heads"), tokens_of(recipe, 0), recipe, ops, room=room)
        calls[recompute] = ops.calls
    batches, layers = recipe.batch.micro_batches, recipe.model.num_layers
    plain, again = calls[False], calls[True]
    assert plain["rms_norm_keep"] == again["rms_norm_keep"] == again["rms_norm_rows"] == 2 * layers * batches
    assert plain["swiglu_keep"] == again["swiglu_rows"] == again["swiglu_columns"] == layers * batches
    assert not plain["rms_norm_rows"] + plain["swiglu_rows"] + plain["swiglu_columns"] + again["swiglu_keep"]


def test_what_is_kept_is_not_made_again() -> None:
    """Products and attentions of a micro-batch, in a model of two layers and an untied head."""
    recipe = CASES["grouped-heads"]
    recipe = replace(recipe, batch=replace(recipe.batch, sequences=recipe.batch.micro_batch_sequences))
    layers, found = recipe.model.num_layers, []
    for keep, once in [((), False), ((), True), *((keep, True) for keep in KEPT[1:])]:
        ops: Any = Counting()
        plan = Plan(True, recompute=True, keep=keep, logits_once=once)
        room = Room(plan, InMemory(), InMemory())
        step(start("grouped-heads"), tokens_of(recipe, 0), recipe, ops, room=room)
        again = ops.calls["attention_again"] + ops.calls["attention_restored"]
        found.append((ops.calls["dot"], ops.calls["attention_forward"], again))
    plain = 3 * (7 * layers + 1)
    dots = [plain + 6 * layers + 1, *(plain + made * layers for made in (6, 6, 5, 2, 1, 0))]
    assert [dot for dot, _, _ in found] == dots
    assert [forward for _, forward, _ in found] == [2 * layers, 2 * layers, *[layers] * len(RESULTS)]
    assert [again for _, _, again in found] == [0, 0, *[layers] * len(RESULTS)]


def test_the_state_after_a_step_is_made_when_it_is_asked_for() -> None:
    name = "tied-head-z-loss-qk-norm"
    new, recipe = check(name, Plan(True, cuts=Cuts(rows=100))), CASES[name]
    want, _, _ = plain(name)
    assert not new.held and want.held
    for spec in parameter_table(recipe.model):
        for role in ("param", "adam_m", "adam_v"):
            assert_same_bits(new.role(role)[spec.name], want.role(role)[spec.name])
    tensors, size = new.adam_v, int(np.prod(parameter_table(recipe.model)[0].shape))
    assert isinstance(tensors, HostTensors)
    pieces = list(tensors.pieces("model.embed_tokens.weight", [10, 1000, size - 1010]))
    assert [piece.size for piece in pieces] == [10, 1000, size - 1010]
    assert_same_bits(np.concatenate(pieces), want.adam_v["model.embed_tokens.weight"].reshape(-1))


def test_a_second_step_from_a_state_that_is_not_in_memory() -> None:
    name = "grouped-heads"
    recipe, plan = CASES[name], Plan(True, recompute=True, cuts=Cuts(20, 64, 1))
    new = check(name, plan)
    second, got = step(new, tokens_of(recipe, 1), recipe, reference, room=Room(plan, InMemory(), InMemory()))
    want_state, want = step(plain(name)[0], tokens_of(recipe, 1), recipe, reference)
    assert dataclasses.asdict(got) == dataclasses.asdict(want)
    assert document(second, recipe) == document(want_state, recipe)


@pytest.mark.parametrize("value", [np.float32(np.inf), np.float32(3e38)])
def test_a_step_without_a_result_has_none_under_any_plan(value: np.float32) -> None:
    recipe = CASES["grouped-heads"]
    params = dict(start("grouped-heads").params)
    params["model.norm.weight"] = np.full_like(params["model.norm.weight"], value)
    state = replace(start("grouped-heads"), params=params)
    for plan in (Plan(), Plan(True), Plan(True, group=2, recompute=True, cuts=Cuts(5, 30, 1))):
        with pytest.raises(NonFinite):
            planned(recipe, state, plan)


def known(result: StepResult) -> StepResult:
    """A result without the words for people, which may differ."""
    return replace(result, why="")


@pytest.mark.parametrize("name", sorted(SUMS))
def test_steps_are_skipped_under_any_plan(name: str) -> None:
    recipe, plans = skipping(SUMS[name]), (Plan(True), Plan(True, group=2, recompute=True, cuts=Cuts(5, 30, 1)))
    state, kinds = initial_state(recipe), []
    for number in range(16):
        tokens = skip_tokens(recipe, number)
        after, want = step(state, tokens, recipe, reference, work_key=KEY)
        for plan in plans:
            room, seen = Room(plan, InMemory(), InMemory()), list[int]()
            new, got = step(state, tokens, recipe, reference, on_micro_batch=seen.append, work_key=KEY, room=room)
            assert known(got) == known(want)
            assert state_digests(new, recipe).root(number + 1) == document(new, recipe).root()
            assert document(new, recipe) == document(after, recipe)
            assert seen == [1, 2, 3]
        state = after
        kinds.append(want.skipped)
    assert set(kinds) == {"", "norm", "no result"}


@pytest.mark.parametrize("number", [7, 8])
def test_a_step_is_skipped_from_a_state_that_is_not_in_memory(number: int) -> None:
    """Step 6 is taken; 7 has no result, and 8 a large norm."""
    recipe = skipping(SUMS["exact sums"])
    state = replace(initial_state(recipe), step=6)
    taken, first = step(state, skip_tokens(recipe, 6), recipe, reference, room=Room(Plan(True), InMemory(), InMemory()))
    assert not taken.held and not first.skipped
    room = Room(Plan(True), InMemory(), InMemory())
    new, got = step(taken, skip_tokens(recipe, number), recipe, reference, work_key=KEY, room=room)
    assert got.skipped
    assert not new.held and new.step == 8
    assert document(new, recipe) == document(replace(taken, step=8), recipe)
    assert state_digests(new, recipe).root(8) == document(new, recipe).root()
    want = step(
        step(state, skip_tokens(recipe, 6), recipe, reference)[0],
        skip_tokens(recipe, number),
        recipe,
        reference,
        work_key=KEY,
    )[1]
    assert known(got) == known(want)


def test_progress_is_told_micro_batch_by_micro_batch() -> None:
    recipe, seen = CASES["fx21"], []
    room = Room(Plan(True, group=2), InMemory(), InMemory())
    step(start("fx21"), tokens_of(recipe, 0), recipe, reference, on_micro_batch=seen.append, room=room)
    assert seen == [1, 2, 3]
