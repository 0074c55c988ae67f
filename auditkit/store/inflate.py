"""Streaming zstd (RFC 8878) of a part of a file: the size is known beforehand, and memory stays small."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS
from auditkit.store.limits import StoreLimits

_HEAD_BYTES = 18  # the longest frame header, RFC 8878 section 3.1.1.1
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
# Frames with a large window are decompressed by one thread at a time, or each would take up to 128 MiB.
_LARGE = threading.RLock()


def inflate(
    path: Path, offset: int, length: int, out: memoryview, raw_length: int, what: str, limits: StoreLimits
) -> Iterator[memoryview]:
    """The `raw_length` bytes that `length` bytes of zstd at `offset` of the file hold, piece by piece.

    If `out` has room for all, the pieces are consecutive parts of it; else each is the beginning of `out`, valid until
    the next. Several frames, skippable frames and frames without a content size are read. BadArtifact naming `what`
    when they hold another number of bytes, or need a window above the cap. OSError if the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        window = _check_head(file.read(min(_HEAD_BYTES, length)), raw_length, what)
        file.seek(offset)
        if window > limits.large_window_bytes:
            with _LARGE:
                yield from _pieces(_section(file, length), out, raw_length, what, limits)
        else:
            yield from _pieces(_section(file, length), out, raw_length, what, limits)


def _pieces(
    section: IO[bytes], out: memoryview, raw_length: int, what: str, limits: StoreLimits
) -> Iterator[memoryview]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    kept = len(out) >= raw_length
    done = 0
    try:
        with decompressor.stream_reader(section, read_size=limits.chunk_bytes, read_across_frames=True) as reader:
            while done < raw_length:
                room = min(limits.chunk_bytes, raw_length - done, len(out))
                piece = out[done : done + room] if kept else out[:room]
                n = reader.readinto(piece)
                if not n:
                    raise BadArtifact(f"{what}: {done:,} bytes when decompressed, {raw_length:,} are expected")
                done += n
                yield piece[:n]
            if reader.read(1):
                raise BadArtifact(f"{what}: more than the expected {raw_length:,} bytes when decompressed")
    except zstandard.ZstdError as error:
        cap = LIMITS.zstd_window_bytes
        raise BadArtifact(f"{what}: zstd cannot read it within a window of {cap:,} bytes: {error}") from None


class _Section(io.RawIOBase):
    """The next `length` bytes of an open file, as a file of its own."""

    def __init__(self, file: Any, length: int) -> None:
        self._file, self._left = file, length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _section(file: Any, length: int) -> IO[bytes]:
    # zstandard asks for no more than read(); the annotation is its own.
    return cast("IO[bytes]", _Section(file, length))


def _check_head(head: bytes, raw_length: int, what: str) -> int:
    """The window in bytes that a frame with this `head` may need."""
    if int.from_bytes(head[:4], "little") in _SKIPPABLE:
        return LIMITS.zstd_window_bytes  # the frame after it may have any
    try:
        parameters = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        raise BadArtifact(f"{what}: does not begin with a zstd frame") from None
    if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > raw_length:
        raise BadArtifact(
            f"{what}: the zstd frame claims {parameters.content_size:,} bytes, {raw_length:,} are expected"
        )
    if parameters.window_size > LIMITS.zstd_window_bytes:
        cap = LIMITS.zstd_window_bytes
        raise BadArtifact(
            f"{what}: zstd window of {parameters.window_size:,} bytes, at most {cap:,} are allowed",
            hint="compress again without --long or --ultra",
        )
    return int(parameters.window_size)
