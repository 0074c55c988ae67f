"""From which of several sources each sequence is drawn (SPEC.md section 6.8.2).

Weights are integers, and of as many sequences as their sum each source has its weight of them. Within such a period the
earliest deadline decides, as in proportionate-fair scheduling (Baruah, Cohen, Plaxton, Varvel: "Proportionate
progress", Algorithmica 15, 1996): at every point of a run each source has its share to within one sequence. Nothing is
random, for chance would only add noise: a share of n sequences drawn by chance is off by about the square root of n.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.errors import UsageError
from auditkit.numerics.arrays import I64

MAX_SUM = 1 << 16  # of the weights: sequences in a period, for all of which a reader keeps 16 bytes


@dataclass(frozen=True)
class Period:
    """One period: `source` (P,) int64 of each of its sequences and `place` (P,) int64 among those of that source."""

    weights: I64  # (sources,)
    source: I64
    place: I64

    @classmethod
    def of(cls, weights: Sequence[int]) -> Period:
        """The period of these weights. Raises UsageError unless each is 1 or more and their sum at most 2^16."""
        if not weights or min(weights) < 1 or sum(weights) > MAX_SUM:
            raise UsageError(f"sources: weights are integers of 1 or more, their sum at most {MAX_SUM}")
        pairs = np.array(list(_pairs(weights)), np.int64)
        return cls(np.array(weights, np.int64), pairs[:, 0], pairs[:, 1])

    def drawn(self, first: int, end: int) -> tuple[I64, I64]:
        """Sequences first .. end - 1: the source of each (n,) int64, and its number among those of that source.

        Raises UsageError unless 0 <= first <= end <= 2^62.
        """
        if not 0 <= first <= end <= 1 << 62:
            raise UsageError(f"sources: sequences {first} to {end} are outside 0 .. 2^62")
        period, slot = np.divmod(np.arange(first, end, dtype=np.int64), self.source.size)
        source = self.source[slot]
        return source, period * self.weights[source] + self.place[slot]

    def number_of(self, source: int, own: int) -> int:
        """The number of the sequence that is number `own` among those of `source`: the inverse of `drawn`."""
        period, place = divmod(own, int(self.weights[source]))
        slots = np.flatnonzero(self.source == source)
        return period * self.source.size + int(slots[place])


def _pairs(weights: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(source, place) of each slot: of the pairs whose time has come, the one that must be drawn first."""
    total = sum(weights)
    coming = [(0, source, 0) for source in range(len(weights))]  # (slot from which on, source, place)
    ready: list[tuple[int, int, int]] = []  # (slot before which, source, place)
    for slot in range(total):
        while coming and coming[0][0] <= slot:
            _, source, place = heapq.heappop(coming)
            heapq.heappush(ready, (-(-(place + 1) * total // weights[source]), source, place))
        _, source, place = heapq.heappop(ready)
        yield source, place
        if place + 1 < weights[source]:
            heapq.heappush(coming, ((place + 1) * total // weights[source], source, place + 1))
