"""Which tokens a step consumes (docs/architecture.md, "How the stream follows from the corpus")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.numerics.shuffle import window_order
from trainer.prepared import Prepared, open_ids
from trainer.work import Work


class Batches:
    """The batch of any step, a pure function of ids, seed and step: nothing has to be restored on resume."""

    def __init__(self, ids: NDArray[Any], *, context_length: int, sequences: int, seed: int, windows: int) -> None:
        self._ids = ids  # (tokens,) uint16 or uint32
        self._width = context_length
        self._sequences = sequences
        self._seed = seed
        self._windows = windows
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    @classmethod
    def open(cls, work: Work, prepared: Prepared, sequences: int) -> Batches:
        """The batches of a work folder; raises `BadArtifact` if its ids have changed since they were prepared."""
        return cls(
            open_ids(work, prepared),
            context_length=prepared.data.context_length,
            sequences=sequences,
            seed=prepared.data.seed,
            windows=prepared.data.windows,
        )

    def tokens(self, step: int) -> NDArray[Any]:
        """The step's windows (sequences, context_length + 1), in the dtype of the ids; a batch may span two epochs."""
        first = step * self._sequences
        starts = [self._window(number) * self._width for number in range(first, first + self._sequences)]
        return np.stack([self._ids[start : start + self._width + 1] for start in starts])

    def _window(self, sequence: int) -> int:
        epoch, place = divmod(sequence, self._windows)
        if epoch != self._epoch:
            self._order = window_order(self._seed, epoch, self._windows)  # (windows,) int64
            self._epoch = epoch
        return int(self._order[place])
