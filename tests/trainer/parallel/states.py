"""States of the tests: split over ranks, and put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.model.ops import Ops
from auditkit.model.state import State, digests_of, document, initial_state
from auditkit.model.step import StepResult, step
from auditkit.numerics import reference
from tests.golden.make_training import RECIPES, tokens_of
from trainer.parallel.group import Group
from trainer.parallel.layout import BUCKET, Layout
from trainer.parallel.memory import memory_of
from trainer.parallel.state import RankState, fill, rank_state
from trainer.parallel.step import RankStep

Record = tuple[str, StepResult]  # the state root after a step, and its result

# Three tensors of several blocks, one of which ranks cut; everything else is tiny.
CUT = dataclasses.replace(
    RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"],
    model=dataclasses.replace(
        RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"].model,
        vocab_size=6_011,
        hidden_size=20,
        ffn_size=3_400,
        num_layers=1,
    ),
)


def with_batch(recipe: Recipe, sequences: int, micro: int = 1, fold: tuple[int, ...] = ()) -> Recipe:
    """The same recipe with other micro-batches, and another fold."""
    numerics = dataclasses.replace(recipe.numerics, fold=fold)
    return dataclasses.replace(recipe, batch=BatchConfig(sequences, micro), numerics=numerics)


def on_one_device(recipe: Recipe, steps: int, start: State | None = None) -> list[Record]:
    """The records of one device."""
    state, found = start or initial_state(recipe), []
    for number in range(state.step, state.step + steps):
        state, result = step(state, tokens_of(recipe, number), recipe, reference)
        found.append((document(state, recipe).root(), result))
    return found


def split(state: State, recipe: Recipe, layout: Layout, rank: int, ops: Ops) -> RankState:
    """What a rank holds of a state of NumPy arrays."""
    memory = memory_of(ops)
    digests = {entry.order: entry.digest for entry in document(state, recipe).tensors}
    held = rank_state(layout, rank, memory, state.step, digests)
    for name, role, array in state.tensors():
        fill(held, layout, rank, memory, (role, name), array)
    return held


def steps_of(
    group: Group,
    recipe: Recipe,
    steps: int,
    start: State | None = None,
    *,
    ops: Ops = reference,
    threads: int = 1,
    bucket: int = BUCKET,
) -> tuple[list[Record], RankState]:
    """The records that a rank makes, and what it holds at the end."""
    layout, start = Layout(recipe.model, group.size), start or initial_state(recipe)
    state = split(start, recipe, layout, group.rank, ops)
    one = RankStep(group, layout, memory_of(ops), ops, recipe, threads=threads, bucket=bucket)
    found: list[Record] = []
    for number in range(start.step, start.step + steps):
        state, result, _ = one(state, tokens_of(recipe, number))
        found.append((digests_of(recipe, state.digests).root(state.step), result))
    return found, state


def joined(recipe: Recipe, ranks: Sequence[RankState], ops: Ops = reference) -> State:
    """The state that ranks hold together, as NumPy arrays."""
    layout, host = Layout(recipe.model, len(ranks)), memory_of(ops).host
    roles: list[dict[str, Any]] = [
        {name: np.array(host(array)) for name, array in ranks[0].params.items()},
        *({slot.name: np.empty(slot.elements, np.float32) for slot in layout.slots} for _ in range(2)),
    ]
    for pieces, rank in zip(layout.pieces, ranks, strict=True):
        for role, arrays in zip(roles[1:], (rank.adam_m, rank.adam_v), strict=True):
            for piece, array in zip(pieces, arrays, strict=True):
                role[piece.slot.name][piece.first : piece.stop] = host(array)
    shaped = ({slot.name: role[slot.name].reshape(slot.shape) for slot in layout.slots} for role in roles)
    return State(ranks[0].step, *shaped)
