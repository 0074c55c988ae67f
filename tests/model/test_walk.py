"""In which order what a plan for little memory needs is brought, and what it keeps of which layer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.formats.recipe import BatchConfig
from auditkit.model.params import EMBED, HEAD
from auditkit.model.pieces_step import Room
from auditkit.model.plan import Plan
from auditkit.model.shelf import Divided, InMemory
from auditkit.model.stages import Later
from auditkit.model.state import initial_state
from auditkit.model.step import step
from auditkit.model.walk import Walk
from auditkit.model.weights import TABLE_PARTS
from auditkit.numerics import reference
from tests.golden.recipes import RECIPES, tokens_of


@pytest.mark.parametrize(("count", "sizes", "begun"), [
    (4, [1, 1], [0, 1]), (8, [1], [0]), (1, [1, 1, 1], [0, 0, 0]), (4, [1] * 9, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    (3, [], []), (4, [3, 1, 1, 1], [0, 1, 2, 2]), (3, [0, 0], [0, 0]),
])  # fmt: skip
def test_what_comes_next_begins_in_shares(count: int, sizes: list[int], begun: list[int]) -> None:
    """By bytes, beside each micro-batch but the last; what the stage itself needs begins before."""
    walk: Any = object.__new__(Walk)
    walk._inputs, found, done = InMemory(), list[Any](), list[Any]()
    later = [Later(size, lambda: found.append(len(done))) for size in sizes]
    batches: Any = [SimpleNamespace(key=str) for _ in range(count)]
    for batch in walk._in_turn(batches, later=later, first=[Later(9, lambda: found.append("first"))]):
        done.append(batch)
    assert found == ["first", *begun] and done == batches


def test_more_is_kept_of_layers_that_are_evenly_spread() -> None:
    for count in range(9):
        plan = Plan(True, recompute=True, keep=("attention",), more=("mid",), more_layers=count)
        kept = [plan.keep_of(layer, 8) for layer in range(8)]
        assert kept.count(("attention", "mid")) == count and kept.count(("attention",)) == 8 - count
        for half in (kept[:4], kept[4:]):
            assert abs(half.count(("attention", "mid")) - count / 2) < 1


class Coming:
    """An array that notes when its parts begin, and when it is asked for."""

    def __init__(self, noted: list[str], name: str, array: Any, parts: int) -> None:
        self._noted, self._name, self._array, self.left = noted, name, array, parts
        self.begin()

    def begin(self) -> None:
        if self.left:
            self.left -= 1
            self._noted.append(f"part of {self._name}")

    def __call__(self) -> Any:
        self._noted.append(self._name)
        return self._array


class Noting:
    """The reference, which notes what is brought."""

    def __init__(self, names: dict[int, str]) -> None:
        self.noted, self.made, self._names = list[str](), list[Coming](), names

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def bring(self, array: Any, parts: int = 1) -> Coming:
        self.made.append(Coming(self.noted, self._names[id(array)], array, parts))
        return self.made[-1]


@pytest.mark.parametrize("beside", [False, True])
def test_a_table_comes_in_parts_before_it_is_asked_for(beside: bool) -> None:
    """All of them have begun then: the embedding's beside two stages, where groups are under way at once."""
    recipe, size = RECIPES["grouped-heads"], 6
    sequences = recipe.batch.micro_batch_sequences
    recipe = replace(
        recipe, batch=BatchConfig(3 * size * sequences, sequences), model=replace(recipe.model, num_layers=4)
    )
    state = initial_state(recipe)
    ops: Any = Noting({id(array): name for name, array in state.params.items()})
    plan = Plan(True, group=size, recompute=True, logits_once=True, beside=beside)
    step(state, tokens_of(recipe, 0), recipe, ops, room=Room(plan, InMemory(), InMemory()))
    tables = [one for one in ops.made if one._name in (EMBED, HEAD)]
    assert [one._name for one in tables].count(HEAD) == 3 and {one.left for one in tables} == {0}
    assert [one._name for one in tables].count(EMBED) == 2, "the first group has it at once"
    for name in (EMBED, HEAD):
        parts = 0
        for noted in ops.noted:
            parts += noted == f"part of {name}"
            if noted == name:
                assert parts == TABLE_PARTS
                parts = 0
    between = ops.noted[ops.noted.index(f"part of {EMBED}") : ops.noted.index(EMBED)]
    layers = {noted.split(".")[2] for noted in between if noted.startswith("model.layers.")}
    assert len(layers) >= 2 if beside else not layers


def test_lists_on_two_shelves_go_and_come_together() -> None:
    near, far = InMemory(), InMemory()
    shelf = Divided(near, far, lambda key: key < "c")
    shelf.put_all({"a": [np.zeros(1)], "d": [np.ones(1)], "b": []})
    assert near.get_all(["a", "b", "d"]) == [[0.0], [], None] and far.get("d") == [1.0]
    assert shelf.get_all(["d", "x", "a"]) == [[1.0], None, [0.0]]
