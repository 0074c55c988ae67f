"""The training step on several ranks: the parts of `auditkit.model.step`, each run where its operands are.

1. Every rank computes the gradients of its micro-batches (`assignment`).
2. They are added exactly (`sums`), or in the declared order (`ordered`): each rank ends with the gradient of its range.
3. The norm is an exact sum of integers, gathered. AdamW runs on ranges, since elements do not meet in it.
4. The new parameters go to all ranks; the moments stay where they are.
5. Digests of what lies in ranges are gathered (`digests`).

Every rank returns the same result, the one of one device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.formats.recipe import Recipe
from auditkit.formats.skips import NORM
from auditkit.model import divergence
from auditkit.model.network import OnGradient, Prepared, prepare
from auditkit.model.ops import Ops
from auditkit.model.step import (
    GradSum,
    StepResult,
    adamw_step,
    gradient_texts,
    grads,
    micro_batches,
    tensor_workers,
)
from auditkit.model.totals import loss_total
from auditkit.numerics.arrays import F32, IntArray, keep_freed_memory
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite
from trainer.parallel.agree import Caught, agree
from trainer.parallel.digests import Found, Key, joined_digests, own_digests, text_bytes
from trainer.parallel.group import Array, Group, Pending
from trainer.parallel.layout import BUCKET, Layout
from trainer.parallel.memory import Memory
from trainer.parallel.ordered import OrderedSums, plan
from trainer.parallel.replicas import Replicas
from trainer.parallel.state import STATE_ROLES, RankState
from trainer.parallel.sums import ExactSums, Summed, Work

_SQUARES_BYTES = 32  # of a sum of squares in units 2^-62, below 2^94 where it has a meaning


class RankStep:
    """The steps of one run on this rank."""

    def __init__(
        self,
        group: Group,
        layout: Layout,
        memory: Memory,
        ops: Ops,
        recipe: Recipe,
        *,
        threads: int = 1,
        bucket: int = BUCKET,
        replicas: Replicas | None = None,
    ) -> None:
        """Raises UsageError where the recipe's fold does not fit the number of ranks."""
        self._group, self._layout, self._memory, self._ops, self._recipe = group, layout, memory, ops, recipe
        self._threads, self._replicas = threads, replicas or Replicas(group, layout, ops, "memory", every=0)
        self._pieces = layout.pieces[group.rank]
        count, radices = recipe.batch.micro_batches, recipe.numerics.fold
        self._sums: Callable[..., Summed]
        if radices:
            self._sums = OrderedSums(group, layout, memory, ops, plan(count, radices, group.size))
        else:
            self._sums = ExactSums(group, layout, memory, ops, count, bucket=bucket)

    def __call__(self, state: RankState, tokens: IntArray, asked: bool = False) -> tuple[RankState, StepResult, bool]:
        """Take state N to state N + 1 with batch N, tokens (S, T + 1); and whether any rank was `asked` to stop.

        Raises on every rank what one of them meets, NonFinite when the step has no result and is not skipped.
        """
        keep_freed_memory()
        self._memory.forget()
        try:
            return self._taken(state, tokens, asked)
        except NonFinite as error:
            if not self._recipe.divergence.skips:
                raise
            why = error.message
        stops = self._restored(state, asked)
        return replace(state, step=state.step + 1), divergence.without_result(self._recipe, why), stops

    def _taken(self, state: RankState, tokens: IntArray, asked: bool) -> tuple[RankState, StepResult, bool]:
        """The step, if it has a result; else all ranks raise the same NonFinite at the same place."""
        total_targets = tokens.shape[0] * (tokens.shape[1] - 1)
        with tensor_workers(self._threads, sum(piece.stop - piece.first for piece in self._pieces)) as each:
            with self._replicas.watching(state):  # before the line is filled anew
                summed = self._sums(self._work(state, tokens, total_targets), each)
                loss_sum = loss_total(summed.leaves)  # like all that ends a step but its update: before that
                norm = self._norm(summed.rounded, each)
                why = divergence.exceeds(norm, self._recipe)
                if why:  # shared like a new state: that is rare, and one way is simpler than two
                    self._replicas.suspected(state)
                    moved = np.float32(0), (state.own, state.adam_m, state.adam_v)
                else:
                    moved = self._update(state, summed.rounded, norm, each)
            params, adam_m, adam_v = moved[1]
            found, said, stops = self._share(state.line, (summed.rounded, params, adam_m, adam_v), asked)
        loss = self._ops.mean_loss(loss_sum, total_targets)
        gradient = self._gradient(found)
        state_digests = {key: digest for key, digest in found.items() if key[0] != "grad"}
        new = RankState(state.step + 1, state.line, state.params, params, adam_m, adam_v, state_digests, said)
        result = StepResult(loss, norm, moved[0], gradient, summed.leaves, skipped=NORM if why else "", why=why)
        return new, result, stops

    def _restored(self, state: RankState, asked: bool) -> bool:
        """Fill the line with the parameters from before a step without a result; whether any rank was asked to stop."""
        caught = Caught()
        with caught.catching():
            divergence.check_certain(self._ops)
        said = agree(self._group, caught, bytes([asked]))
        self._spread(state.line, state.own).wait()
        return any(text[0] for text in said)

    def _work(self, state: RankState, tokens: IntArray, total_targets: int) -> Work:
        prepared: list[Prepared] = []  # by the first micro-batch: a rank without one needs no rows
        first = threading.Lock()

        def run(part: IntArray, on_gradient: OnGradient) -> GradSum:
            with first:
                if not prepared:
                    prepared.append(prepare(state.params, self._recipe, self._ops))
            return grads(prepared[0], part, total_targets, self._recipe, self._ops, on_gradient)

        return Work(list(micro_batches(tokens, self._recipe)), run, self._recipe, self._threads)

    def _norm(self, rounded: list[F32], each: Each) -> np.float32:
        """The norm of the whole gradient."""
        caught, squares = Caught(), 0
        with caught.catching():
            squares = self._ops.squares(rounded, each) if rounded else 0
            divergence.check_known(self._recipe, self._ops)
        said = agree(self._group, caught, squares.to_bytes(_SQUARES_BYTES, "little", signed=True))
        return self._ops.norm_from_squares([int.from_bytes(text, "little", signed=True) for text in said])

    def _update(
        self, state: RankState, rounded: list[F32], norm: np.float32, each: Each
    ) -> tuple[np.float32, tuple[list[F32], list[F32], list[F32]]]:
        arrays = state.own, state.adam_m, state.adam_v
        decayed = [piece.slot.decayed for piece in self._pieces]
        return adamw_step(arrays, rounded, decayed, norm, state.step, self._recipe, self._ops, each)

    def _share(self, line: Array, arrays: tuple[list[F32], ...], asked: bool) -> tuple[dict[Key, Digest], bytes, bool]:
        """Fill the line with the new parameters of all ranks; every digest, what this rank said of its parts of the
        state, and whether any rank was asked to stop.
        """
        under_way = self._spread(line, arrays[1])
        caught, text = Caught(), b""
        with caught.catching():
            self._ops.check_finite(
                {
                    f"{role} of {piece.slot.name}": array
                    for piece, *new in zip(self._pieces, *arrays[1:], strict=True)
                    for role, array in zip(STATE_ROLES, new, strict=True)
                }
            )
            text = own_digests(self._ops, self._pieces, arrays)
        try:
            said = agree(self._group, caught, bytes([asked]) + text)
        except NonFinite:
            under_way.wait()  # it writes into the line, which the old parameters will have to fill again
            raise
        under_way.wait()
        found = joined_digests(self._layout, [text[1:] for text in said], ("grad", *STATE_ROLES))
        return found, text[text_bytes(self._pieces) :], any(text[0] for text in said)

    def _spread(self, line: Array, own: list[F32]) -> Pending:
        """Begin to fill the line of every rank with the pieces that each holds."""
        for piece, array in zip(self._pieces, own, strict=True):
            self._memory.copy(line[piece.place], array)
        return self._group.all_gather_ranges([line[held] for held in self._layout.ranges])

    def _gradient(self, found: Found) -> Digest:
        slots = self._layout.slots
        texts = gradient_texts(tuple((slot.name, np.dtype(np.float32), slot.shape) for slot in slots))
        return texts.root([found["grad", slot.name] for slot in slots])
