"""Bounded zstd (RFC 8878): the size is known beforehand, so no header can make a reader ask for more.

Compressed bytes differ between library versions; nothing's identity rests on them, only the transport digests of files.
"""

from __future__ import annotations

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


def decompress(data: BytesLike, *, size: int, what: str) -> bytes:
    """The `size` bytes that all frames of `data` hold together; BadArtifact naming `what` otherwise.

    Several frames, skippable frames and frames without a content size are read; trailing bytes, a truncated frame, a
    window above the limit and any other size are refused. Memory: `size` bytes, whatever the headers claim.
    """
    view = memoryview(flat_bytes(data))
    parts: list[bytes] = []
    position, left = 0, size
    while position < len(view):
        end, skippable = frame_end(view, position, what)
        if not skippable:
            part = _decompress_frame(view[position:end], left, what)
            left -= len(part)
            parts.append(part)
        position = end
    if left or not parts:
        raise BadArtifact(f"{what}: {size - left} bytes when decompressed, {size} are expected")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def frame_end(data: memoryview, start: int, what: str) -> tuple[int, bool]:
    """Where the frame at `start` ends, and whether it is skippable; BadArtifact when it is none or truncated."""
    magic = int.from_bytes(data[start : start + 4], "little")
    if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
        end = start + 8 + int.from_bytes(_exactly(data, start + 4, 4, what), "little")
        if end > len(data):
            raise BadArtifact(f"{what}: truncated zstd frame at byte {start}")
        return end, True
    if magic != _FRAME_MAGIC:
        raise BadArtifact(f"{what}: no zstd frame at byte {start}")
    descriptor = _exactly(data, start + 4, 1, what)[0]
    position = start + _header_bytes(descriptor)
    last = 0
    while not last:
        header = int.from_bytes(_exactly(data, position, 3, what), "little")
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _RLE else length)
    position += 4 if descriptor & 4 else 0  # content checksum
    if position > len(data):
        raise BadArtifact(f"{what}: truncated zstd frame at byte {start}")
    return position, False


def _header_bytes(descriptor: int) -> int:
    """Length of magic and frame header, RFC 8878 section 3.1.1.1."""
    single_segment = descriptor >> 5 & 1
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    return 5 + (1 - single_segment) + dictionary + content_size


def _decompress_frame(frame: memoryview, limit: int, what: str) -> bytes:
    try:
        parameters = zstandard.get_frame_parameters(frame)
        _check_parameters(parameters, limit, what)
        decompressor = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
        # zero would mean "no limit" to the library
        return decompressor.decompress(frame, max_output_size=max(limit, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadArtifact(f"{what}: zstd cannot read it within {limit} bytes: {error}") from None


def _check_parameters(parameters: zstandard.FrameParameters, limit: int, what: str) -> None:
    if parameters.dict_id:
        raise BadArtifact(f"{what}: needs zstd dictionary {parameters.dict_id}, none is used here")
    if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > limit:
        raise BadArtifact(f"{what}: zstd frame claims {parameters.content_size} bytes, {limit} are left")
    if parameters.window_size > LIMITS.zstd_window_bytes:
        raise BadArtifact(
            f"{what}: zstd window of {parameters.window_size} bytes, at most {LIMITS.zstd_window_bytes} are allowed",
            hint="compress again without --long or --ultra",
        )


def _exactly(data: memoryview, start: int, length: int, what: str) -> memoryview:
    part = data[start : start + length]
    if len(part) != length:
        raise BadArtifact(f"{what}: truncated zstd frame")
    return part
