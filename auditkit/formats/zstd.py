"""Bounded zstd (RFC 8878): the size is known beforehand, so no header can make a reader ask for more.

Compressed bytes differ between library versions; nothing's identity rests on them, only the transport digests of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from auditkit.errors import BadArtifact
from auditkit.formats.digest import BytesLike, flat_bytes
from auditkit.formats.limits import LIMITS

LEVEL = 3

_SKIPPABLE_MAGIC = 0x184D2A50  # to ...5F, RFC 8878 section 3.1.2
_FRAME_MAGIC = 0xFD2FB528
_RAW, _RLE = 0, 1
_BLOCK_BYTES = 128 * 1024  # no block holds or yields more, RFC 8878 section 3.1.1.2.4


def compress(data: BytesLike, *, level: int = LEVEL) -> bytes:
    """One frame with content size and checksum, made by one thread."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True, threads=0).compress(flat_bytes(data))


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame lies, whether it is skippable, and the most bytes that its blocks can yield."""

    begin: int
    end: int
    skippable: bool
    most: int


def decompress(data: BytesLike, *, size: int, what: str) -> bytes:
    """The `size` bytes that all frames of `data` hold together; BadArtifact naming `what` otherwise.

    Several frames, skippable frames and frames without a content size are read; trailing bytes, a truncated frame, a
    window above the limit and any other size are refused. Memory: about `size` bytes, whatever the headers claim.
    """
    view = memoryview(flat_bytes(data))
    decompressor = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    parts: list[bytes] = []
    left = size
    for frame in frames(view, what):
        part = _decompress_frame(decompressor, view, frame, left, what)
        left -= len(part)
        parts.append(part)
    if left or not parts:
        raise BadArtifact(f"{what}: {size - left} bytes when decompressed, {size} are expected")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def frames(data: memoryview, what: str) -> Iterator[Frame]:
    """The frames of `data` that hold content, in order; BadArtifact at the first byte that begins no whole frame."""
    position = 0
    while position < len(data):
        frame = _frame_at(data, position, what)
        if not frame.skippable:
            yield frame
        position = frame.end


def _frame_at(data: memoryview, begin: int, what: str) -> Frame:
    magic = int.from_bytes(data[begin : begin + 4], "little")
    if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
        frame = Frame(begin, begin + 8 + int.from_bytes(_exactly(data, begin + 4, 4, what), "little"), True, 0)
    elif magic == _FRAME_MAGIC:
        frame = _walk_blocks(data, begin, what)
    else:
        raise BadArtifact(f"{what}: no zstd frame at byte {begin}")
    if frame.end > len(data):
        raise BadArtifact(f"{what}: truncated zstd frame at byte {begin}")
    return frame


def _walk_blocks(data: memoryview, begin: int, what: str) -> Frame:
    """RFC 8878 section 3.1.1: a header, blocks up to the one marked last, a checksum if the header says so."""
    descriptor = _exactly(data, begin + 4, 1, what)[0]
    position = begin + _header_bytes(descriptor)
    last, most = 0, 0
    while not last:
        header = int.from_bytes(_exactly(data, position, 3, what), "little")
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _RLE else length)
        most += length if kind in (_RAW, _RLE) else _BLOCK_BYTES
    return Frame(begin, position + (4 if descriptor & 4 else 0), False, most)


def _header_bytes(descriptor: int) -> int:
    """Length of magic and frame header, RFC 8878 section 3.1.1.1."""
    single_segment = descriptor >> 5 & 1
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    return 5 + (1 - single_segment) + dictionary + content_size


def _decompress_frame(
    decompressor: zstandard.ZstdDecompressor, data: memoryview, frame: Frame, left: int, what: str
) -> bytes:
    content = data[frame.begin : frame.end]
    try:
        claimed = _content_size(zstandard.get_frame_parameters(content), what)
        limit = min(left, frame.most)
        if claimed is not None and claimed > limit:
            raise BadArtifact(f"{what}: zstd frame claims {claimed} bytes, at most {limit} can follow")
        if claimed == 0 and frame.most:  # the library would not even look at the blocks
            raise BadArtifact(f"{what}: zstd frame claims 0 bytes, but has content")
        # 0 would mean "no limit" to the library
        return decompressor.decompress(content, max_output_size=max(limit, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadArtifact(f"{what}: not a zstd frame of at most {left} bytes: {error}") from None


def _content_size(parameters: zstandard.FrameParameters, what: str) -> int | None:
    """What the frame header claims, None when it says nothing; BadArtifact for a dictionary or too large a window."""
    if parameters.dict_id:
        raise BadArtifact(f"{what}: needs zstd dictionary {parameters.dict_id}, none is used here")
    if parameters.window_size > LIMITS.zstd_window_bytes:
        raise BadArtifact(
            f"{what}: zstd window of {parameters.window_size} bytes, at most {LIMITS.zstd_window_bytes} are allowed",
            hint="compress it again without --long and --ultra",
        )
    unknown = parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    return None if unknown else int(parameters.content_size)


def _exactly(data: memoryview, start: int, length: int, what: str) -> memoryview:
    part = data[start : start + length]
    if len(part) != length:
        raise BadArtifact(f"{what}: truncated zstd frame")
    return part
