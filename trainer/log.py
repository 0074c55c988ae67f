"""What a run appends at every step: records, leaves, token frames with their index, checks, and metrics.

Steps are appended without waiting for the disk, and handed to the system once a second so that others can read along.
Only before a state is completed are all files flushed: a complete state at step S means that S whole steps are there,
and what follows them, torn or not, is cut off by going on from S.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats import leaves, record, stream
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.record import RecordFile, RecordRow
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX
from auditkit.formats.stream import StreamIndex
from trainer.disk import read_bytes, sync_file, sync_folder, writing
from trainer.metrics import METRICS, cut_metrics
from trainer.witness import CHECK_BYTES, CHECKS, LeavesBefore, begin_checks, check_of, leaves_end

FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Lengths:
    """Bytes that some number of steps fill, of each file that is published."""

    files: dict[str, int]

    @classmethod
    def at(cls, folder: Path, step: int, before: LeavesBefore) -> Lengths:
        """The lengths after `step` steps; raises `BadArtifact` if a file is too short for that."""
        index_end = len(stream.MAGIC) + step * stream.ROW_BYTES
        index = StreamIndex.parse(read_bytes(folder / STREAM_INDEX)[:index_end])
        lengths = {
            RECORDS: len(record.MAGIC) + step * record.ROW_BYTES,
            LEAVES: leaves_end(before, step),
            STREAM_INDEX: index_end,
            STREAM: index.total_length,
        }
        for name, length in lengths.items():
            size = (folder / name).stat().st_size
            if size < length:
                raise BadArtifact(f"{folder / name}: {size} bytes, but {step} steps fill {length}")
        return cls(lengths)


def read_rows(folder: Path, steps: int) -> tuple[RecordRow, ...]:
    """The record rows of the first `steps` steps; raises `BadArtifact` or `Unavailable`."""
    data = read_bytes(folder / RECORDS)[: len(record.MAGIC) + steps * record.ROW_BYTES]
    rows = RecordFile.parse(data).rows
    if len(rows) != steps:
        raise BadArtifact(f"{folder / RECORDS}: {len(rows)} whole records, {steps} are needed")
    return rows


class RunLog:
    """The appended files of a run, open for writing; a context manager that closes them."""

    def __init__(
        self, folder: Path, files: dict[str, BinaryIO], offset: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._flushed = clock()
        self._folder = folder
        self._files = files
        self._offset = offset  # bytes of stream.bin so far

    @classmethod
    def create(cls, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> RunLog:
        """Begin empty files, whatever was there."""
        heads = {RECORDS: record.MAGIC, LEAVES: leaves.MAGIC, STREAM_INDEX: stream.MAGIC, STREAM: b"", CHECKS: b""}
        files: dict[str, BinaryIO] = {}
        for name, head in (heads | {METRICS: b""}).items():
            files[name] = (folder / name).open("wb")
            files[name].write(head)
        return cls(folder, files, 0, clock=clock)

    @classmethod
    def reopen(cls, folder: Path, step: int, before: LeavesBefore) -> RunLog:
        """Cut all files to `step` steps and go on from there; raises `BadArtifact` if one is too short.

        The run does not need metrics: what is left of them is kept, with a note where steps are missing.
        """
        published = Lengths.at(folder, step, before).files
        if not (folder / CHECKS).is_file():
            begin_checks(folder, read_rows(folder, step), before)
        lengths = published | {CHECKS: step * CHECK_BYTES, METRICS: cut_metrics(folder / METRICS, step)}
        files: dict[str, BinaryIO] = {}
        for name, length in lengths.items():
            files[name] = (folder / name).open("r+b")
            files[name].truncate(length)
            files[name].seek(length)
        return cls(folder, files, lengths[STREAM])

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # all of them, even if the disk is full
            for name, file in self._files.items():
                stack.enter_context(writing(self._folder / name))
                stack.callback(file.close)

    def append(
        self, row: RecordRow, parts: tuple[MicroBatchLeaf, ...], tokens: NDArray[Any], metrics: dict[str, Any]
    ) -> None:
        """One step: its record, its leaves, its tokens (sequences, context_length + 1) and figures for people."""
        frame = stream.encode_frame(tokens)
        frame_row = stream.frame_row(self._offset, frame, tokens)
        self._offset += len(frame)
        line = json.dumps(metrics, separators=(",", ":"), allow_nan=False) + "\n"
        for name, data in (
            (STREAM, frame),
            (STREAM_INDEX, frame_row.encode()),
            (LEAVES, b"".join(leaf.encode() for leaf in parts)),
            (RECORDS, row.encode()),
            (CHECKS, check_of(row, parts)),
            (METRICS, line.encode("ascii")),
        ):
            with writing(self._folder / name):
                self._files[name].write(data)
        now = self._clock()
        if now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            for name, file in self._files.items():
                with writing(self._folder / name):
                    file.flush()

    def sync(self) -> None:
        """Flush everything appended so far to the disk itself."""
        for name, file in self._files.items():
            with writing(self._folder / name):
                sync_file(file)
        sync_folder(self._folder)
