"""Section 6.8 of SPEC.md with Python's integers and fractions, one sequence at a time."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import ceil, floor

from blake3 import blake3

from tests.ops import elementary_scalar as scalar


def window(seed: int, source: int, epoch: int, windows: int, place: int) -> int:
    """The window at one place of the order "feistel" (section 6.8.1)."""
    text = b"auditkit window permutation" + source.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    stream = int.from_bytes(blake3(text).digest()[:8], "little")
    h = next(h for h in itertools.count(1) if 4**h >= windows)
    value = place
    while True:
        a, b = divmod(value, 2**h)
        for r in range(8):
            a, b = b, a ^ scalar.philox(seed, stream, b + 2**32 * r)[0] % 2**h
        value = a * 2**h + b
        if value < windows:
            return value


def period(weights: list[int]) -> list[tuple[int, int]]:
    """Source and place among its own of each sequence of a period (section 6.8.2)."""
    total, used, found = sum(weights), [0] * len(weights), []
    for r in range(total):
        open_ = [
            (ceil(Fraction((used[i] + 1) * total, w)), i)
            for i, w in enumerate(weights)
            if used[i] < w and floor(Fraction(used[i] * total, w)) <= r
        ]
        _, i = min(open_)
        found.append((i, used[i]))
        used[i] += 1
    return found


def sequence(seed: int, weights: list[int], windows: list[int], number: int) -> tuple[int, int, int]:
    """Source, epoch and window of one sequence of data with declared sources."""
    turn, slot = divmod(number, sum(weights))
    source, place = period(weights)[slot]
    epoch, at = divmod(turn * weights[source] + place, windows[source])
    return source, epoch, window(seed, source, epoch, windows[source], at)
