"""The gradient of a step from those of its micro-batches: their exact sum, or the declared ordered fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.model.network import Grads
from auditkit.model.ops import Ops
from auditkit.numerics.arrays import F32, I64
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.fold import Fold
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite

_LIMIT = 1 << 62


class Totals(Protocol):
    """Takes the gradients of micro-batches in their order, by parameter name; they stay as they are.

    add     int64 sums
    take    int64 sums, or float32 that stand for them: the digests of the sums as well
    """

    def add(self, grads: Grads) -> None: ...
    def take(self, grads: Grads, each: Each = map) -> list[Digest]: ...
    def held(self) -> list[list[Any]]: ...
    def resume(self, count: int, held: list[list[Any]]) -> None: ...
    def rounded(self, each: Each = map) -> list[F32]: ...


def totals(recipe: Recipe, ops: Ops) -> Totals:
    """What the recipe declares: the exact sum, or a fold."""
    radices = recipe.numerics.fold
    return FoldedTotals(radices, ops) if radices else ExactTotals(ops)


class ExactTotals:
    """Exact int64 sums over micro-batches, rounded once (SPEC.md section 13). `add` and `take` raise NonFinite."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._sums: list[I64] = []
        self._own = False  # whether the arrays are this object's, and may be written to

    def add(self, grads: Grads) -> None:
        """Add the sums of one micro-batch."""
        terms = list(grads.values())
        if not self._sums:
            self._sums = terms
            return
        self._sums = self._ops.add_sums(self._sums, terms, out=self._sums if self._own else None)
        self._own = True

    def take(self, grads: Grads, each: Each = map) -> list[Digest]:
        """Add what one micro-batch gives, and tell the digests of its sums, in one go."""
        out = self._sums if self._own else None
        self._sums, found = self._ops.add_terms(self._sums, list(grads.values()), GRADIENT_UNIT, each, out=out)
        self._own = True
        return found

    def held(self) -> list[list[Any]]:
        """All that is needed to go on from here, for each parameter."""
        return [[total] for total in self._sums]

    def resume(self, count: int, held: list[list[Any]]) -> None:
        """Go on from what was held after `count` micro-batches."""
        self._sums, self._own = [total for (total,) in held], False

    def rounded(self, each: Each = map) -> list[F32]:
        """The gradient, float32 tensors in the order of the names."""
        return self._ops.from_fixed(self._sums, GRADIENT_UNIT, each)


class FoldedTotals:
    """Every micro-batch rounded to binary32, and these added in declared groups (SPEC.md section 17)."""

    def __init__(self, radices: Sequence[int], ops: Ops) -> None:
        self._ops = ops
        self._fold: Fold[list[F32]] = Fold(radices, adder(ops))

    def add(self, grads: Grads) -> None:
        """Add the sums of one micro-batch."""
        self._fold.push(self._ops.from_fixed(list(grads.values()), GRADIENT_UNIT))

    def take(self, grads: Grads, each: Each = map) -> list[Digest]:
        """Add what one micro-batch gives, and tell the digests of its sums."""
        sums, found = self._ops.add_terms([], list(grads.values()), GRADIENT_UNIT, each)
        rounded = self._ops.from_fixed(sums, GRADIENT_UNIT)
        del sums  # twice as large, while the fold adds
        self._fold.push(rounded)
        return found

    def held(self) -> list[list[Any]]:
        """All that is needed to go on from here, for each parameter the sums of the levels."""
        return [list(levels) for levels in zip(*self._fold.held(), strict=True)]

    def resume(self, count: int, held: list[list[Any]]) -> None:
        """Go on from what was held after `count` micro-batches."""
        self._fold.resume(count, [list(level) for level in zip(*held, strict=True)])

    def rounded(self, each: Each = map) -> list[F32]:
        """The gradient, float32 tensors in the order of the names."""
        return self._fold.total()


def adder(ops: Ops) -> Callable[[list[F32], list[F32]], list[F32]]:
    """What adds two lists of float32 arrays, pair by pair, into new ones."""
    return lambda xs, ys: [ops.add(x, y) for x, y in zip(xs, ys, strict=True)]


def loss_total(leaves: Sequence[MicroBatchLeaf]) -> int:
    """The step's loss sum (units 2^-32). Raises NonFinite for a sum of the first micro-batches out of range."""
    total = 0
    for number, leaf in enumerate(leaves):
        total += leaf.loss_sum
        if number and not -_LIMIT <= total < _LIMIT:
            raise NonFinite("an exact sum leaves 62 bits")
    return total
