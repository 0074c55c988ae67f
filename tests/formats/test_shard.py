"""Shards: header frame and tensor frames together are a safetensors file that the library reads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import safetensors.numpy

from auditkit.errors import BadArtifact
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.shard import check_header, header_of
from auditkit.formats.state import FrameEntry, ShardEntry, StateIndex
from auditkit.formats.zstd import decompress
from tests.formats.samples import DOCUMENT, TENSORS, shard

KEYS = list(TENSORS)
ENTRY, DATA = shard(KEYS[:4], "shard-00000.safetensors.zst")
HEADER = decompress(DATA[: ENTRY.frames[0].length], size=ENTRY.frames[0].raw_length, what="header")


def test_a_whole_shard_is_a_file_of_the_library() -> None:
    raw = decompress(DATA, size=sum(frame.raw_length for frame in ENTRY.frames), what="shard")
    found = safetensors.numpy.load(raw)
    assert sorted(found) == sorted(f"{role}/{name}" for role, name in KEYS[:4])
    for role, name in KEYS[:4]:
        assert found[f"{role}/{name}"].tobytes() == TENSORS[role, name].tobytes()
        assert found[f"{role}/{name}"].shape == TENSORS[role, name].shape


def test_each_frame_alone_is_a_tensor() -> None:
    for frame in ENTRY.frames[1:]:
        part = DATA[frame.offset : frame.offset + frame.length]
        raw = decompress(part, size=frame.raw_length, what="tensor")
        assert raw == TENSORS[frame.role, frame.name].tobytes()


def test_two_shards_hold_the_whole_state() -> None:
    index = StateIndex((ENTRY, shard(KEYS[4:], "shard-00001.safetensors.zst")[0]))
    index.check_covers(DOCUMENT)
    assert StateIndex.parse(index.encode()) == index


def test_a_header_that_fits_passes() -> None:
    check_header(HEADER, ENTRY, DOCUMENT)
    empty, data = shard([], "shard-00002.safetensors.zst")
    check_header(decompress(data, size=empty.frames[0].raw_length, what="header"), empty, DOCUMENT)


def with_header(tensors: list[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, ShardEntry]:
    """Another header for the same frames, and the entry with its size."""
    data = SafetensorsHeader.of(tensors).encode()
    first = dataclasses.replace(ENTRY.frames[0], raw_length=len(data))
    return data, dataclasses.replace(ENTRY, frames=(first, *ENTRY.frames[1:]))


LISTED = [(e.name, e.dtype, e.shape) for e in header_of(DOCUMENT.tensors[:4]).tensors]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("param/embedding", "F32", (4, 3)), *LISTED[1:]],
         'header lists tensor "param/embedding" where the index has "adam_m/embedding"'),
        ([LISTED[0], ("adam_m/norm", "I32", (3,)), *LISTED[2:]],
         'tensor "adam_m/norm" is I32 [3], the state document says F32 [3]'),
        ([("adam_m/embedding", "F32", (3, 4)), *LISTED[1:]],
         'tensor "adam_m/embedding" is F32 [3, 4], the state document says F32 [4, 3]'),
        ([("a", "F32", (4, 3)), ("b", "F32", (6,)), ("c", "F32", (4, 3))], "header lists 3 tensors, the index 4"),
    ],
)  # fmt: skip
def test_a_header_that_disagrees_says_what_was_expected_and_found(
    tensors: list[tuple[str, str, tuple[int, ...]]], message: str
) -> None:
    data, entry = with_header(tensors)
    with pytest.raises(BadArtifact) as caught:
        check_header(data, entry, DOCUMENT)
    assert caught.value.message.removeprefix('shard "shard-00000.safetensors.zst": ').startswith(message) or (
        message in caught.value.message
    )


def test_a_frame_that_is_not_just_the_header_is_refused() -> None:
    longer = dataclasses.replace(ENTRY.frames[0], raw_length=len(HEADER) + 1)
    with pytest.raises(BadArtifact, match="header of"):
        check_header(HEADER, dataclasses.replace(ENTRY, frames=(longer, *ENTRY.frames[1:])), DOCUMENT)
    swallowed = HEADER + TENSORS[KEYS[0]].tobytes()
    first = FrameEntry("", "header", 0, ENTRY.frames[1].offset + ENTRY.frames[1].length, len(swallowed))
    entry = dataclasses.replace(ENTRY, frames=(first, *ENTRY.frames[2:]))
    with pytest.raises(BadArtifact, match="holds more than the header"):
        check_header(swallowed, entry, DOCUMENT)


def test_a_tensor_that_the_document_lacks_is_refused() -> None:
    fewer = dataclasses.replace(DOCUMENT, tensors=DOCUMENT.tensors[1:])
    with pytest.raises(BadArtifact, match='tensor "adam_m/embedding" is not in the state document'):
        check_header(HEADER, ENTRY, fewer)


def test_samples_are_little_endian() -> None:
    assert all(values.dtype == np.dtype("<f4") for values in TENSORS.values())
