"""The token stream: no id wraps, a frame is what its index row says, a batch is named by digest, dtype and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats import canonical, zstd
from auditkit.formats.digest import BATCH_ROOT, content_digest, root
from auditkit.formats.stream import (
    FrameRow,
    StreamIndex,
    batch_digest,
    check_tokens,
    decode_frame,
    decode_ids,
    dtype_for,
    encode_frame,
    frame_row,
    to_tokens,
)
from auditkit.formats.tensors import DTYPES
from tests.formats.samples import BATCHES, real_frames
from tests.same_bits import assert_same_bits

BATCH = BATCHES[1]
ROW, FRAME = real_frames()[1]


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(2, "U16"), (65535, "U16"), (65536, "U16"), (65537, "U32"), (100277, "U32"), (1 << 20, "U32")]
)
def test_the_vocabulary_decides_the_dtype(vocab: int, dtype: str) -> None:
    assert dtype_for(vocab) == dtype
    last = to_tokens([[0, vocab - 1]], dtype, vocab)
    assert last[0, 1] == vocab - 1
    assert last.dtype == {"U16": "<u2", "U32": "<u4"}[dtype]


@pytest.mark.parametrize(
    ("ids", "vocab", "message"),
    [
        ([0, 65536], 65536, "tokens: id 65536 at 1 is outside a vocabulary of 65536"),
        ([70000, 1], 65536, "tokens: id 70000 at 0 is outside a vocabulary of 65536"),
        ([5, -1], 65536, "tokens: id -1 at 1 is outside a vocabulary of 65536"),
        ([512], 512, "tokens: id 512 at 0 is outside a vocabulary of 512"),
        ([1.0], 512, "tokens: dtype float64 is not an integer"),
        ([True], 512, "tokens: dtype bool is not an integer"),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_not_wrapped(ids: list[Any], vocab: int, message: str) -> None:
    with pytest.raises(BadArtifact) as caught:
        to_tokens(ids, "U16", vocab)
    assert caught.value.message == message


def test_a_vocabulary_that_does_not_fit_is_refused_even_when_the_ids_do() -> None:
    with pytest.raises(BadArtifact, match="a vocabulary of 65537 does not fit U16"):
        to_tokens([1, 2], "U16", 65537)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_a_frame_is_read_back(dtype: Any) -> None:
    tokens = BATCH.astype(dtype)
    frame = encode_frame(tokens)
    row = frame_row(7, frame, tokens)
    name = f"U{8 * tokens.itemsize}"
    assert_same_bits(decode_frame(frame, row.raw_length, name, (3, 9), digest=row.digest), tokens)
    assert row == FrameRow(7, len(frame), tokens.nbytes, content_digest(tokens))
    assert encode_frame(tokens.astype(tokens.dtype.newbyteorder(">"))) == frame
    assert encode_frame(np.asfortranarray(tokens)) == frame


def test_decoded_tokens_cannot_be_changed_by_accident() -> None:
    assert not decode_frame(FRAME, ROW.raw_length, "U16", (3, 9)).flags.writeable


def test_a_frame_that_is_not_what_the_row_says_is_refused() -> None:
    other = content_digest(b"other")
    with pytest.raises(BadArtifact, match=f"tokens have digest {ROW.digest}, the index says {other}"):
        decode_frame(FRAME, ROW.raw_length, "U16", (3, 9), digest=other)
    with pytest.raises(BadArtifact, match="54 bytes do not make U32 of shape"):
        decode_frame(FRAME, ROW.raw_length, "U32", (3, 9))
    with pytest.raises(BadArtifact, match="do not make U16 of shape"):
        decode_frame(FRAME, ROW.raw_length, "U16", (3, 8))
    with pytest.raises(BadArtifact, match="token frame: zstd frame claims 54 bytes, at most 52 can follow"):
        decode_frame(FRAME, 52, "U16", (2, 13))
    with pytest.raises(BadArtifact, match="^token frame: "):
        decode_frame(FRAME[:-1], ROW.raw_length, "U16", (3, 9))
    with pytest.raises(BadArtifact, match="dtype I64 is not U16 or U32"):
        decode_frame(FRAME, ROW.raw_length, "I64", (3, 9))


def test_a_batch_is_named_by_digest_dtype_and_shape() -> None:
    expected = canonical.dumps({"digest": content_digest(BATCH), "dtype": "U16", "shape": [3, 9]})
    assert batch_digest(BATCH) == root(BATCH_ROOT, expected)
    same_bytes = np.frombuffer(BATCH.tobytes() + b"\0\0", np.uint32).reshape(2, 7)
    variants = [BATCH, BATCH.reshape(9, 3), BATCH.reshape(1, 27), BATCH.astype(np.uint32), same_bytes]
    assert len({batch_digest(variant) for variant in variants}) == 5


def test_how_the_tokens_are_held_does_not_matter_when_the_dtype_of_the_stream_is_given() -> None:
    held: list[Any] = [BATCH, BATCH.astype(np.int64), BATCH.astype(">u4"), np.asfortranarray(BATCH.astype(np.int32))]
    assert {batch_digest(tokens, "U16") for tokens in held} == {batch_digest(BATCH)}
    assert batch_digest(BATCH, "U32") == batch_digest(BATCH.astype(np.uint32))


def test_a_batch_that_the_stream_cannot_hold_has_no_digest() -> None:
    for tokens, dtype in (
        (BATCH.astype(np.int64), None),
        (BATCH[0], None),
        (BATCH[:0], None),
        (np.array([[65536]]), "U16"),
        (np.array([[-1]]), "U32"),
        (BATCH, "I64"),
    ):
        with pytest.raises(BadArtifact, match="^tokens: "):
            batch_digest(tokens, dtype)


def test_check_tokens_takes_what_is_inside() -> None:
    check_tokens(BATCH, 65536)
    check_tokens(np.zeros((0,), np.int64), 2)
    with pytest.raises(BadArtifact, match="id 27 at 26"):
        check_tokens(BATCH, 27)


def test_the_index_lies_back_to_back_and_knows_the_length_of_the_stream() -> None:
    rows = [row for row, _ in real_frames()]
    data = b"".join(frame for _, frame in real_frames())
    index = StreamIndex(tuple(rows))
    assert index.total_length == len(data)
    assert StreamIndex.parse(index.encode()) == index
    assert StreamIndex(()).total_length == 0
    for row, batch in zip(rows, BATCHES, strict=True):
        part = data[row.offset : row.offset + row.length]
        assert_same_bits(decode_frame(part, row.raw_length, "U16", batch.shape, digest=row.digest), batch)


def test_an_index_made_in_code_is_checked_as_well() -> None:
    digest = content_digest(b"")
    with pytest.raises(BadArtifact, match="frame of step 1 starts at byte 5, not at 4"):
        StreamIndex((FrameRow(0, 4, 4, digest), FrameRow(5, 4, 4, digest)))
    with pytest.raises(BadArtifact, match="out of range"):
        StreamIndex((FrameRow(0, 1 << 32, 4, digest),)).encode()


@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(["U16", "U32"]))
def test_the_batch_digest_is_that_of_the_canonical_document(sequences: int, width: int, dtype: str) -> None:
    tokens = np.arange(sequences * width, dtype=DTYPES[dtype]).reshape(sequences, width)
    value = {"digest": content_digest(tokens), "dtype": dtype, "shape": [sequences, width]}
    assert batch_digest(tokens) == root(BATCH_ROOT, canonical.dumps(value))


def test_ids_are_those_of_the_manifest_or_refused() -> None:
    ids = np.arange(40, dtype=np.uint16)
    packed = zstd.compress(ids)
    facts: dict[str, Any] = {"count": 40, "dtype": "U16", "vocab_size": 40, "digest": content_digest(ids)}
    assert np.array_equal(decode_ids(packed, **facts), ids)
    for change, message in (
        ({"count": 41}, "80 bytes when decompressed, 82 are expected"),
        ({"count": 39}, "claims 80 bytes, at most 78"),
        ({"dtype": "U32"}, "80 bytes when decompressed, 160 are expected"),
        ({"vocab_size": 39}, "id 39 at 39 is outside a vocabulary of 39"),
        ({"digest": content_digest(b"")}, "the ids have digest"),
    ):
        with pytest.raises(BadArtifact, match=message):
            decode_ids(packed, **{**facts, **change})
