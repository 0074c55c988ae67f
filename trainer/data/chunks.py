"""The bytes of a file piece by piece, decompressed where its name says so; a file that ends too early is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS
from trainer.data.inputs import Input
from trainer.disk import writing

Advance = Callable[[int], None]
"""Told how many further bytes of the disk were read."""

_READ = 1 << 20
# Of compressed bytes at once: 4 bytes of zstd can make 128 KiB, so that this many make 128 MiB and no more.
_FEED = 1 << 12


def chunks(file: Input, advance: Advance) -> Iterator[bytes]:
    """The contents of a file. Raises Unavailable, BadArtifact where it is not zstd, ends too early, or has changed."""
    with writing(file.path), file.path.open("rb") as opened:
        pieces = _counted(iter(lambda: opened.read(_READ), b""), file, advance)
        yield from _inflated(pieces, file) if file.packed else pieces


def _counted(pieces: Iterator[bytes], file: Input, advance: Advance) -> Iterator[bytes]:
    """The pieces, as many bytes as the file had when it was found: it is read twice, and must be the same."""
    left = file.size
    for piece in pieces:
        advance(len(piece))
        left -= len(piece)
        yield piece
    if left:
        raise BadArtifact(
            f"{file.path}: its size has changed while it was read", hint="prepare again when it is complete"
        )


def _inflated(pieces: Iterator[bytes], file: Input) -> Iterator[bytes]:
    """Several frames and skippable ones are read; a window above the limit of the formats is refused."""
    library = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    frame: Any = None
    for data in _small(pieces):
        while data:
            frame = frame or library.decompressobj()
            try:
                out = frame.decompress(data)
            except zstandard.ZstdError as error:
                cap = LIMITS.zstd_window_bytes
                raise BadArtifact(
                    f"{file.path}: not zstd that a window of {cap} bytes can read: {error}",
                    hint="compress it again without --long and --ultra",
                ) from error
            if out:
                yield out
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None or not file.size:
        raise BadArtifact(f"{file.path}: ends within a zstd frame (truncated?)")


def _small(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), _FEED):
            yield piece[begin : begin + _FEED]
