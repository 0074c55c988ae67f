"""Which windows of which documents a step saw (docs/architecture.md, "How the stream follows from the corpus")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex
from auditkit.numerics.shuffle import window_order
from auditkit.replay.run import Run


@dataclass(frozen=True)
class Passage:
    """Tokens begin..end of a document, counted from its first token."""

    document: str
    begin: int
    end: int


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch: window `window` of epoch `epoch`, tokens begin..begin+T+1 of all documents joined."""

    number: int
    epoch: int
    window: int
    begin: int
    passages: tuple[Passage, ...]


def corpus_index(run: Run) -> CorpusIndex:
    """The documents of a run. BadArtifact: the manifest's number of windows does not follow from their tokens."""
    index = CorpusIndex.parse(run.read(run.manifest.data.corpus.path))
    windows = (index.token_count - 1) // run.manifest.data.context_length
    if windows != run.manifest.data.windows:
        raise BadArtifact(
            f"{run.manifest.data.corpus.path}: {index.token_count} tokens make {windows} windows, "
            f"the manifest says {run.manifest.data.windows}"
        )
    ids = run.manifest.data.ids
    if ids is not None and ids.count != index.token_count:
        raise BadArtifact(
            f"{run.manifest.data.corpus.path}: {index.token_count} tokens, the manifest says {ids.count} ids"
        )
    return index


def sequences(run: Run, index: CorpusIndex, step: int) -> tuple[Sequence, ...]:
    """Where each sequence of a step's batch comes from, by the seed alone."""
    count, width = run.recipe.batch.sequences, run.manifest.data.context_length
    orders: dict[int, NDArray[np.int64]] = {}
    found = []
    for number in range(step * count, (step + 1) * count):
        epoch, place = divmod(number, run.manifest.data.windows)
        if epoch not in orders:
            orders[epoch] = window_order(run.manifest.data.seed, epoch, run.manifest.data.windows)
        window = int(orders[epoch][place])
        begin = window * width
        spans = index.spans(begin, begin + width + 1)
        passages = tuple(Passage(index.documents[s.document].name, s.begin, s.end) for s in spans)
        found.append(Sequence(number, epoch, window, begin, passages))
    return tuple(found)
