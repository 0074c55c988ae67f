"""Safetensors headers: a strict parser and a writer with the library's own layout.

A file is u64 little-endian header length, that many bytes of JSON, then the tensors' bytes. The header's key order and
spacing are no part of a tensor's identity, so any is accepted and kept; holes, overlaps and wraps are not.
Format: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.tensors import check_shape

ITEM_BYTES = {
    "BF16": 2, "BOOL": 1, "F16": 2, "F32": 4, "F64": 8, "I16": 2, "I32": 4, "I64": 8, "I8": 1,
    "U16": 2, "U32": 4, "U64": 8, "U8": 1,
}  # fmt: skip
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor: bytes begin..end, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors in the order of their bytes, and at most one metadata pair (more have no fixed order in the library).

    `text` is the JSON as it stands in the file; it does not count when headers are compared.
    """

    tensors: tuple[HeaderEntry, ...]
    metadata: tuple[str, str] | None
    text: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: tuple[str, str] | None = None) -> Self:
        """The header of (name, dtype, shape) stored back to back in the given order; BadArtifact for a bad one."""
        entries, position = [], 0
        for name, dtype, shape in tensors:
            if dtype not in ITEM_BYTES:
                raise BadArtifact(f"safetensors: tensor {shown(name)}: dtype {shown(str(dtype))} is unknown")
            end = position + math.prod(shape) * ITEM_BYTES[dtype]
            entries.append(HeaderEntry(name, dtype, tuple(shape), position, end))
            position = end
        text = _text(entries, metadata)
        return cls.parse(len(text).to_bytes(8, "little") + text, 8 + len(text) + position)

    @classmethod
    def parse(cls, data: bytes, file_size: int) -> Self:
        """The header of a file of `file_size` bytes; `data` is the file's beginning, at least to the header's end.

        BadArtifact for a length beyond 100 MB or the file, malformed or repeated keys, and tensors whose bytes wrap,
        overlap, leave holes, or do not fit their dtype and shape.
        """
        text = bytes(data[8 : 8 + header_length(data, file_size)])
        if 8 + header_length(data, file_size) > len(data):
            raise BadArtifact("safetensors: the header is truncated")
        if not text.startswith(b"{"):
            raise BadArtifact("safetensors: the header does not begin with {")
        value = canonical.loads_relaxed(text, what="safetensors header", limit=LIMITS.safetensors_header_bytes)
        metadata = _metadata(value.pop(METADATA)) if METADATA in value else None
        if len(value) > LIMITS.tensors_per_state:
            raise BadArtifact(f"safetensors: {len(value)} tensors, at most {LIMITS.tensors_per_state} are allowed")
        entries = sorted((_entry(name, item) for name, item in value.items()), key=lambda e: (e.begin, e.end))
        _check_tiling(entries, file_size - 8 - len(text))
        return cls(tuple(entries), metadata, text)

    def encode(self) -> bytes:
        """The beginning of the file: length and JSON."""
        return len(self.text).to_bytes(8, "little") + self.text

    @property
    def data_size(self) -> int:
        """Bytes of all tensors, which follow the header without holes."""
        return self.tensors[-1].end if self.tensors else 0


def header_length(data: bytes, file_size: int) -> int:
    """Bytes of the JSON header, from the first 8 bytes of a file; BadArtifact when it cannot be."""
    if file_size < 8 or len(data) < 8:
        raise BadArtifact(f"safetensors: a file of {min(file_size, len(data))} bytes has no header length")
    length = int.from_bytes(data[:8], "little")
    if length > LIMITS.safetensors_header_bytes:
        raise BadArtifact(
            f"safetensors: header of {length} bytes, at most {LIMITS.safetensors_header_bytes} are allowed"
        )
    if length < 2 or length > file_size - 8:
        raise BadArtifact(f"safetensors: header of {length} bytes in a file of {file_size}")
    return length


def _metadata(value: canonical.Value) -> tuple[str, str] | None:
    if type(value) is not dict or any(type(item) is not str for item in value.values()):
        raise BadArtifact("safetensors: metadata is not an object of texts")
    if len(value) > 1:
        raise BadArtifact(f"safetensors: {len(value)} metadata keys, at most one is allowed")
    return next(iter(value.items()), None)


def _entry(name: str, value: canonical.Value) -> HeaderEntry:
    what = f"safetensors: tensor {shown(name)}"
    fields = Fields(value, what)
    dtype = fields.choice("dtype", *ITEM_BYTES)
    shape = check_shape(fields.items("shape", 0, LIMITS.tensor_dimensions), ITEM_BYTES[dtype], what)
    offsets = fields.items("data_offsets", 2, 2)
    fields.done()
    if any(type(offset) is not int or offset < 0 for offset in offsets):
        raise BadArtifact(f"{what}: data_offsets are not two integers of 0 and more")
    begin, end = offsets
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise BadArtifact(f"{what}: bytes {begin} to {end}, but {dtype} of shape {list(shape)} has {needed} bytes")
    return HeaderEntry(name, dtype, shape, begin, end)


def _check_tiling(entries: list[HeaderEntry], data_size: int) -> None:
    position = 0
    for entry in entries:
        if entry.begin != position:
            fault = "overlaps the one before" if entry.begin < position else "leaves a hole before it"
            raise BadArtifact(
                f"safetensors: tensor {shown(entry.name)} {fault}: begins at {entry.begin}, not {position}"
            )
        position = entry.end
    if position != data_size:
        last = f"tensor {shown(entries[-1].name)} ends" if entries else "the header ends"
        raise BadArtifact(f"safetensors: {last} at byte {position} of {data_size} (truncated, or bytes are left over)")


def _text(entries: list[HeaderEntry], metadata: tuple[str, str] | None) -> bytes:
    value: dict[str, canonical.Value] = {METADATA: dict([metadata])} if metadata else {}
    for entry in entries:
        if entry.name in value:
            raise BadArtifact(f"safetensors: tensor {shown(entry.name)} is listed twice")
        value[entry.name] = {
            "dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [entry.begin, entry.end]
        }  # fmt: skip
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return text + b" " * (-len(text) % 8)  # the library aligns the data to 8 bytes so
