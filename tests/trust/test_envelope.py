"""Envelopes: one signature, by a known key, over the pre-authentication encoding of one type; others verify ours."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as Dsse
from securesystemslib.signer import SSlibKey

from auditkit.errors import BadArtifact, Untrusted
from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope, Signature, pae
from auditkit.formats.statement import Statement, Subject
from auditkit.trust.envelope import sign, sign_payload, signer
from tests.formats.attestations import KEY, KEYS, MATCH, OTHER_KEY, SHA256

STATEMENT = MATCH.statement(SHA256)
KEYID = KEY.public.keyid


def made(signed: bytes, payload: bytes = b"{}", payload_type: str = PAYLOAD_TYPE) -> Envelope:
    """An envelope with KEY's signature over any bytes."""
    return Envelope(payload_type, payload, (Signature(KEYID, KEY.sign(signed)),))


def test_the_signer_of_an_envelope_is_found() -> None:
    envelope = sign(STATEMENT, KEY)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    assert Statement.parse(envelope.payload) == STATEMENT
    assert signer(envelope, KEYS) == KEY.public
    assert envelope.signatures == (Signature(KEYID, KEY.sign(pae(envelope.payload_type, envelope.payload))),)


def test_signing_again_gives_the_same_bytes() -> None:
    assert sign(STATEMENT, KEY).encode() == sign(STATEMENT, KEY).encode()


@given(st.binary(min_size=1, max_size=40))
def test_another_payload_type_needs_a_reader_who_asks_for_it(payload: bytes) -> None:
    envelope = sign_payload(payload, "application/x-other", KEY)
    assert signer(envelope, KEYS, payload_type="application/x-other") == KEY.public
    with pytest.raises(Untrusted, match='envelope: payload of type "application/x-other", not "application/vnd'):
        signer(envelope, KEYS)


def test_another_library_verifies_our_envelopes() -> None:
    for key in (KEY, OTHER_KEY):
        theirs = Dsse.from_dict(json.loads(sign(STATEMENT, key).encode()))
        known = SSlibKey(key.public.keyid, "ed25519", "ed25519", {"public": key.public.raw.hex()})
        assert list(theirs.verify([known], 1)) == [key.public.keyid]


BODY = b'{"caf\xc3\xa9":1}'
WRONG_BYTES = {
    "the raw payload": BODY,
    "its base64": base64.b64encode(BODY),
    "a length in characters": b"DSSEv1 %d %b %d %b" % (28, PAYLOAD_TYPE.encode(), len(BODY.decode()), BODY),
    "another type": pae("application/json", BODY),
    "PAE of the base64": pae(PAYLOAD_TYPE, base64.b64encode(BODY)),
    "another version": pae(PAYLOAD_TYPE, BODY).replace(b"DSSEv1", b"DSSEv2"),
}


@pytest.mark.parametrize("name", WRONG_BYTES)
def test_a_signature_over_other_bytes_is_refused(name: str) -> None:
    assert signer(made(pae(PAYLOAD_TYPE, BODY), BODY), KEYS) == KEY.public
    with pytest.raises(Untrusted, match="does not fit what it signs"):
        signer(made(WRONG_BYTES[name], BODY), KEYS)


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(Untrusted, match=f"signed by key {KEY.public.keyid8}, which is not known here") as caught:
        signer(sign(STATEMENT, KEY), {OTHER_KEY.public.keyid: OTHER_KEY.public})
    assert caught.value.hint == f"its keyid is {KEYID}"
    with pytest.raises(Untrusted, match="is not known here"):
        signer(sign(STATEMENT, KEY), {KEYID: OTHER_KEY.public})


def test_a_keyid_that_is_not_that_of_the_signing_key_is_refused() -> None:
    envelope = sign(STATEMENT, KEY)
    renamed = Envelope(
        envelope.payload_type, envelope.payload, (Signature(OTHER_KEY.public.keyid, envelope.signatures[0].sig),)
    )
    with pytest.raises(Untrusted, match="does not fit what it signs"):
        signer(renamed, KEYS)


def test_several_signatures_are_refused_though_each_is_valid() -> None:
    one, other = sign(STATEMENT, KEY), sign(STATEMENT, OTHER_KEY)
    both = Envelope(one.payload_type, one.payload, one.signatures + other.signatures)
    with pytest.raises(Untrusted, match="envelope: 2 signatures, one is expected"):
        signer(both, KEYS)
    with pytest.raises(Untrusted, match="envelope: 0 signatures, one is expected"):
        signer(Envelope(one.payload_type, one.payload, ()), KEYS)


def test_what_no_reader_accepts_is_not_signed() -> None:
    with pytest.raises(BadArtifact, match=r"statement\.subject: 0 items"):
        sign(Statement((), "urn:x", {}), KEY)
    with pytest.raises(BadArtifact, match="float is not allowed"):
        sign(Statement((Subject("a", SHA256),), "urn:x", {"loss": 1.5}), KEY)
    with pytest.raises(BadArtifact, match="envelope: .* bytes, at most 65536 are allowed"):
        sign_payload(bytes(60_000), PAYLOAD_TYPE, KEY)
    with pytest.raises(BadArtifact, match="envelope.payload: 0 characters"):
        sign_payload(b"", PAYLOAD_TYPE, KEY)
    with pytest.raises(BadArtifact, match="is not ASCII"):
        sign_payload(b"{}", "application/caf\u00e9", KEY)
