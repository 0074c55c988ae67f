"""Some micro-batches of a step, from the parameters alone: their leaves, and of all together the step's gradient.

The parts of `auditkit.model.step` up to the update, so nothing here needs the moments of the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.work import part_work_key, part_work_of
from auditkit.model import divergence
from auditkit.model.network import prepare
from auditkit.model.ops import Ops
from auditkit.model.state import State
from auditkit.model.step import (
    Gradients,
    gradient_digest,
    grads,
    micro_batches,
    side_by_side,
    tensors_work,
    with_leaf,
)
from auditkit.model.totals import Totals, loss_total, totals
from auditkit.numerics.arrays import F32, IntArray, keep_freed_memory
from auditkit.numerics.nonfinite import NonFinite


@dataclass(frozen=True)
class WholeGradient:
    """What all micro-batches of a step give together: everything that its record says besides states and batch."""

    gradient: Digest
    loss: np.float32
    norm: np.float32
    lr: np.float32


@dataclass(frozen=True)
class PartResult:
    """The leaves of the micro-batches asked for, in their order; `whole` if those are all; `work` "" without a key."""

    leaves: tuple[MicroBatchLeaf, ...]
    whole: WholeGradient | None = None
    work: Digest = ""


def part(
    state: State,
    tokens: IntArray,
    chosen: Sequence[int],
    recipe: Recipe,
    ops: Ops,
    *,
    threads: int = 1,
    on_micro_batch: Callable[[int], None] | None = None,
    gradients: Gradients | None = None,
    work_key: bytes | None = None,
) -> PartResult:
    """The micro-batches `chosen` (ascending numbers) of the step that begins from `state`, of which only the parameters
    are read.

    tokens           (S, T + 1), those of the whole step
    work_key         32 bytes, the key of the step's proof of work, from which that of its parts follows
    The other options are those of `step`. Raises NonFinite when a micro-batch, or the gradient of all, has no result.
    """
    keep_freed_memory()
    try:
        return _part(state, tokens, chosen, recipe, ops, threads, on_micro_batch, gradients, work_key)
    except NonFinite:
        divergence.check_certain(ops)
        raise


def _part(
    state: State,
    tokens: IntArray,
    chosen: Sequence[int],
    recipe: Recipe,
    ops: Ops,
    threads: int,
    on_micro_batch: Callable[[int], None] | None,
    gradients: Gradients | None,
    work_key: bytes | None,
) -> PartResult:
    total_targets = tokens.shape[0] * (tokens.shape[1] - 1)
    cut = list(micro_batches(tokens, recipe))
    total = totals(recipe, ops) if len(chosen) == len(cut) else None
    run = gradients or _direct(state, total_targets, recipe, ops)
    key = None if work_key is None else part_work_key(work_key)
    leaves: list[MicroBatchLeaf] = []
    works: list[Digest] = []
    for sums, leaf in side_by_side(with_leaf(run, ops), [cut[number] for number in chosen], recipe, threads):
        leaves.append(leaf)
        if key is not None:
            works.append(tensors_work({**sums.grads}, ops, key))
        if total is not None:
            total.add(sums.grads)
        if on_micro_batch is not None:
            on_micro_batch(len(leaves))
    ops.check_finite({})  # a device tells with it what went wrong in the others
    whole = None if total is None else _whole(state, total, leaves, total_targets, recipe, ops)
    return PartResult(tuple(leaves), whole, "" if key is None else part_work_of(key, works))


def _direct(state: State, total_targets: int, recipe: Recipe, ops: Ops) -> Gradients:
    prepared = prepare(state.params, recipe, ops)
    return lambda tokens: grads(prepared, tokens, total_targets, recipe, ops)


def _whole(
    state: State, total: Totals, leaves: Sequence[MicroBatchLeaf], total_targets: int, recipe: Recipe, ops: Ops
) -> WholeGradient:
    rounded: list[F32] = total.rounded()
    named = dict(zip(state.params, rounded, strict=True))
    norm = ops.norm_from_squares([ops.squares(rounded)])
    loss = ops.mean_loss(loss_total(leaves), total_targets)
    ops.check_finite({})  # a square out of range is told only here, and is not in the norm
    skipped = divergence.exceeds(norm, recipe)
    lr = np.float32(0 if skipped else ops.learning_rate(recipe.schedule, state.step))
    return WholeGradient(gradient_digest({**named}, ops), loss, norm, lr)
