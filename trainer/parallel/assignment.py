"""Which micro-batches of a step a rank computes: a pure function of their number and the ranks'."""

from __future__ import annotations


def spans(count: int, size: int, unit: int = 1) -> tuple[range, ...]:
    """For each of `size` ranks the consecutive micro-batches that it computes, of `count` in all; some may have none.

    unit: how many stay together, from the first on; only the last of all may be fewer. Ranks differ by at most one
    unit, earlier ones have more.
    """
    units = -(-count // unit)
    each, more = divmod(units, size)
    ends = [(rank + 1) * each + min(rank + 1, more) for rank in range(size)]
    begins = [0, *ends[:-1]]
    return tuple(
        range(min(begin * unit, count), min(end * unit, count)) for begin, end in zip(begins, ends, strict=True)
    )


def holder(number: int, owned: tuple[range, ...]) -> int:
    """The rank that computes micro-batch `number`."""
    return next(rank for rank, span in enumerate(owned) if number in span)
