"""The chance that tampered steps would all have escaped so far, from how many steps are covered.

Of N steps, n are covered and k tampered. If each set of n steps was as likely to be the covered one, none of the k lies
in it with probability C(N-k, n) / C(N, n), the hypergeometric distribution at 0 (drawing without putting back). What is
assumed, and what no figure can show: the publisher had fixed the run before, and could not foresee which steps would be
verified; a covered step that had been tampered with would have failed. Steps that the publisher could foresee (the
first hundred, those that an auditor announced) prove only themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TAMPERED = (1, 10, 100)  # rows of the table, besides one step in a hundred
CONFIDENCES = (95, 99)  # per cent
_NEGLIGIBLE = 1e-300


@dataclass(frozen=True)
class Escape:
    """One row: with `tampered` steps, `chance` that none was covered; 0.0 may stand for less than 1e-300."""

    tampered: int
    chance: float
    impossible: bool  # more tampered steps than uncovered ones: certainly caught

    @property
    def text(self) -> str:
        """The chance for people; never 0 where it is not, nor 100 % where something was verified."""
        if self.impossible:
            return "impossible"
        if self.chance < _NEGLIGIBLE:
            return "below 1e-300"
        if self.chance < 1e-4:
            return f"{self.chance:.1e}"
        percent = f"{self.chance * 100:.2f}"
        return f"{'above 99.99' if percent == '100.00' and self.chance < 1 else percent} %"


@dataclass(frozen=True)
class Extent:
    """How many tampered steps would have been caught with a confidence (per cent); None: not even all of them."""

    confidence: int
    tampered: int | None


def chance(size: int, covered: int, tampered: int) -> float:
    """The probability, correctly rounded to binary64, that none of `tampered` steps is among `covered` of `size`.

    0 <= covered, tampered <= size; a probability below about 1e-300 may come back as 0.0.
    """
    if tampered > size - covered:
        return 0.0
    if 0 < covered < size and tampered * math.log1p(-covered / size) < -750.0:
        return 0.0  # an upper bound, (1 - n/N)^k, is beyond binary64: spare the huge integers
    # C(N-n, k) / C(N, k) is the same with n and k exchanged: the smaller one has fewer factors.
    fewer, more = sorted((covered, tampered))
    return math.perm(size - more, fewer) / math.perm(size, fewer)


def caught_with(size: int, covered: int, confidence: int) -> int | None:
    """The least number of tampered steps of which at least one is covered with `confidence` per cent, exactly."""
    if not covered:
        return None

    def enough(tampered: int) -> bool:
        fewer, more = sorted((covered, tampered))
        escaped, ways = math.perm(size - more, fewer), math.perm(size, fewer)
        return 100 * escaped <= (100 - confidence) * ways

    high = 1
    while high < size and not enough(high):
        high = min(2 * high, size)
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def table(size: int, covered: int) -> list[Escape]:
    """The chances for 1, 10, 100 and 1 % of the steps (rounded up), those that the run has."""
    counts = sorted({k for k in (*TAMPERED, -(-size // 100)) if 0 < k <= size})
    return [Escape(k, chance(size, covered, k), k > size - covered) for k in counts]


def extents(size: int, covered: int) -> list[Extent]:
    """What would have been caught, for each of CONFIDENCES."""
    return [Extent(confidence, caught_with(size, covered, confidence)) for confidence in CONFIDENCES]
