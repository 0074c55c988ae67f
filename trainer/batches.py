"""The batches of a work folder, by the very code with which a verifier cuts them (auditkit/replay/windows.py)."""

from __future__ import annotations

from auditkit.replay.windows import Windows
from trainer.prepared import Prepared, open_ids
from trainer.work import Work


def open_batches(work: Work, prepared: Prepared, sequences: int) -> Windows:
    """The batches of a work folder; raises `BadArtifact` if its ids have changed since they were prepared."""
    return Windows(
        open_ids(work, prepared),
        context_length=prepared.data.context_length,
        sequences=sequences,
        seed=prepared.data.seed,
        windows=prepared.data.windows,
    )
