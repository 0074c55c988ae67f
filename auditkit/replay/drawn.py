"""Which window of which source each sequence of a run is, by its data section alone (SPEC.md sections 2 and 6.8)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.data_spec import DataSpec, Source
from auditkit.numerics.mixture import Period
from auditkit.numerics.permutation import permute
from auditkit.numerics.shuffle import window_order

I64 = NDArray[np.int64]

_ORDERS = 2  # epochs kept: a batch may span two, and steps are asked for in rising order


@dataclass(frozen=True)
class Drawn:
    """Some sequences: the number of the source of each (n,), its epoch (n,), and the window there (n,)."""

    source: I64
    epoch: I64
    window: I64


class Order(Protocol):
    """A rule that says which window each sequence is."""

    def drawn(self, first: int, end: int) -> Drawn:
        """Sequences first to end - 1."""
        ...


class SortedOrder:
    """One corpus: all windows of an epoch, sorted by random keys; the table of an epoch takes 8 bytes a window."""

    def __init__(self, seed: int, windows: int) -> None:
        self._seed, self._windows = seed, windows
        self._tables: OrderedDict[int, I64] = OrderedDict()  # epoch -> (windows,)

    def drawn(self, first: int, end: int) -> Drawn:
        """See Order."""
        epoch, place = np.divmod(np.arange(first, end, dtype=np.int64), self._windows)
        window = np.empty_like(place)
        for number in np.unique(epoch).tolist():
            chosen = epoch == number
            window[chosen] = self._table(number)[place[chosen]]
        return Drawn(np.zeros_like(epoch), epoch, window)

    def _table(self, epoch: int) -> I64:
        if epoch not in self._tables:
            self._tables[epoch] = window_order(self._seed, epoch, self._windows)
            if len(self._tables) > _ORDERS:
                self._tables.popitem(last=False)
        return self._tables[epoch]


class MixedOrder:
    """Declared sources: drawn from by weight, each in an order of its own that needs no table."""

    def __init__(self, data: DataSpec) -> None:
        self._seed, self._sources = data.seed, data.sources
        self._period = Period.of([source.weight for source in data.sources])
        self._windows = np.array([data.windows_of(source) for source in data.sources], np.int64)  # (sources,)
        self._ends = self._first_end()

    def drawn(self, first: int, end: int) -> Drawn:
        """See Order; BadArtifact where the data end before."""
        self.check_end(end)
        source, own = self._period.drawn(first, end)
        epoch, place = np.divmod(own, self._windows[source])
        window = np.empty_like(place)
        for number in np.unique(source).tolist():
            for turn in np.unique(epoch[source == number]).tolist():
                chosen = (source == number) & (epoch == turn)
                window[chosen] = permute(self._seed, number, turn, int(self._windows[number]), place[chosen])
        return Drawn(source, epoch, window)

    def _first_end(self) -> tuple[int, Source] | None:
        """How many sequences there are, and the source whose epochs end them; None if nothing does."""
        found = [
            (self._period.number_of(number, source.epochs * int(windows)), source)
            for number, (source, windows) in enumerate(zip(self._sources, self._windows, strict=True))
            if source.epochs
        ]
        return min(found, key=lambda pair: pair[0], default=None)

    def check_end(self, sequences: int) -> None:
        """Refuse a run of more sequences than there are; BadArtifact naming the source that ends."""
        if self._ends is None or sequences <= self._ends[0]:
            return
        end, source = self._ends
        epochs = "1 epoch" if source.epochs == 1 else f"{source.epochs} epochs"
        raise BadArtifact(
            f"the data end after {end} sequences, when source {shown(source.name)} has been used for {epochs}; "
            f"{sequences} are asked for"
        )


def order_of(data: DataSpec) -> Order:
    """The rule of a data section."""
    return MixedOrder(data) if data.sources else SortedOrder(data.seed, data.windows)


def check_end(data: DataSpec, sequences: int) -> None:
    """Refuse a run of more sequences than its data have; BadArtifact."""
    # A source is drawn its share of the sequences to within less than one: only near its end the table is needed.
    weights = sum(source.weight for source in data.sources)
    ends = [(source, source.epochs * data.windows_of(source)) for source in data.sources if source.epochs]
    if any(sequences * source.weight > (end - 1) * weights for source, end in ends):
        MixedOrder(data).check_end(sequences)
