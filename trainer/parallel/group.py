"""What several ranks ask of each other, and how a missing one ends the run.

Nothing here computes but integer sums, whose result is the same in any order. So neither the network, nor the algorithm
of a collective, nor the number of ranks can change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from auditkit.errors import Unavailable

Array: TypeAlias = Any  # of the back end: NumPy, or device memory; flat and C-contiguous where a group takes it


class RankLost(Unavailable):
    """another rank is gone, or does not come to where this one waits"""


class AlreadyTold(Exception):
    """the run ends, and another rank has said why; `code` is the exit code of all"""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Pending(Protocol):
    """Something under way between ranks. What was handed over must not be touched before `wait` returns."""

    def wait(self) -> None: ...


class Group(Protocol):
    """The ranks of a run. All of them make the same calls in the same order.

    Every call ends within a declared time: RankLost for the rank that found another one missing, AlreadyTold for those
    that learn of it.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def reduce_scatter(self, parts: Sequence[Array]) -> Pending:
        """One int64 array a rank, perhaps empty: the own one becomes the sum of all ranks', modulo 2^64.

        The others are left with anything.
        """
        ...

    def all_gather_ranges(self, ranges: Sequence[Array]) -> Pending:
        """One array a rank, perhaps empty: the own one goes to all ranks, the others are filled with theirs."""
        ...

    def all_to_all(self, parts: Sequence[Array], into: Sequence[Array]) -> Pending:
        """parts[q] goes to rank q, into[q] is filled by rank q, for every q; the two have the same length."""
        ...

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, of any length, in the order of the ranks."""
        ...

    def largest(self, number: int) -> int:
        """The largest of all ranks' numbers, of any size."""
        ...

    def barrier(self) -> None:
        """Return once all ranks are here."""
        ...

    def doing(self, what: str) -> None:
        """Say what the ranks are at, for the message about a lost one."""
        ...

    def close(self) -> None:
        """Part in good order."""
        ...


class Gathering:
    """What follows from `gather_bytes`."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """As Group.gather_bytes."""
        raise NotImplementedError

    def largest(self, number: int) -> int:
        """As Group.largest."""
        return max(int(text) for text in self.gather_bytes(b"%d" % number))

    def barrier(self) -> None:
        """As Group.barrier."""
        self.gather_bytes(b"")


class Done:
    """A Pending that is over."""

    def wait(self) -> None:
        """Return at once."""
