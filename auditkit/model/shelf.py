"""Where arrays of a step lie that are not needed now: beside the computation, in main memory, or on the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from auditkit.model.ops import Ops


class Shelf(Protocol):
    """Lists of arrays by key. What comes back has the bits of what was put there.

    A shelf away from where the ops compute checks that: on the disk, and in main memory beside a card.
    """

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """Keep arrays, in place of those that the key had."""

    def get(self, key: str) -> list[Any] | None:
        """The arrays of a key; None if there are none."""

    def expect(self, key: str) -> None:
        """Begin to bring the arrays of a key, if it is there, for `get` will soon ask for them."""

    def drop(self, key: str) -> None:
        """Forget a key, if it is there."""


class InMemory:
    """The arrays themselves, in the memory in which the ops compute: no safer while they compute than while they wait,
    so nothing is checked here. What a bit does that flips once, the second replay before a mismatch shows.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """As Shelf."""
        self._held[key] = list(arrays)

    def get(self, key: str) -> list[Any] | None:
        """As Shelf."""
        return self._held.get(key)

    def expect(self, key: str) -> None:
        """As Shelf: they are here."""

    def drop(self, key: str) -> None:
        """As Shelf."""
        self._held.pop(key, None)


class Divided:
    """Two shelves: keys of which `is_near` says so lie on the first, all others on the second."""

    def __init__(self, near: Shelf, far: Shelf, is_near: Callable[[str], bool]) -> None:
        self._near, self._far, self._is_near = near, far, is_near

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """As Shelf."""
        self._of(key).put(key, arrays)

    def get(self, key: str) -> list[Any] | None:
        """As Shelf."""
        return self._of(key).get(key)

    def expect(self, key: str) -> None:
        """As Shelf."""
        self._of(key).expect(key)

    def drop(self, key: str) -> None:
        """As Shelf."""
        self._of(key).drop(key)

    def _of(self, key: str) -> Shelf:
        return self._near if self._is_near(key) else self._far


class Moved:
    """A shelf of host arrays, for the arrays of some ops."""

    def __init__(self, shelf: Shelf, ops: Ops) -> None:
        self._shelf, self._ops = shelf, ops

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """As Shelf."""
        self._shelf.put(key, [self._ops.host(array) for array in arrays])

    def get(self, key: str) -> list[Any] | None:
        """As Shelf."""
        found = self._shelf.get(key)
        return None if found is None else [self._ops.place(array) for array in found]

    def expect(self, key: str) -> None:
        """As Shelf."""
        self._shelf.expect(key)

    def drop(self, key: str) -> None:
        """As Shelf."""
        self._shelf.drop(key)
