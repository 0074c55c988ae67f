"""All records of a run as a few byte strings: for processes of their own, and to compare a million digests at once."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.record import StepRecord

_ROW = struct.Struct("<32s32s32s32s32sIII")  # in memory only
_BITS = struct.Struct("<III")


class RecordTable(Sequence[StepRecord]):
    """The records of a run, made anew from 204 bytes each when asked for.

    `sha256` is (steps, 32) u8: SHA-256 of each canonical record, which attestations are about.
    """

    def __init__(self, records: Iterable[StepRecord]) -> None:
        rows, sha256 = bytearray(), bytearray()
        last: StepRecord | None = None
        self._begun: list[StepRecord] = []  # the first record of each segment, and its place
        self._places: list[int] = []
        for place, record in enumerate(records):
            if last is None or record.state_before != last.state_after:
                self._begun.append(record)
                self._places.append(place)
            last = record
            digests = (record.previous, record.state_after, record.batch, record.gradient, record.micro_root)
            rows += bytes.fromhex("".join(digests)) + _BITS.pack(record.loss, record.norm, record.lr)
            sha256 += hashlib.sha256(record.encode()).digest()
        self._rows, self._sha256 = bytes(rows), bytes(sha256)

    @property
    def sha256(self) -> NDArray[np.uint8]:
        """SHA-256 of each canonical record, (steps, 32)."""
        return np.frombuffer(self._sha256, np.uint8).reshape(-1, 32)

    def __len__(self) -> int:
        return len(self._sha256) // 32

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
        number = bisect_right(self._places, step) - 1
        begun = self._begun[number]
        previous, after, batch, gradient, micro_root, loss, norm, lr = _ROW.unpack_from(self._rows, _ROW.size * step)
        before = begun.state_before
        if step != self._places[number]:
            before = _ROW.unpack_from(self._rows, _ROW.size * (step - 1))[1].hex()
        return StepRecord(
            run=begun.run,
            step=step,
            previous=previous.hex(),
            state_before=before,
            state_after=after.hex(),
            batch=batch.hex(),
            gradient=gradient.hex(),
            micro_batches=begun.micro_batches,
            micro_root=micro_root.hex(),
            loss=loss,
            norm=norm,
            lr=lr,
            numerics=begun.numerics,
        )
