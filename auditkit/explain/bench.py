"""Where guesses are tried: micro-batches computed otherwise, counted against a budget; sums and updates after that.

Micro-batches run on the back end of the verification. What follows them costs little and runs on the reference ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from auditkit.explain.subject import Start
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.model.network import Prepared, prepare
from auditkit.model.ops import Ops
from auditkit.model.state import State
from auditkit.model.step import GradSum, gradient_digest, gradient_sums, leaf
from auditkit.model.totals import totals
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32, IntArray
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay.backend import Backend
from auditkit.store.progress import Progress


def unchanged(ops: Ops) -> Ops:
    """The ops as they are."""
    return ops


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to compute the micro-batches of a step: inputs and targets (S, T) each, weights, recipe, ops.

    `total_targets` is what the gradient is divided by; `ops` changes the ops of the back end.
    """

    recipe: Recipe
    params: Mapping[str, F32]
    inputs: IntArray
    targets: IntArray
    total_targets: int
    ops: Callable[[Ops], Ops] = unchanged

    @classmethod
    def of(cls, start: Start) -> Variant:
        """The step as it is declared."""
        tokens = start.tokens
        count = tokens.shape[0] * (tokens.shape[1] - 1)
        return cls(start.recipe, start.state.params, tokens[:, :-1], tokens[:, 1:], count)

    def with_tokens(self, tokens: IntArray) -> Variant:
        """The same with another batch (S, T + 1)."""
        return replace(self, inputs=tokens[:, :-1], targets=tokens[:, 1:])


@dataclass
class Bench:
    """Computes micro-batches under variants; `budget` is how many, those of the plain step not counted."""

    start: Start
    backend: Backend
    budget: int
    progress: Progress
    spent: int = 0
    _held: tuple[Variant, Prepared] | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Micro-batches of the step."""
        return self.start.recipe.batch.micro_batches

    def allows(self, micro_batches: int) -> bool:
        """Whether so many more may be computed."""
        return self.spent + micro_batches <= self.budget

    def part(self, variant: Variant, number: int, *, free: bool = False) -> GradSum | None:
        """Gradient sums (NumPy arrays) and loss of one micro-batch; None where it has no result.

        free: it does not count against the budget.
        """
        self.spent += 0 if free else 1
        size = self.start.recipe.batch.micro_batch_sequences
        rows = slice(number * size, (number + 1) * size)

        def one() -> GradSum:
            self.backend.reset()
            ops = variant.ops(self.backend.ops)
            prepared = self._prepared(variant, ops)
            inputs, targets = variant.inputs[rows], variant.targets[rows]
            found = gradient_sums(prepared, inputs, targets, variant.total_targets, variant.recipe, ops)
            ops.check_finite({})
            return found

        try:
            found = self.backend.on_device(one)
        except NonFinite:
            return None
        return self._host(found)

    def parts(self, variants: Sequence[Variant], *, free: bool = False) -> Iterator[GradSum | None]:
        """Each micro-batch under its variant."""
        for number, variant in enumerate(variants):
            yield self.part(variant, number, free=free)

    def leaf(self, variant: Variant, number: int, *, free: bool = False) -> MicroBatchLeaf | None:
        """The leaf of one micro-batch; None where it has no result."""
        found = self.part(variant, number, free=free)
        return None if found is None else leaf(found, reference)

    def backward_order(self, variant: Variant) -> list[str]:
        """The parameters in the order in which the backward pass completes their gradients."""
        order: list[str] = []

        def one() -> None:
            self.backend.reset()
            ops = self.backend.ops
            prepared, inputs, targets = self._prepared(variant, ops), variant.inputs[:1], variant.targets[:1]
            count, recipe = variant.total_targets, variant.recipe
            gradient_sums(prepared, inputs, targets, count, recipe, ops, lambda name, _: order.append(name))

        self.backend.on_device(one)
        return order

    def _prepared(self, variant: Variant, ops: Ops) -> Prepared:
        """The weights in fixed point, kept for the next micro-batch under the same weights, recipe and ops."""
        if self._held is not None:
            held, prepared = self._held
            if held.params is variant.params and held.recipe == variant.recipe and held.ops is variant.ops:
                return prepared
            self._held = None
        params = self.backend.place(State(0, variant.params, {}, {})).params
        prepared = prepare(params, variant.recipe, ops)
        self._held = (variant, prepared)
        return prepared

    def _host(self, found: GradSum) -> GradSum:
        if isinstance(found.loss_sum, np.ndarray | np.generic):
            return found
        arrays = {**found.grads, "": found.loss_sum}
        held = self.backend.host(State(0, arrays, {}, {})).params
        loss_sum = held.pop("")
        return GradSum(held, loss_sum)


def summed(parts: Sequence[GradSum] | Iterator[GradSum], recipe: Recipe) -> list[F32]:
    """The gradient of a step from its parts as the recipe declares, float32 tensors in the order of the parameters.

    Raises NonFinite.
    """
    total = totals(recipe, reference)
    for part in parts:
        total.add(part.grads)
    return total.rounded()


def root(rounded: Sequence[F32], names: Sequence[str]) -> Digest:
    """The gradient root of float32 tensors in the order of the parameters."""
    return gradient_digest(dict(zip(names, rounded, strict=True)), reference)
