"""Split a verification over machines without a coordinator: which steps are part I of N, the same on every machine.

To reach the last step of an interval is to replay the whole interval, so nothing is gained by cutting one: whole
intervals go to a part, neighbours to the same one, and the longest part is as short as that allows. Only where there
are more parts than start states is an interval cut, so that every machine has something to say; that costs replays and
saves no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from auditkit.errors import UsageError
from auditkit.replay.plan import intervals

Wanted = tuple[int, ...]


def share(wanted: Iterable[int], published: Iterable[int], number: int, count: int) -> Wanted:
    """Part `number` of `count`, from 1 on: ascending steps, at least one. Each wanted step is in exactly one part.

    A pure function of the steps wanted and of those whose start state is published. UsageError: fewer steps than parts.
    """
    plan = intervals(wanted, published)
    groups = [interval.wanted for interval in plan]
    steps = sum(map(len, groups))
    if steps < count:
        raise UsageError(f"{steps} step{'' if steps == 1 else 's'} cannot be split into {count} parts")
    if len(groups) < count:
        return _cut(groups, count)[number - 1]
    first, stop = _neighbours([len(interval.steps) for interval in plan], count)[number - 1]
    return tuple(step for group in groups[first:stop] for step in group)


def _neighbours(costs: Sequence[int], count: int) -> list[tuple[int, int]]:
    """`count` half-open ranges of the items of `costs`, none empty, in order; the dearest is as cheap as can be."""
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if _needed(costs, middle) <= count:
            high = middle
        else:
            low = middle + 1
    found, first = [], 0
    for later in reversed(range(count)):
        stop, cost = first + 1, costs[first]
        while stop < len(costs) - later and cost + costs[stop] <= low:
            cost += costs[stop]
            stop += 1
        found.append((first, stop))
        first = stop
    return found


def _needed(costs: Sequence[int], most: int) -> int:
    """How many ranges of at most `most` there must be, filled one after the other."""
    ranges, cost = 1, 0
    for item in costs:
        if cost + item > most:
            ranges, cost = ranges + 1, 0
        cost += item
    return ranges


def _cut(groups: Sequence[Wanted], count: int) -> list[Wanted]:
    """`count` pieces of fewer groups: another cut always goes to the group whose pieces are longest, to the first."""
    pieces = [1] * len(groups)
    heap: list[tuple[float, int]] = [(-len(group), index) for index, group in enumerate(groups)]
    heapify(heap)
    for _ in range(count - len(groups)):
        index = heap[0][1]
        pieces[index] += 1
        heapreplace(heap, (-len(groups[index]) / pieces[index], index))
    return [
        group[len(group) * piece // many : len(group) * (piece + 1) // many]
        for group, many in zip(groups, pieces, strict=True)
        for piece in range(many)
    ]
