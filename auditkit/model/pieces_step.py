"""The training step under a plan for little memory: the walk through the network, and the update a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.tensors import GradientTexts
from auditkit.formats.work import work_of
from auditkit.model.ops import Ops, TensorDigest
from auditkit.model.params import ParamSpec, parameter_table
from auditkit.model.piece_sums import PieceSums, pieces_of
from auditkit.model.plan import Plan
from auditkit.model.shelf import InMemory, Shelf
from auditkit.model.state import ROLES, State
from auditkit.model.totals import Totals
from auditkit.model.updated import Adam, Update
from auditkit.model.walk import Walk
from auditkit.model.weights import Weights
from auditkit.numerics.arrays import F32, IntArray


class Keeper(Protocol):
    """Keeps what a step has found so far, for a process that goes on where this one was killed."""

    def load(self, keys: Sequence[str], shelf: Shelf) -> tuple[MicroBatchLeaf, ...]:
        """The leaves of the micro-batches that are done, their sums put onto the shelf; none if nothing was kept."""

    def due(self) -> bool:
        """Whether it is time to save."""

    def save(self, leaves: Sequence[MicroBatchLeaf], keys: Sequence[str], shelf: Shelf) -> None:
        """Take the leaves of all micro-batches so far and their sums."""


@dataclass(frozen=True)
class Room:
    """Where the arrays of one step lie under a plan that works in pieces: those of the state are host arrays.

    stage: told what part of a micro-batch begins (stages.STAGES).
    """

    plan: Plan
    inputs: Shelf
    sums: Shelf
    keeper: Keeper | None = None
    stage: Callable[[str], None] = lambda _: None


def walk_all(
    state: State,
    tokens: Sequence[IntArray],
    total_targets: int,
    recipe: Recipe,
    ops: Ops,
    room: Room,
    told: Told,
) -> tuple[PieceSums, list[MicroBatchLeaf]]:
    """The sums and the leaves of all micro-batches (s, T + 1) of a step. Raises NonFinite."""
    sums = PieceSums(recipe, ops, room.sums)
    keys = _keys(recipe, room.plan.cuts.rows)
    leaves = list(room.keeper.load(keys, room.sums)) if room.keeper is not None else []
    sums.resume(keys, len(leaves))
    told.up_to(len(leaves))
    weights = Weights(state.params, recipe, ops, ahead=room.plan.params == "disk", room=room.plan.logits_once)
    try:
        walk = Walk(weights, total_targets, recipe, ops, room.plan, room.inputs, sums, room.stage)
        for found in walk.groups(tokens[len(leaves) :]):
            leaves += found
            if room.keeper is not None and len(leaves) < len(tokens) and room.keeper.due():
                ops.check_finite({})  # what went wrong on a device must not be forgotten with it
                room.keeper.save(leaves, keys, room.sums)
            told.up_to(len(leaves))
    finally:
        weights.close()
    return sums, leaves


def gone_on(total: Totals, recipe: Recipe, room: Room | None) -> list[MicroBatchLeaf]:
    """The leaves of micro-batches that were done before this process, whose sums are in `total` then."""
    if room is None or room.keeper is None:
        return []
    keys, shelf = _keys(recipe, 0), InMemory()
    leaves = list(room.keeper.load(keys, shelf))
    if leaves:
        total.resume(len(leaves), [shelf.get(key) or [] for key in keys])
    return leaves


def keep(total: Totals, leaves: Sequence[MicroBatchLeaf], recipe: Recipe, ops: Ops, room: Room) -> None:
    """Keep what is done, if it is time for it."""
    if room.keeper is None or not room.keeper.due():
        return
    keys, shelf = _keys(recipe, 0), InMemory()
    for key, arrays in zip(keys, total.held(), strict=True):
        shelf.put(key, arrays)
    ops.check_finite({})  # what went wrong on a device must not be forgotten with it
    room.keeper.save(leaves, keys, shelf)


def _keys(recipe: Recipe, rows: int) -> list[str]:
    return [piece.key for spec in parameter_table(recipe.model) for piece in pieces_of(spec, rows)]


class Told:
    """Tells of finished micro-batches one by one."""

    def __init__(self, tell: Callable[[int], None] | None) -> None:
        self._tell, self._done = tell, 0

    def up_to(self, done: int) -> None:
        """All up to this number are finished."""
        while self._done < done:
            self._done += 1
            if self._tell is not None:
                self._tell(self._done)


@dataclass(frozen=True)
class Rounded:
    """What the rounded gradient of a step gives: norm, root, and the digests for the proof of work, if asked for."""

    norm: np.float32
    gradient: Digest
    work: Digest


def rounded(sums: PieceSums, recipe: Recipe, ops: Ops, rows: int, work_key: bytes | None) -> Rounded:
    """Norm and digests of the gradient, a piece at a time. Raises NonFinite."""
    specs = parameter_table(recipe.model)
    squares: list[int] = []
    found, keyed = [], {}
    for spec in specs:
        plain = ops.TensorDigest(4 * _elements(spec))
        work = None if work_key is None else ops.TensorDigest(4 * _elements(spec), work_key)
        for piece in pieces_of(spec, rows):
            gradient = sums.rounded(piece.key)
            squares.append(ops.squares([gradient]))
            plain.add(gradient)
            if work is not None:
                work.add(gradient)
        found.append(plain.digest())
        if work is not None:
            keyed[spec.name] = work.digest()
    texts = GradientTexts((spec.name, np.dtype(np.float32), spec.shape) for spec in specs)
    done = "" if work_key is None else work_of(work_key, [keyed[name] for name in sorted(keyed)])
    return Rounded(ops.norm_from_squares(squares), texts.root(found), done)


def updated(before: State, sums: PieceSums, recipe: Recipe, ops: Ops, room: Room, adam: Adam) -> State:
    """The state after the step, whose tensors are made once here for their digests. Raises NonFinite."""
    update = Update(before, sums, recipe, ops, room.plan.cuts.rows, adam)
    found: dict[tuple[str, str], Digest] = {}
    for spec in parameter_table(recipe.model):
        digests: list[TensorDigest] = [ops.TensorDigest(4 * _elements(spec)) for _ in ROLES]
        for made in update.pieces(spec):
            arrays: dict[str, F32] = {f"{role} of {spec.name}": a for role, a in zip(ROLES, made, strict=True)}
            ops.check_finite(arrays)
            for digest, array in zip(digests, made, strict=True):
                digest.add(array)
        found.update({(role, spec.name): d.digest() for role, d in zip(ROLES, digests, strict=True)})
    return replace(update.state(), found=found)


def _elements(spec: ParamSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))
