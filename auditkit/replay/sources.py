"""Which windows of which documents a step saw (docs/formats.md, "How the stream follows from the corpus")."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.timeline import Segment
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

    `number` counts the sequences of the data that the segment of the step draws from. With declared sources these are
    epoch, window and tokens of `source`, called by its name.
    """

    number: int
    epoch: int
    window: int
    begin: int
    passages: tuple[Passage, ...]
    source: str = ""


def corpus_index(run: Run, data: DataSpec) -> CorpusIndex:
    """The documents of a run. BadArtifact: the manifest's number of windows does not follow from their tokens."""
    index = CorpusIndex.parse(run.read(data.corpus.path))
    windows = (index.token_count - 1) // data.context_length
    if windows != data.windows:
        raise BadArtifact(
            f"{data.corpus.path}: {index.token_count} tokens make {windows} windows, the manifest says {data.windows}"
        )
    if data.ids is not None and data.ids.count != index.token_count:
        raise BadArtifact(f"{data.corpus.path}: {index.token_count} tokens, the manifest says {data.ids.count} ids")
    return index


def sequences(segment: Segment, index: CorpusIndex, step: int) -> tuple[Sequence, ...]:
    """Where each sequence of a step's batch comes from, by the seed alone."""
    width, first = segment.data.context_length, segment.sequence_at(step)
    drawn = order_of(segment.data).drawn(first, segment.sequence_at(step + 1))
    found = []
    for number, (epoch, window) in enumerate(zip(drawn.epoch.tolist(), drawn.window.tolist(), strict=True)):
        begin = window * width
        spans = index.spans(begin, begin + width + 1)
        passages = tuple(Passage(index.documents[s.document].name, s.begin, s.end) for s in spans)
        found.append(Sequence(first + number, epoch, window, begin, passages))
    return tuple(found)
