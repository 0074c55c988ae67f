"""The files of a run folder that grow: what each step adds to them, and their digests, continued step by step."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from auditkit.errors import BadArtifact
from auditkit.formats import compact as compact_format
from auditkit.formats import record, stream
from auditkit.formats.digest import Hasher
from auditkit.formats.leaves import LEAF_BYTES, MicroBatchLeaf, parse_leaves
from auditkit.formats.record import ROW_BYTES, RecordFile
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX, Artifact
from auditkit.formats.timeline import Timeline
from auditkit.replay.windows import Windows
from trainer import compact
from trainer.disk import sync_file, writing
from trainer.segments import Course
from trainer.witness import CHECK_BYTES, CHECKS, check_of, leaves_end

_CHUNK = 1 << 20
_PLACE = struct.Struct("<QI")  # what a row of stream.idx begins with: offset and length of its frame


class Steps:
    """The steps of a work folder from one to another: records, leaves, and the bytes that they add to each file."""

    def __init__(self, course: Course, timeline: Timeline, first: int, stop: int) -> None:
        """Raises `BadArtifact` where a record is not what was written when its step was made."""
        self._folder, self._timeline, self.first, self.stop = course.work.folder, timeline, first, stop
        head = len(record.MAGIC)
        self.rows = RecordFile.parse(
            record.MAGIC + self._read(RECORDS, head + first * ROW_BYTES, head + stop * ROW_BYTES)
        ).rows
        self._check()

    def leaves(self) -> list[tuple[MicroBatchLeaf, ...]]:
        """The micro-batch leaves of each step."""
        before = self._timeline.leaves_before
        begin = leaves_end(before, self.first)
        data = memoryview(self._read(LEAVES, begin, leaves_end(before, self.stop)))
        ends = [leaves_end(before, step) - begin for step in range(self.first, self.stop + 1)]
        return [parse_leaves(data[a:b], (b - a) // LEAF_BYTES) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def files(self) -> dict[str, Iterator[bytes]]:
        """What a run with a token stream adds to each of its files; with step 0, from their first byte on."""
        return {
            name: self._pieces(name, self._end(name, self.first) if self.first else 0, self._end(name, self.stop))
            for name in (RECORDS, LEAVES, STREAM, STREAM_INDEX)
        }

    def compact_files(self, windows: Sequence[Windows]) -> dict[str, Iterator[bytes]]:
        """The same of a compact run; `windows` are the batches of each segment."""
        return {RECORDS: self._compact(windows)}

    def _compact(self, windows: Sequence[Windows]) -> Iterator[bytes]:
        if not self.first:
            yield compact_format.MAGIC
        leaves = self.leaves()
        for segment in self._timeline.segments:
            begin, stop = max(self.first, segment.start), min(self.stop, segment.stop)
            if begin < stop:
                own = slice(begin - self.first, stop - self.first)
                batches = windows[segment.number]
                found = compact.derivable(segment, batches, begin, self.rows[own], leaves[own])
                yield found.encode()[len(compact_format.MAGIC) :]

    def _check(self) -> None:
        """Compare with the digests of the training, where there are any."""
        if not (self._folder / CHECKS).is_file():
            return
        noted = self._read(CHECKS, self.first * CHECK_BYTES, self.stop * CHECK_BYTES)
        for number, (row, parts) in enumerate(zip(self.rows, self.leaves(), strict=True)):
            if check_of(row, parts) != noted[number * CHECK_BYTES : (number + 1) * CHECK_BYTES]:
                raise BadArtifact(
                    f"{self._folder / RECORDS}: record {self.first + number}, or its leaves, are not what was written"
                    f" when the step was made ({CHECKS})",
                    hint="the disk may have failed; resume from a state before that step, or from a copy",
                )

    def _end(self, name: str, step: int) -> int:
        """How long a file is after so many steps."""
        if name == RECORDS:
            return len(record.MAGIC) + step * ROW_BYTES
        if name == LEAVES:
            return leaves_end(self._timeline.leaves_before, step)
        end = len(stream.MAGIC) + step * stream.ROW_BYTES
        if name == STREAM_INDEX:
            return end
        offset, length = _PLACE.unpack(self._read(STREAM_INDEX, end - stream.ROW_BYTES, end)[: _PLACE.size])
        return int(offset + length)

    def _read(self, name: str, begin: int, end: int) -> bytes:
        return b"".join(self._pieces(name, begin, end))

    def _pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        path = self._folder / name
        with writing(path), path.open("rb") as file:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(_CHUNK, end - begin))
                if not piece:
                    raise BadArtifact(f"{path}: {end - begin} bytes are missing")
                begin += len(piece)
                yield piece


class GrowingFile:
    """One file of the run folder: its first `size` bytes are those that a manifest names, or soon will."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._hasher = Hasher(threads=1)  # the training goes on beside

    @property
    def artifact(self) -> Artifact:
        """What the manifest says of it."""
        return Artifact(self.path, self._hasher.size, self._hasher.hexdigest())

    def take(self, pieces: Iterator[bytes]) -> None:
        """Take over bytes that the file has already."""
        for piece in pieces:
            self._hasher.update(piece)

    def append(self, folder: Path, pieces: Iterator[bytes]) -> None:
        """Append; what lies behind, of a publication that was killed, is written over with the same bytes."""
        place = folder / self.path
        with writing(place), place.open("r+b" if self._hasher.size else "wb") as file:
            file.seek(self._hasher.size)
            for piece in pieces:
                self._hasher.update(piece)
                file.write(piece)
            file.truncate()
            sync_file(file)

    def check(self, folder: Path) -> None:
        """Raises `BadArtifact` unless the file in the folder begins with these bytes."""
        place, found = folder / self.path, Hasher(threads=1)
        with writing(place), place.open("rb") as file:
            left = self._hasher.size
            while left and (piece := file.read(min(_CHUNK, left))):
                found.update(piece)
                left -= len(piece)
        if left or found.hexdigest() != self._hasher.hexdigest():
            raise BadArtifact(
                f"{place}: not the bytes that were published", hint=f"put {self.path} back, or publish elsewhere"
            )
