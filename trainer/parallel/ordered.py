"""The declared ordered fold (SPEC.md section 17) over ranks.

A rank folds whole groups of one level of the fold, for which it needs nobody else. These partial sums, binary32, go to
the ranks that hold the ranges, and each range is folded on there in the order of the groups. Additions and their order
are those of one device; only the place differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.errors import UsageError
from auditkit.formats.leaves import MicroBatchLeaf, parse_leaves
from auditkit.model.ops import Ops
from auditkit.model.step import side_by_side, with_leaf
from auditkit.model.totals import adder
from auditkit.numerics.arrays import F32
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.fold import Fold
from auditkit.numerics.lists import Each
from trainer.parallel.agree import Caught, agree
from trainer.parallel.assignment import spans
from trainer.parallel.group import Array, Done, Group, Pending
from trainer.parallel.layout import Layout
from trainer.parallel.memory import Memory
from trainer.parallel.sums import Summed, Work, quiet

_LISTED = 1 << 12  # sizes that are looked at for a hint
MOST_TERMS = 8  # partial sums of one rank: all of them together take as many times the memory of the gradient


@dataclass(frozen=True)
class Plan:
    """Who folds what: ranks fold groups of `unit` micro-batches by `inner`, and the sums of these by `outer`."""

    inner: tuple[int, ...]
    outer: tuple[int, ...]
    unit: int
    count: int
    size: int

    @property
    def most(self) -> int:
        """Partial sums of the busiest rank."""
        groups = -(-self.count // self.unit)
        return -(-groups // self.size)

    @property
    def load(self) -> int:
        """Micro-batches of the busiest rank."""
        return min(self.most * self.unit, self.count)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """The micro-batches of each rank."""
        return spans(self.count, self.size, self.unit)

    @cached_property
    def terms(self) -> tuple[int, ...]:
        """How many partial sums each rank makes."""
        return tuple(-(-len(span) // self.unit) for span in self.spans)


def plan(count: int, radices: tuple[int, ...], size: int) -> Plan:
    """How `size` ranks play a fold of `count` micro-batches.

    UsageError, with the sizes that fit, where one rank would compute all of it, or would hold too many partial sums.
    """
    found = _best(count, radices, size)
    if found is None:
        fitting = [other for other in range(1, min(count, _LISTED) + 1) if _best(count, radices, other) is not None]
        raise UsageError(
            f"{size} ranks cannot share the fold {list(radices)} of {count} micro-batches: its groups are too large,"
            f" or their sums too many",
            hint=f"numbers of ranks that can: {_runs(fitting)}",
        )
    return found


def _best(count: int, radices: tuple[int, ...], size: int) -> Plan | None:
    """The plan with the least load, of these the one with the fewest partial sums; None where none is of use."""
    levels = [(radices[:level], radices[level:], math.prod(radices[:level])) for level in range(len(radices) + 1)]
    levels.append((radices, (), count))  # all in one place
    plans = [Plan(*level, count, size) for level in levels]
    fitting = [plan for plan in plans if plan.most <= MOST_TERMS]
    best = min(fitting, key=lambda plan: (plan.load, plan.most))
    return best if best.load < count or min(size, count) == 1 else None


def _runs(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 as "1 to 3, 5"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


class OrderedSums:
    """The fold of one step after the other, by one plan."""

    def __init__(self, group: Group, layout: Layout, memory: Memory, ops: Ops, plan: Plan) -> None:
        self._group, self._layout, self._memory, self._ops, self._plan = group, layout, memory, ops, plan
        self._line = memory.zeros(layout.elements, np.float32)
        own = layout.ranges[group.rank]
        # By round, then by rank: the range's part of each partial sum.
        self._held = [
            [memory.zeros(own.stop - own.start if number < terms else 0, np.float32) for terms in plan.terms]
            for number in range(plan.most)
        ]

    def __call__(self, work: Work, each: Each = map) -> Summed:
        """The gradient of one step. Raises NonFinite on every rank, as one device does."""
        caught, rounds = Caught(), iter(range(len(self._held)))
        leaves: list[MicroBatchLeaf] = []
        under_way: Pending = Done()
        with caught.catching():
            for leaf, term in self._folded(work):
                leaves.append(leaf)
                if term is not None:
                    under_way.wait()  # it reads the line
                    self._lay(term)
                    under_way = self._send(next(rounds))
        under_way.wait()
        for number in rounds:  # where others have more, or after an error
            self._send(number).wait()
        said = agree(self._group, caught, b"".join(leaf.encode() for leaf in leaves))
        return Summed(parse_leaves(b"".join(said), len(work.parts)), self._own())

    def _folded(self, work: Work) -> Iterator[tuple[MicroBatchLeaf, list[F32] | None]]:
        """The leaf of each micro-batch of this rank; with the last one of a group, the sum of the group."""
        span = self._plan.spans[self._group.rank]
        parts = [work.parts[number] for number in span]
        run = with_leaf(lambda tokens: work.run(tokens, quiet), self._ops)
        computed = side_by_side(run, parts, work.recipe, work.threads)
        fold = self._fold()
        for done, (part, leaf) in enumerate(computed, start=1):
            fold.push(self._ops.from_fixed(list(part.grads.values()), GRADIENT_UNIT))
            if done % self._plan.unit and done < len(parts):
                yield leaf, None
                continue
            yield leaf, fold.total()
            fold = self._fold()

    def _fold(self) -> Fold[list[F32]]:
        return Fold(self._plan.inner, adder(self._ops))

    def _lay(self, term: list[F32]) -> None:
        for slot, array in zip(self._layout.slots, term, strict=True):
            self._memory.copy(self._line[slot.begin : slot.end], array)

    def _send(self, number: int) -> Pending:
        """Begin the exchange of every rank's partial sum with this number."""
        mine = self._plan.terms[self._group.rank] > number
        parts = [self._line[held] if mine else self._line[:0] for held in self._layout.ranges]
        return self._group.all_to_all(parts, self._held[number])

    def _own(self) -> list[F32]:
        """The gradient of this rank's pieces."""
        pieces, own = self._layout.pieces[self._group.rank], self._layout.ranges[self._group.rank]
        if not pieces:
            return []
        fold: Fold[Array] = Fold(self._plan.outer, self._ops.add)
        for rank, terms in enumerate(self._plan.terms):
            for number in range(terms):
                fold.push(self._held[number][rank])
        total = fold.total()
        return [total[piece.place.start - own.start : piece.place.stop - own.start] for piece in pieces]
