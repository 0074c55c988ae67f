"""The exact sum of all micro-batches' gradients over the ranks, as on one device (SPEC.md sections 4 and 13).

Each rank adds its own micro-batches to a line, and a reduce-scatter in buckets leaves each rank with the sum of its
range. The buckets travel while the last backward pass still runs.

Sums of int64 wrap, and SPEC.md says what has no result: a sum over the first 2, 3, .. micro-batches out of range.
Wherever the largest elements of all micro-batches, added, stay below 2^62, no sum in any order can leave the range or
wrap, and nothing else needs to be looked at. Where they do not, which no training that learns comes near, what
travelled is thrown away, and the micro-batches are computed again and added one after the other in their order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.formats.leaves import MicroBatchLeaf, parse_leaves
from auditkit.formats.recipe import Recipe
from auditkit.model.network import Grads, OnGradient
from auditkit.model.ops import Ops
from auditkit.model.step import GradSum, side_by_side, with_leaf
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite
from trainer.parallel.agree import Caught, agree
from trainer.parallel.assignment import holder, spans
from trainer.parallel.group import Array, Group, Pending
from trainer.parallel.layout import BUCKET, Layout
from trainer.parallel.memory import Memory

LIMIT = 1 << 62
_BOUND_BYTES = 16  # of the largest elements of all micro-batches, added: fewer than 2^20 numbers of at most 2^63


@dataclass(frozen=True)
class Work:
    """What the step is to all ranks: its micro-batches, tokens (s, T + 1) each, and how to compute one of them."""

    parts: Sequence[IntArray]
    run: Callable[[IntArray, OnGradient], GradSum]
    recipe: Recipe
    threads: int


@dataclass(frozen=True)
class Summed:
    """The leaves of all micro-batches in order, and the rounded gradient of this rank's pieces."""

    leaves: tuple[MicroBatchLeaf, ...]
    rounded: list[F32]


def quiet(name: str, sums: I64) -> None:
    """An OnGradient that does nothing."""


class Buckets:
    """The reduce-scatter of one step: every rank begins the same buckets in the same order, each as soon as it can."""

    def __init__(self, group: Group, line: Array, layout: Layout, most: int) -> None:
        self._group, self._line, self._layout = group, line, layout
        self._buckets = layout.buckets(most)
        self._left = [set(layout.names(bucket)) for bucket in self._buckets]
        self._under_way: list[Pending] = []

    def final(self, name: str) -> None:
        """All that this rank adds to a tensor is in the line."""
        for left in self._left:
            left.discard(name)
        while len(self._under_way) < len(self._buckets) and not self._left[len(self._under_way)]:
            self._begin()

    def finish(self) -> None:
        """Begin what is left, and wait for all."""
        while len(self._under_way) < len(self._buckets):
            self._begin()
        for pending in self._under_way:
            pending.wait()

    def _begin(self) -> None:
        parts = self._layout.parts(self._buckets[len(self._under_way)])
        self._under_way.append(self._group.reduce_scatter([self._line[part] for part in parts]))


class ExactSums:
    """The exact sum over micro-batches and ranks, in a line that serves step after step."""

    def __init__(
        self, group: Group, layout: Layout, memory: Memory, ops: Ops, micro_batches: int, *, bucket: int = BUCKET
    ) -> None:
        self._group, self._layout, self._memory, self._ops, self._bucket = group, layout, memory, ops, bucket
        self._spans = spans(micro_batches, group.size)
        self._line = memory.zeros(layout.elements, np.int64)
        self._views = {slot.name: self._line[slot.begin : slot.end].reshape(slot.shape) for slot in layout.slots}
        self._own = [self._line[piece.place] for piece in layout.pieces[group.rank]]
        self._filled: set[str] = set()  # tensors to which a micro-batch of the step was added

    def __call__(self, work: Work, each: Each = map) -> Summed:
        """The sums of one step. Raises NonFinite on every rank, as one device does."""
        caught, buckets = Caught(), Buckets(self._group, self._line, self._layout, self._bucket)
        leaves: list[MicroBatchLeaf] = []
        bound = 0
        parts = self._begin(work)
        with caught.catching():
            for part, leaf in self._computed(work, parts, buckets):
                leaves.append(leaf)
                bound += self._ops.largest(list(part.values()))
        buckets.finish()
        text = b"".join(leaf.encode() for leaf in leaves)
        said = agree(self._group, caught, bound.to_bytes(_BOUND_BYTES, "little") + text)
        if sum(int.from_bytes(text[:_BOUND_BYTES], "little") for text in said) >= LIMIT:
            self._in_order(work)
        found = parse_leaves(b"".join(text[_BOUND_BYTES:] for text in said), len(work.parts))
        return Summed(found, self._ops.from_fixed(self._own, GRADIENT_UNIT, each))

    def _begin(self, work: Work) -> list[IntArray]:
        """The micro-batches of this rank; without any, what it adds is zero."""
        self._filled.clear()
        parts = [work.parts[number] for number in self._spans[self._group.rank]]
        if not parts:
            self._memory.clear(self._line)
        return parts

    def _computed(self, work: Work, parts: list[IntArray], buckets: Buckets) -> Iterator[tuple[Grads, MicroBatchLeaf]]:
        """Gradients and leaf of each micro-batch of this rank, once they are in the line.

        Where one is computed at a time, the tensors of the last one travel as they become final.
        """
        one_by_one = min(work.threads, len(parts)) <= 1
        added: set[str] = set()

        def on_gradient(name: str, sums: I64) -> None:
            self._add({name: sums})
            added.add(name)
            buckets.final(name)

        def run(tokens: IntArray) -> GradSum:
            return work.run(tokens, on_gradient if one_by_one and tokens is parts[-1] else quiet)

        for part, leaf in side_by_side(with_leaf(run, self._ops), parts, work.recipe, work.threads):
            self._add({name: sums for name, sums in part.grads.items() if name not in added})
            yield part.grads, leaf

    def _add(self, grads: Grads) -> None:
        """Add sums to the line. Where they leave the range the bound of this step does too, and decides."""
        new = [name for name in grads if name not in self._filled]
        for name in new:
            self._memory.copy(self._views[name], grads[name])
        old = [name for name in grads if name in self._filled]
        totals = [self._views[name] for name in old]
        with contextlib.suppress(NonFinite):
            self._ops.add_sums(totals, [grads[name] for name in old], out=totals)
        self._filled.update(new)

    def _in_order(self, work: Work) -> None:
        """The same sums, each micro-batch computed and added when its turn comes: as slow as it is exact."""
        self._memory.forget()
        own = self._layout.ranges[self._group.rank]
        total, term = (self._memory.zeros(own.stop - own.start, np.int64) for _ in range(2))
        caught, nothing = Caught(), self._line[:0]
        for number, tokens in enumerate(work.parts):
            sender, parts = holder(number, self._spans), [nothing] * self._group.size
            if sender == self._group.rank:
                self._filled.clear()
                with caught.catching():
                    self._add(work.run(tokens, quiet).grads)
                parts = [self._line[held] for held in self._layout.ranges]
            into = [term if rank == sender else nothing for rank in range(self._group.size)]
            self._group.all_to_all(parts, into).wait()
            with caught.catching():
                if number == 0:
                    self._memory.copy(total, term)
                else:
                    self._ops.add_sums([total], [term], out=[total])
        agree(self._group, caught, b"")
        self._memory.copy(self._line[own], total)
