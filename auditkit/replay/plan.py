"""Which states to start from and which steps to replay, so that every wanted step is reached with the least work."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Steps `start` to `stop - 1` are replayed one after the other from the state before step `start`.

    `wanted` are the steps asked for, ascending; the others lie on the way and are checked as well.
    """

    start: int
    stop: int
    wanted: tuple[int, ...]

    @property
    def steps(self) -> range:
        """Every step that is replayed."""
        return range(self.start, self.stop)


def intervals(wanted: Iterable[int], published: Iterable[int]) -> tuple[Interval, ...]:
    """The replays that reach every wanted step, each from the nearest published state at or before it.

    `wanted` are steps, `published` the steps whose start state is published; state 0 is always at hand, since it
    follows from the seed. Steps that share a start state share a replay.
    """
    starts = sorted({0, *published})
    groups: dict[int, list[int]] = {}
    for step in sorted(set(wanted)):
        start = starts[bisect_right(starts, step) - 1]
        groups.setdefault(start, []).append(step)
    return tuple(Interval(start, steps[-1] + 1, tuple(steps)) for start, steps in groups.items())


def following(plan: Iterable[Interval]) -> bool:
    """Whether a step begins from the state that another one gives."""
    return any(len(interval.steps) > 1 for interval in plan)
