"""Points of the curve: every encoding that is no sound key is refused, and every real key passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import Untrusted
from auditkit.trust.point import PRIME, check_point

CASES = json.loads((Path(__file__).parent / "ed25519_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", CASES["small_order"])
def test_the_eight_points_of_small_order_are_refused(text: str) -> None:
    with pytest.raises(Untrusted, match="key: a point of small order, for which anyone can sign"):
        check_point(bytes.fromhex(text), "key")


@pytest.mark.parametrize("text", CASES["non_canonical"])
def test_their_other_encodings_are_refused(text: str) -> None:
    with pytest.raises(Untrusted, match="key: not the canonical encoding of a point"):
        check_point(bytes.fromhex(text), "key")


@pytest.mark.parametrize("sign", [0, 1 << 255])
@pytest.mark.parametrize("y", range(PRIME, 1 << 255))
def test_no_y_beyond_the_prime_is_canonical(y: int, sign: int) -> None:
    with pytest.raises(Untrusted, match="key: not the canonical encoding of a point"):
        check_point((y + sign).to_bytes(32, "little"), "key")


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_another_length_is_refused(size: int) -> None:
    with pytest.raises(Untrusted, match=f"key: {size} bytes, an Ed25519 public key has 32"):
        check_point(bytes(size), "key")


def test_half_of_all_numbers_are_no_point() -> None:
    with pytest.raises(Untrusted, match="key: not a point of the curve"):
        check_point((2).to_bytes(32, "little"), "key")


@given(st.binary(min_size=32, max_size=32))
def test_every_real_key_passes(seed: bytes) -> None:
    check_point(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw(), "key")


@given(st.binary(min_size=32, max_size=32))
def test_arbitrary_bytes_pass_or_are_untrusted(raw: bytes) -> None:
    try:
        check_point(raw, "key")
    except Untrusted as error:
        assert error.message.startswith("key: ")
