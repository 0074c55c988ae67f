"""All records of a run as a few byte strings: for processes of their own, and to compare a million digests at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.record import MAGIC, ROW_BYTES, RecordFile, RecordRow, StepRecord


class RecordTable(Sequence[StepRecord]):
    """The records of a run, made anew from 204 bytes each when asked for.

    `sha256` is (steps, 32) u8: SHA-256 of each canonical record, which attestations are about.
    """

    def __init__(self, records: Iterable[StepRecord]) -> None:
        rows, previous, sha256 = bytearray(), bytearray(), bytearray()
        first = None
        for record in records:
            first = first or record
            rows += record.row().encode()
            previous += bytes.fromhex(record.previous)
            sha256 += hashlib.sha256(record.encode()).digest()
        self._first = first
        self._rows, self._previous, self._sha256 = bytes(rows), bytes(previous), bytes(sha256)

    @property
    def sha256(self) -> NDArray[np.uint8]:
        """SHA-256 of each canonical record, (steps, 32)."""
        return np.frombuffer(self._sha256, np.uint8).reshape(-1, 32)

    def __len__(self) -> int:
        return len(self._previous) // 32

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self._record(step) for step in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._record(index)

    def _record(self, step: int) -> StepRecord:
        assert self._first is not None
        row = self._row(step)
        return StepRecord(
            run=self._first.run,
            step=step,
            previous=self._previous[32 * step : 32 * step + 32].hex(),
            state_before=self._row(step - 1).state_after if step else self._first.state_before,
            state_after=row.state_after,
            batch=row.batch,
            gradient=row.gradient,
            micro_batches=self._first.micro_batches,
            micro_root=row.micro_root,
            loss=row.loss,
            norm=row.norm,
            lr=row.lr,
            numerics=self._first.numerics,
        )

    def _row(self, step: int) -> RecordRow:
        return RecordFile.parse(MAGIC + self._rows[ROW_BYTES * step : ROW_BYTES * (step + 1)]).rows[0]
