"""Which windows of which documents a step saw (docs/formats.md, "How the stream follows from the corpus")."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex
from auditkit.replay.drawn import order_of
from auditkit.replay.run import Run


@dataclass(frozen=True)
class Passage:
    """Tokens begin..end of a document, counted from its first token."""

    document: str
    begin: int
    end: int


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch: window `window` of epoch `epoch`, tokens begin..begin+T+1 of all documents joined.

    With declared sources these are epoch, window and tokens of `source`, called by its name.
    """

    number: int
    epoch: int
    window: int
    begin: int
    passages: tuple[Passage, ...]
    source: str = ""


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
    drawn = order_of(run.manifest.data).drawn(step * count, (step + 1) * count)
    found = []
    for number, (epoch, window) in enumerate(zip(drawn.epoch.tolist(), drawn.window.tolist(), strict=True)):
        begin = window * width
        spans = index.spans(begin, begin + width + 1)
        passages = tuple(Passage(index.documents[s.document].name, s.begin, s.end) for s in spans)
        found.append(Sequence(step * count + number, epoch, window, begin, passages))
    return tuple(found)
