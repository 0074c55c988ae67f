"""State documents and indexes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.digest import STATE_ROOT, root
from auditkit.formats.state import FrameEntry, ShardEntry, StateDocument, StateIndex, StateTexts, shard_key
from auditkit.formats.tensors import TensorEntry
from auditkit.formats.zstd import decompress
from tests.formats.samples import DOCUMENT, INDEX, TENSORS, array, digest_of, shard
from tests.formats.strategies import counts, digests, documents
from tests.same_bits import assert_same_bits


def test_the_root_is_that_of_the_canonical_text() -> None:
    assert DOCUMENT.root() == root(STATE_ROOT, DOCUMENT.encode())


@pytest.mark.parametrize("key", ["step", "sequence", "seed", "recipe"])
def test_everything_that_decides_the_next_step_is_in_the_root(key: str) -> None:
    value = digest_of("other") if key == "recipe" else getattr(DOCUMENT, key) + 1
    assert dataclasses.replace(DOCUMENT, **{key: value}).root() != DOCUMENT.root()


@pytest.mark.parametrize("missing", range(6))
def test_every_tensor_is_in_the_root(missing: int) -> None:
    fewer = tuple(entry for i, entry in enumerate(DOCUMENT.tensors) if i != missing)
    other = dataclasses.replace(DOCUMENT.tensors[missing], digest=digest_of("other"))
    changed = tuple(other if i == missing else entry for i, entry in enumerate(DOCUMENT.tensors))
    roots = {dataclasses.replace(DOCUMENT, tensors=tensors).root() for tensors in (fewer, changed, DOCUMENT.tensors)}
    assert len(roots) == 3


def test_tensors_may_be_given_in_any_order_to_of_only() -> None:
    backwards = DOCUMENT.tensors[::-1]
    same = StateDocument.of(DOCUMENT.step, DOCUMENT.sequence, DOCUMENT.seed, DOCUMENT.recipe, backwards)
    assert same == DOCUMENT
    with pytest.raises(BadArtifact, match="is out of order"):
        dataclasses.replace(DOCUMENT, tensors=backwards)


def test_a_state_without_tensors_has_no_root() -> None:
    with pytest.raises(BadArtifact, match="state document: no tensors"):
        StateDocument.of(0, 0, 0, DOCUMENT.recipe, [])


def test_its_bytes_are_counted() -> None:
    assert DOCUMENT.nbytes == 3 * (12 + 3) * 4


@pytest.mark.parametrize(("key", "value"), [("step", True), ("sequence", -1), ("seed", 1 << 53), ("recipe", "A" * 64)])
def test_a_document_made_in_code_is_checked_as_well(key: str, value: object) -> None:
    with pytest.raises(BadArtifact, match=rf"state document\.{key}"):
        dataclasses.replace(DOCUMENT, **{key: value})  # type: ignore[arg-type]


def test_the_index_covers_the_document() -> None:
    INDEX.check_covers(DOCUMENT)


def other_document(change: Callable[[tuple[TensorEntry, ...]], Any]) -> StateDocument:
    """The sample with other tensors."""
    return dataclasses.replace(DOCUMENT, tensors=tuple(change(DOCUMENT.tensors)))


def test_an_index_that_covers_another_set_of_tensors_is_refused() -> None:
    extra = TensorEntry.of("z", "param", array(0, 2))
    wider = dataclasses.replace(DOCUMENT.tensors[0], shape=(4, 4))
    with pytest.raises(BadArtifact, match='tensor "param/z" of the state document is not stored'):
        INDEX.check_covers(other_document(lambda tensors: (*tensors, extra)))
    with pytest.raises(BadArtifact, match='tensor "param/norm" is not in the state document'):
        INDEX.check_covers(other_document(lambda tensors: tensors[:-1]))
    with pytest.raises(BadArtifact, match='tensor "adam_m/embedding" has 48 bytes, its shape needs 64'):
        INDEX.check_covers(other_document(lambda tensors: (wider, *tensors[1:])))


def test_a_whole_shard_is_a_file_of_the_safetensors_library() -> None:
    keys = list(TENSORS)[:4]
    entry, data = shard(keys, "shard-00000.safetensors.zst")
    raw = decompress(data, size=sum(frame.raw_length for frame in entry.frames), what="shard")
    found = safetensors.numpy.load(raw)
    assert sorted(found) == sorted(shard_key(role, name) for role, name in keys)
    for role, name in keys:
        assert_same_bits(found[shard_key(role, name)], TENSORS[role, name])


def test_each_frame_alone_is_a_tensor_and_all_shards_are_the_state() -> None:
    shards = [shard(list(TENSORS)[:4], "a.zst"), shard(list(TENSORS)[4:], "b.zst")]
    index = StateIndex(tuple(entry for entry, _ in shards))
    index.check_covers(DOCUMENT)
    assert StateIndex.parse(index.encode()) == index
    for entry, data in shards:
        for frame in entry.frames[1:]:
            part = data[frame.offset : frame.offset + frame.length]
            assert decompress(part, size=frame.raw_length, what="tensor") == TENSORS[frame.role, frame.name].tobytes()


def test_shards_and_frames_made_in_code_are_checked_as_well() -> None:
    header = FrameEntry("", "header", 0, 10, 20)
    with pytest.raises(BadArtifact, match="the first frame is not the safetensors header"):
        ShardEntry("a.zst", 10, DOCUMENT.recipe, ())
    with pytest.raises(BadArtifact, match="a second header frame"):
        ShardEntry("a.zst", 20, DOCUMENT.recipe, (header, FrameEntry("", "header", 10, 10, 20)))
    with pytest.raises(BadArtifact, match="role"):
        FrameEntry("a", "grad", 0, 1, 1)
    with pytest.raises(BadArtifact, match="length: 0 is outside"):
        FrameEntry("a", "param", 0, 0, 1)
    with pytest.raises(BadArtifact, match="state index: no shards"):
        StateIndex(())
    with pytest.raises(BadArtifact, match="is one file|are one file"):
        StateIndex((ShardEntry("index.json", 10, DOCUMENT.recipe, (header,)),))


@given(documents, st.data())
def test_roots_from_texts_are_those_of_the_documents(document: StateDocument, data: st.DataObject) -> None:
    """Every step has a root; it is that of RFC 8785's text, whatever differs from step to step."""
    step, sequence = data.draw(st.integers(0, 10_000_000)), data.draw(counts)
    found = [data.draw(digests) for _ in document.tensors]
    tensors = tuple(
        dataclasses.replace(entry, digest=digest) for entry, digest in zip(document.tensors, found, strict=True)
    )
    other = dataclasses.replace(document, step=step, sequence=sequence, tensors=tensors)
    text = rfc8785.dumps(json.loads(other.encode()))
    assert StateTexts(document).root(step, sequence, found) == other.root() == root(STATE_ROOT, text)


def test_roots_from_texts_have_the_limits_of_documents() -> None:
    texts, found = StateTexts(DOCUMENT), [entry.digest for entry in DOCUMENT.tensors]
    for step, sequence in ((-1, 0), (10_000_001, 0), (0, -1), (0, 1 << 53)):
        with pytest.raises(BadArtifact, match="state document"):
            texts.root(step, sequence, found)
