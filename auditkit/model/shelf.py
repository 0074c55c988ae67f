"""Where arrays of a step lie that are not needed now: beside the computation, in main memory, or on the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from auditkit.model.ops import Ops


class Lists(Protocol):
    """Lists of arrays by key. What comes back has the bits of what was put there.

    Away from where the ops compute that is checked: on the disk, and in main memory beside a card.
    """

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """Keep arrays, in place of those that the key had."""

    def get(self, key: str) -> list[Any] | None:
        """The arrays of a key; None if there are none."""

    def expect(self, key: str) -> None:
        """Begin to bring the arrays of a key, if it is there, for `get` will soon ask for them."""

    def drop(self, key: str) -> None:
        """Forget a key, if it is there."""


class Shelf(Lists, Protocol):
    """Lists that come and go together, as those of a layer do: as one by one, unless that takes longer."""

    def put_all(self, lists: Mapping[str, Sequence[Any]]) -> None:
        """`put` of each key."""
        for key, arrays in lists.items():
            self.put(key, arrays)

    def get_all(self, keys: Sequence[str]) -> list[list[Any] | None]:
        """`get` of each key."""
        return [self.get(key) for key in keys]


class InMemory(Shelf):
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


class Divided(Shelf):
    """Two shelves: keys of which `is_near` says so lie on the first, all others on the second."""

    def __init__(self, near: Shelf, far: Shelf, is_near: Callable[[str], bool]) -> None:
        self._near, self._far, self._is_near = near, far, is_near

    def put(self, key: str, arrays: Sequence[Any]) -> None:
        """As Shelf."""
        self._of(key).put(key, arrays)

    def get(self, key: str) -> list[Any] | None:
        """As Shelf."""
        return self._of(key).get(key)

    def put_all(self, lists: Mapping[str, Sequence[Any]]) -> None:
        """As Shelf."""
        for shelf in (self._near, self._far):
            if there := {key: arrays for key, arrays in lists.items() if self._of(key) is shelf}:
                shelf.put_all(there)

    def get_all(self, keys: Sequence[str]) -> list[list[Any] | None]:
        """As Shelf."""
        found: dict[str, list[Any] | None] = {}
        for shelf in (self._near, self._far):
            there = [key for key in keys if self._of(key) is shelf]
            found.update(zip(there, shelf.get_all(there), strict=True))
        return [found[key] for key in keys]

    def expect(self, key: str) -> None:
        """As Shelf."""
        self._of(key).expect(key)

    def drop(self, key: str) -> None:
        """As Shelf."""
        self._of(key).drop(key)

    def _of(self, key: str) -> Shelf:
        return self._near if self._is_near(key) else self._far


class Moved(Shelf):
    """Lists of host arrays, for the arrays of some ops."""

    def __init__(self, shelf: Lists, ops: Ops) -> None:
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
