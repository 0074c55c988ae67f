"""Which tokens a step consumes, cut from the ids of the corpus (docs/architecture.md, "How the stream follows").

The trainer reads its batches here as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.numerics.shuffle import window_order

_ORDERS = 2  # epochs kept: a batch may span two, and steps are asked for in rising order
_TOKENS = 1 << 20  # of batches cut at a time


class Windows:
    """The batch of any step, a pure function of ids, seed and step: nothing has to be restored on resume."""

    def __init__(self, ids: NDArray[Any], *, context_length: int, sequences: int, seed: int, windows: int) -> None:
        self._ids = ids  # (tokens,) uint16 or uint32
        self._width = context_length
        self._sequences = sequences
        self._seed = seed
        self._windows = windows
        self._orders: OrderedDict[int, NDArray[np.int64]] = OrderedDict()  # epoch -> (windows,)

    def tokens(self, step: int) -> NDArray[Any]:
        """The step's windows (sequences, context_length + 1), in the dtype of the ids; a batch may span two epochs."""
        tokens: NDArray[Any] = self._cut(step, step + 1)[0]
        return tokens

    def batches(self, steps: int) -> Iterator[NDArray[Any]]:
        """The batches of steps 0 to steps - 1, in order; memory holds a few thousand windows at a time."""
        chunk = max(1, _TOKENS // (self._sequences * (self._width + 1)))
        for start in range(0, steps, chunk):
            yield from self._cut(start, min(start + chunk, steps))

    def _cut(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, sequences, context_length + 1) tokens."""
        begins = self._numbers(start * self._sequences, stop * self._sequences) * self._width
        found: NDArray[Any] = self._ids[begins[:, None] + np.arange(self._width + 1)]
        return found.reshape(stop - start, self._sequences, self._width + 1)

    def _numbers(self, first: int, end: int) -> NDArray[np.int64]:
        """The windows of sequences first to end - 1 -> (end - first,) int64."""
        parts = []
        while first < end:
            epoch, place = divmod(first, self._windows)
            count = min(end - first, self._windows - place)
            parts.append(self._order(epoch)[place : place + count])
            first += count
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            self._orders[epoch] = window_order(self._seed, epoch, self._windows)
            if len(self._orders) > _ORDERS:
                self._orders.popitem(last=False)
        return self._orders[epoch]
