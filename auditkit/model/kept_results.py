"""Results of a layer that a plan keeps from its forward pass for its backward pass; the rest is made again.

What is dearest to make and least to keep comes first: the output of the attention spares all of its scores, and each of
the others a product. What is left is elementwise: norms, SwiGLU, rotations, rounding to fixed point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ATTENTION, MID, HEADS, UP, GATE = "attention", "mid", "heads", "up", "gate"
# In the order in which a plan takes them: output, row maxima and sums of the attention; x after the attention; queries,
# keys and values as the attention reads them, which are of use with its output; what enters the SwiGLU.
RESULTS = (ATTENTION, MID, HEADS, UP, GATE)


class KeptResults:
    """Of one layer and micro-batch. Each result is a list of arrays."""

    def __init__(self, names: Sequence[str] = (), arrays: Sequence[Any] = (), counts: Sequence[int] = ()) -> None:
        """names: of results that are noted as they are made. With `arrays`, what a forward pass has noted under these
        names, `counts` says how many each has, and they are not made again.
        """
        self._names, self._held, at = names, dict[str, list[Any]](), 0
        for name, count in zip(names, counts, strict=False):
            self._held[name] = list(arrays[at : at + count])
            at += count

    def get(self, name: str) -> list[Any] | None:
        """A result that is held."""
        return self._held.get(name)

    def note(self, name: str, arrays: Sequence[Any]) -> None:
        """Hold a result, if it is one that is kept."""
        if name in self._names:
            self._held[name] = list(arrays)

    def made(self, name: str, make: Callable[[], Sequence[Any]]) -> list[Any]:
        """A result that is held; made and noted, if it is not."""
        held = self._held.get(name)
        if held is None:
            held = list(make())
            self.note(name, held)
        return held

    @property
    def arrays(self) -> list[Any]:
        """All that is held, in the order of the names."""
        return [array for name in self._names for array in self._held[name]]

    @property
    def counts(self) -> list[int]:
        """How many arrays each result has."""
        return [len(self._held[name]) for name in self._names]
