"""All parameters as one line, and which rank holds which range of it.

The line is the tensors in their order (`auditkit.model.params`), each cut into blocks of 32,768 elements: 128 KiB of
binary32, the unit in which a digest can be made of parts (`auditkit.formats.blake3_tree`). A rank's range is
consecutive blocks. Gradients, parameters and moments have the same line.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from auditkit.formats.blake3_tree import BLOCK_BYTES
from auditkit.formats.recipe import ModelConfig
from auditkit.model.params import parameter_table

BLOCK = BLOCK_BYTES // 4  # elements
BUCKET = 1 << 22  # elements that travel together: large enough for a network, small beside a model
_ALIGNED = 64  # elements: tensors begin where vectors of 256 bytes do
_TOLERANCE = 8  # a cut moves to the end of a tensor if that is within 1/8 of a rank's share


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies: elements `begin` to `begin + elements` of the line."""

    name: str
    shape: tuple[int, ...]
    decayed: bool
    begin: int
    elements: int

    @property
    def end(self) -> int:
        """Behind its last element."""
        return self.begin + self.elements


@dataclass(frozen=True)
class Piece:
    """What a rank holds of one tensor: elements `first` to `stop` of it, whole blocks."""

    slot: Slot
    first: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether it is the whole tensor."""
        return self.stop - self.first == self.slot.elements

    @property
    def block(self) -> int:
        """The tensor's block that it begins with."""
        return self.first // BLOCK

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return -(-(self.stop - self.first) // BLOCK)

    @property
    def place(self) -> slice:
        """Where it lies in the line."""
        return slice(self.slot.begin + self.first, self.slot.begin + self.stop)


@dataclass(frozen=True)
class Layout:
    """The line of a model's parameters, divided among `size` ranks."""

    model: ModelConfig
    size: int

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every tensor's place, in order."""
        made, at = [], 0
        for spec in parameter_table(self.model):
            made.append(Slot(spec.name, spec.shape, spec.decayed, at, math.prod(spec.shape)))
            at += -(-made[-1].elements // _ALIGNED) * _ALIGNED
        return tuple(made)

    @cached_property
    def slot(self) -> dict[str, Slot]:
        """The same by name."""
        return {slot.name: slot for slot in self.slots}

    @property
    def elements(self) -> int:
        """Length of the line, with the gaps between tensors."""
        return -(-self.slots[-1].end // _ALIGNED) * _ALIGNED

    @cached_property
    def ranges(self) -> tuple[slice, ...]:
        """Each rank's range of the line. Together they are the line; there may be empty ones."""
        share = self.elements / self.size
        cuts = [0]
        for rank in range(1, self.size):
            cuts.append(max(cuts[-1], self._cut(round(share * rank), share / _TOLERANCE)))
        return tuple(itertools.starmap(slice, itertools.pairwise((*cuts, self.elements))))

    def _cut(self, ideal: int, tolerance: float) -> int:
        """Where blocks may be parted, near `ideal`: between two tensors if that is near enough."""
        ends = [*(slot.begin for slot in self.slots), self.elements]
        nearest = min(ends, key=lambda end: abs(end - ideal))
        if abs(nearest - ideal) <= tolerance:
            return nearest
        slot = next(slot for slot in reversed(self.slots) if slot.begin <= ideal)
        blocks = [slot.begin + BLOCK * round((ideal - slot.begin) / BLOCK), nearest]
        inside = [place for place in blocks if place < slot.end or place in ends]
        return min(inside, key=lambda place: abs(place - ideal))

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """What each rank holds, in order."""
        return tuple(tuple(self._pieces(held)) for held in self.ranges)

    def _pieces(self, held: slice) -> list[Piece]:
        parts = [(slot, max(slot.begin, held.start), min(slot.end, held.stop)) for slot in self.slots]
        return [Piece(slot, begin - slot.begin, end - slot.begin) for slot, begin, end in parts if begin < end]

    def buckets(self, most: int = BUCKET) -> tuple[slice, ...]:
        """The line cut into buckets of at most `most` elements, a block at least, the last one first.

        Backward passes go through the tensors from the last to the first, so buckets are complete in this order.
        """
        most = max(BLOCK, most)
        edges = [*range(self.elements, 0, -most), 0]
        return tuple(slice(begin, end) for end, begin in itertools.pairwise(edges))

    def parts(self, bucket: slice) -> tuple[slice, ...]:
        """What of a bucket is in each rank's range; perhaps nothing."""
        return tuple(
            slice(begin, max(begin, min(bucket.stop, held.stop)))
            for held in self.ranges
            for begin in [min(max(bucket.start, held.start), bucket.stop)]
        )

    def names(self, bucket: slice) -> frozenset[str]:
        """The tensors that lie in a bucket, wholly or in part."""
        return frozenset(slot.name for slot in self.slots if slot.begin < bucket.stop and bucket.start < slot.end)
