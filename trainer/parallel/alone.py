"""The group of one process: nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.parallel.group import Array, Done, Gathering, Pending


class Alone(Gathering):
    """One rank, which holds everything. `copy` copies an array of the back end to another: (target, source)."""

    rank, size = 0, 1

    def __init__(self, copy: Callable[[Array, Array], None]) -> None:
        self._copy = copy

    def reduce_scatter(self, parts: Sequence[Array]) -> Pending:
        """The sum is the part itself."""
        return Done()

    def all_gather_ranges(self, ranges: Sequence[Array]) -> Pending:
        """The range is here."""
        return Done()

    def all_to_all(self, parts: Sequence[Array], into: Sequence[Array]) -> Pending:
        """A copy."""
        if parts[0].size:
            self._copy(into[0], parts[0])
        return Done()

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The own ones."""
        return [data]

    def doing(self, what: str) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """Nothing to part from."""
