"""A shard's safetensors header, as the state document and the index say it must be."""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.safetensors import HeaderEntry, SafetensorsHeader
from auditkit.formats.state import ShardEntry, StateDocument, shard_key
from auditkit.formats.tensors import TensorEntry


def header_of(entries: Sequence[TensorEntry]) -> SafetensorsHeader:
    """The header of a shard that stores these tensors back to back in this order, each under the name "role/name"."""
    return SafetensorsHeader.of([(shard_key(entry.role, entry.name), entry.dtype, entry.shape) for entry in entries])


def check_header(data: bytes, shard: ShardEntry, document: StateDocument) -> None:
    """Check the decompressed first frame of a shard: it must list exactly the other frames, as the document has them.

    BadArtifact naming the tensor, what was expected and what was found.
    """
    what = f"shard {shown(shard.path)}"
    if len(data) != shard.frames[0].raw_length:
        raise BadArtifact(f"{what}: header of {len(data)} bytes, the index says {shard.frames[0].raw_length}")
    header = SafetensorsHeader.parse(data, sum(frame.raw_length for frame in shard.frames))
    if len(data) != 8 + len(header.text):
        raise BadArtifact(f"{what}: its first frame holds more than the header")
    described = {entry.order: entry for entry in document.tensors}
    expected = [(frame, described.get((frame.role, frame.name))) for frame in shard.frames[1:]]
    if len(expected) != len(header.tensors):
        raise BadArtifact(f"{what}: header lists {len(header.tensors)} tensors, the index {len(expected)}")
    for (frame, entry), found in zip(expected, header.tensors, strict=True):
        key = shard_key(frame.role, frame.name)
        if entry is None:
            raise BadArtifact(f"{what}: tensor {shown(key)} is not in the state document")
        _check_entry(what, key, entry, found)


def _check_entry(what: str, key: str, entry: TensorEntry, found: HeaderEntry) -> None:
    if found.name != key:
        raise BadArtifact(f"{what}: header lists tensor {shown(found.name)} where the index has {shown(key)}")
    if (found.dtype, found.shape) != (entry.dtype, entry.shape):
        raise BadArtifact(
            f"{what}: tensor {shown(key)} is {found.dtype} {list(found.shape)},"
            f" the state document says {entry.dtype} {list(entry.shape)}"
        )
