"""Which tokens a step consumes, cut from the ids of the corpus (docs/formats.md, "How the stream follows").

The trainer reads its batches here as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.data_spec import DataSpec
from auditkit.replay.drawn import Order, SortedOrder, order_of

_TOKENS = 1 << 20  # of batches cut at a time


class IdsLike(Protocol):
    """All ids (tokens,) uint16 or uint32, sources one after the other: an array, or what reads from the disk as one."""

    def __getitem__(self, index: NDArray[np.int64], /) -> NDArray[Any]: ...


class Windows:
    """The batch of any step, a pure function of ids, data section and step: nothing has to be restored on resume."""

    def __init__(self, ids: IdsLike, *, context_length: int, sequences: int, seed: int, windows: int) -> None:
        order = SortedOrder(seed, windows)
        self._set(ids, context_length, sequences, order, np.zeros(1, np.int64), START)

    @classmethod
    def of(cls, data: DataSpec, ids: IdsLike, sequences: int, cursor: Cursor = START) -> Windows:
        """The batches of `sequences` sequences that follow from a data section and the ids of all its sources.

        `cursor` is where the steps begin in these data, in a run of several segments.
        """
        offsets = list(itertools.accumulate((source.tokens for source in data.sources), initial=0))
        made = cls.__new__(cls)
        made._set(ids, data.context_length, sequences, order_of(data), np.array(offsets, np.int64), cursor)
        return made

    def _set(
        self, ids: IdsLike, width: int, sequences: int, order: Order, offsets: NDArray[np.int64], cursor: Cursor
    ) -> None:
        self._ids = ids
        self._width = width
        self._sequences = sequences
        self._order = order
        self._offsets = offsets  # where the ids of each source begin
        self._cursor = cursor

    def tokens(self, step: int) -> NDArray[Any]:
        """The step's windows (sequences, context_length + 1), in the dtype of the ids; a batch may span two epochs.

        BadArtifact where declared data end before.
        """
        return self.part(step, 0, self._sequences)

    def part(self, step: int, first: int, stop: int) -> NDArray[Any]:
        """Rows first to stop - 1 of the step's tokens, nothing else being read: what one of several ranks needs."""
        if not 0 <= first <= stop <= self._sequences:
            raise IndexError(f"sequences {first} to {stop} of {self._sequences}")
        begin = self._cursor.at(step, self._sequences)
        return self._cut(begin + first, begin + stop)

    def batches(self, stop: int, first: int = 0) -> Iterator[NDArray[Any]]:
        """The batches of steps first to stop - 1, in order; memory holds a few thousand windows at a time."""
        chunk = max(1, _TOKENS // (self._sequences * (self._width + 1)))
        for start in range(first, stop, chunk):
            end = min(start + chunk, stop)
            found = self._cut(*(self._cursor.at(step, self._sequences) for step in (start, end)))
            yield from found.reshape(end - start, self._sequences, self._width + 1)

    def _cut(self, first: int, end: int) -> NDArray[Any]:
        """(end - first, context_length + 1) tokens of sequences first to end - 1."""
        drawn = self._order.drawn(first, end)
        begins = self._offsets[drawn.source] + drawn.window * self._width
        return self._ids[begins[:, None] + np.arange(self._width + 1)]
