"""The ordered fold: terms added in binary32 in a declared order (SPEC.md section 17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Level(Generic[T]):
    """The group of terms that is being added at one level: how many have come, and their sum so far."""

    radix: int  # terms that make a group, 0 where one group takes all
    count: int = 0
    held: T | None = None


class Fold(Generic[T]):
    """Adds terms as they come: groups of radices[0] from left to right, groups of radices[1] of those sums, and so on.

    What is left above the last radix is one group. Holds one sum a level, whatever the number of terms. A term is
    whatever `add` adds, such as a list of float32 arrays; none is changed.
    """

    def __init__(self, radices: Sequence[int], add: Callable[[T, T], T]) -> None:
        self._add = add
        self._levels: list[_Level[T]] = [_Level(radix) for radix in (*radices, 0)]

    def held(self) -> list[T]:
        """The sums of the groups that are not filled, level by level: with the number of terms, all that there is."""
        return [level.held for level in self._levels if level.held is not None]

    def resume(self, count: int, held: Sequence[T]) -> None:
        """Go on from `count` terms of a fold that held these sums. ValueError for another number of them."""
        for level in self._levels:
            level.count = count % level.radix if level.radix else count
            count = count // level.radix if level.radix else 0
        open_levels = [level for level in self._levels if level.count]
        for level, sum_ in zip(open_levels, held, strict=True):
            level.held = sum_

    def push(self, term: T) -> None:
        """Add the next term."""
        for level in self._levels:
            level.held = term if level.held is None else self._add(level.held, term)
            level.count += 1
            if level.count != level.radix:
                return
            term, level.held, level.count = level.held, None, 0

    def total(self) -> T:
        """The sum of all terms; groups that were not filled end with what they have. ValueError without any term."""
        carried: T | None = None  # the sum of the unfilled group below, a term of this level
        for level in self._levels:
            if level.held is not None and carried is not None:
                carried = self._add(level.held, carried)
            elif level.held is not None:
                carried = level.held
        if carried is None:
            raise ValueError("a fold of no terms")
        return carried
