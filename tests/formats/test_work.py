"""Proof of work: the key and the digest, against the `blake3` package and against numbers computed once with it."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.digest import keyed_digest
from auditkit.formats.tensors import tensor_digest
from auditkit.formats.work import work_key, work_of

PUBLIC = bytes(range(32))
RUN_ID = "0123456789abcdef" * 4
KEYS = [  # (step, key), made with the package alone
    (0, "d93dff3951e715cd81eb369553e04df9ce46d046c7f082e8ecb6d6bcaa5156b9"),
    (1, "bdd5baa9f0ededef214707ce16c86ff29f2e4a292d48f0558c36673a5862f812"),
    (9_999_999, "adbb4a6d6e551c0e02d267032314ef27415ad8474e6a2df6a019b22d3b8334d6"),
]
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


def expected_key(public: bytes, run_id: str, step: int) -> bytes:
    """The rule of docs/architecture.md, written with the package alone."""
    hasher = blake3(derive_key_context="auditkit work key v1")
    hasher.update(public)
    hasher.update(bytes.fromhex(run_id))
    hasher.update(struct.pack("<Q", step))
    return hasher.digest()


@pytest.mark.parametrize(("step", "key"), KEYS)
def test_known_keys(step: int, key: str) -> None:
    assert work_key(PUBLIC, RUN_ID, step).hex() == key


def test_known_work() -> None:
    key = work_key(PUBLIC, RUN_ID, 7)
    tensors = {"a": np.arange(6, dtype="<f4"), "b": np.array([-0.0], "<f4"), "c": np.zeros((0, 3), "<f4")}
    found = work_of(key, [tensor_digest(tensors[name], key) for name in sorted(tensors)])
    assert found == "842ecf5e4a93dc315411b445875dbe432a45abd6bfd63ed3243cab4108ffc382"


@given(st.binary(min_size=32, max_size=32), digests, st.integers(0, (1 << 64) - 1))
def test_the_key_is_that_of_the_rule(public: bytes, run_id: str, step: int) -> None:
    assert work_key(public, run_id, step) == expected_key(public, run_id, step)


@given(st.binary(min_size=32, max_size=32), st.lists(digests, min_size=1, max_size=5))
def test_the_work_is_that_of_the_rule(key: bytes, found: list[str]) -> None:
    hasher = blake3(key=key)
    for digest in found:
        hasher.update(bytes.fromhex(digest))
    assert work_of(key, found) == hasher.hexdigest()


def test_auditor_run_and_step_each_change_the_key() -> None:
    other = bytes(31) + b"\1"
    keys = {
        work_key(PUBLIC, RUN_ID, 5),
        work_key(other, RUN_ID, 5),
        work_key(PUBLIC, "f" * 64, 5),
        work_key(PUBLIC, RUN_ID, 6),
        work_key(PUBLIC, RUN_ID, 5 << 8),
    }
    assert len(keys) == 5


def test_order_and_every_digest_count() -> None:
    key = bytes(32)
    a, b = "a" * 64, "b" * 64
    assert len({work_of(key, found) for found in ([a], [b], [a, b], [b, a], [a, b, b])}) == 5


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"32 bytes, not {size}"):
        work_key(bytes(size), RUN_ID, 0)
    with pytest.raises(ValueError, match=f"32 bytes, not {size}"):
        work_of(bytes(size), ["a" * 64])


@pytest.mark.parametrize("step", [-1, 1 << 64])
def test_a_step_outside_64_bits_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        work_key(PUBLIC, RUN_ID, step)


def test_what_is_no_digest_is_refused() -> None:
    with pytest.raises(BadArtifact, match="run id"):
        work_key(PUBLIC, RUN_ID.upper(), 0)
    with pytest.raises(BadArtifact, match="work: not a digest"):
        work_of(bytes(32), ["a" * 63])
    with pytest.raises(BadArtifact, match="no tensors"):
        work_of(bytes(32), [])


@pytest.mark.parametrize("size", [0, 1, 1024, 1025, (1 << 20) - 1, (1 << 20) + 1])
def test_keyed_digests_do_not_depend_on_threads(size: int) -> None:
    data, key = np.random.default_rng(size).bytes(size), bytes(range(32, 64))
    assert keyed_digest(key, data) == blake3(data, key=key, max_threads=1).hexdigest()


def test_keyed_digests_of_arrays_are_of_the_bytes_in_c_order() -> None:
    key = bytes(range(32))
    x = np.arange(12, dtype="<f4").reshape(3, 4)
    want = blake3(x.tobytes(), key=key).hexdigest()
    assert {tensor_digest(y, key) for y in (x, np.asfortranarray(x), x.astype(">f4"))} == {want}
    assert want not in (tensor_digest(x), tensor_digest(x, bytes(32)))
