"""The batches of a work folder, by the very code with which a verifier cuts them (auditkit/replay/windows.py)."""

from __future__ import annotations

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.tensors import DTYPES
from auditkit.replay.windows import IdsLike, Windows
from trainer.data.ids import StoredIds
from trainer.prepared import Prepared, open_ids
from trainer.work import Work


def open_batches(work: Work, prepared: Prepared, sequences: int, cursor: Cursor = START) -> Windows:
    """The batches of a work folder; raises `BadArtifact` if its ids have changed since they were prepared.

    `cursor` is where a later segment of a run begins in these data. With declared sources each chunk of the ids is
    checked when a step first reads it, so that any rank may open them.
    """
    return Windows.of(prepared.data, _ids(work, prepared), sequences, cursor)


def _ids(work: Work, prepared: Prepared) -> IdsLike:
    if not prepared.data.sources:
        return open_ids(work, prepared)
    dtype = DTYPES[prepared.data.dtype]
    return StoredIds(work.ids, work.ids_chunks, dtype=dtype, tokens=prepared.tokens, digest=prepared.chunks)
