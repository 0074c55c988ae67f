"""Digests: published answers of BLAKE3, and one value whatever the storage, the chunks and the threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats import digest
from auditkit.formats.digest import Hasher, content_digest, keyed_digest, root

# test_vectors.json of the BLAKE3 repository: input of 0 and of 1 byte, hash, derive_key and keyed_hash.
CONTEXT = "BLAKE3 2019-12-27 16:29:52 test vectors context"
KEY = b"whats the Elvish word for friend"
KNOWN = {
    b"": (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d",
        "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
    ),
    b"\0": (
        "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c",
        "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
    ),
}


@pytest.mark.parametrize("data", KNOWN)
def test_the_answers_of_the_specification(data: bytes) -> None:
    assert content_digest(data) == KNOWN[data][0]
    assert root(CONTEXT, data) == KNOWN[data][1]
    assert keyed_digest(KEY, data) == KNOWN[data][2]


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_001])
def test_threads_and_chunks_do_not_matter(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    expected = blake3(data, max_threads=1).hexdigest()
    assert content_digest(data) == expected
    for chunk in (997, 65536, 1 << 20):
        hasher = Hasher()
        for begin in range(0, size, chunk):
            hasher.update(data[begin : begin + chunk])
        assert hasher.hexdigest() == expected
        assert hasher.size == size


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_any_cut_into_updates_gives_one_digest(parts: list[bytes]) -> None:
    hasher = Hasher()
    for part in parts:
        hasher.update(part)
    assert hasher.hexdigest() == content_digest(b"".join(parts))


def test_the_kind_of_buffer_does_not_matter(tmp_path: Path) -> None:
    data = bytes(range(240))
    array = np.frombuffer(data, np.uint8)  # read-only
    mapped = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(240,))
    mapped[:] = array
    for same in (
        data,
        bytearray(data),
        memoryview(data),
        array,
        array.reshape(2, 5, 24),
        array.view(np.float64),
        mapped,
    ):
        assert content_digest(same) == content_digest(data)
    assert content_digest(memoryview(data)[::2]) == content_digest(data[::2])
    assert content_digest(np.zeros((0, 5))) == content_digest(b"")
    assert content_digest(np.float32(1.0).reshape(())) == content_digest(b"\0\0\x80\x3f")


def test_contexts_are_distinct_and_none_is_the_plain_digest() -> None:
    contexts = [digest.STATE_ROOT, digest.GRADIENT_ROOT, digest.BATCH_ROOT, digest.RUN_ID, digest.RECIPE_ROOT]
    assert len({content_digest(b"x"), *(root(context, b"x") for context in contexts)}) == 6


@pytest.mark.parametrize(
    "text", ["", "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", " " + "a" * 63, None, 5, b"a" * 64]
)
def test_only_64_lower_case_digits_are_a_digest(text: object) -> None:
    with pytest.raises(BadArtifact, match="^batch: not a digest"):
        digest.check_digest(text, "batch")


def test_a_digest_is_returned_as_it_is() -> None:
    assert digest.check_digest(digest.ZERO_DIGEST, "previous") == "0" * 64
