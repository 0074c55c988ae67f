"""DSSE: what is signed is what the protocol says, and an envelope has one spelling."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as Dsse

from auditkit.errors import BadArtifact
from auditkit.formats.dsse import Envelope, Signature, pae
from auditkit.formats.limits import LIMITS
from tests.formats.strategies import digests

HELLO = ("http://example.com/HelloWorld", b"hello world")  # secure-systems-lab/dsse, protocol.md, "Test Vectors"

VECTORS = [
    (*HELLO, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"),
    ("application/vnd.in-toto+json", b"{}", b"DSSEv1 28 application/vnd.in-toto+json 2 {}"),  # what cosign signs
    ("", b"", b"DSSEv1 0  0 "),
    ("\u00e9", b"\xff 1", b"DSSEv1 2 \xc3\xa9 3 \xff 1"),  # lengths are bytes, not characters
    ("a 1 b", b"", b"DSSEv1 5 a 1 b 0 "),
]


@pytest.mark.parametrize(("payload_type", "payload", "expected"), VECTORS)
def test_the_signed_bytes_are_those_of_the_protocol(payload_type: str, payload: bytes, expected: bytes) -> None:
    assert pae(payload_type, payload) == expected


def test_the_signature_of_the_protocol_fits_our_bytes() -> None:
    signature = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    )
    x = 46950820868899156662930047687818585632848591499744589407958293238635476079160
    y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
    r, s = (int.from_bytes(signature[i : i + 32], "big") for i in (0, 32))
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    key.verify(utils.encode_dss_signature(r, s), pae(*HELLO), ec.ECDSA(SHA256()))


@given(st.text(st.characters(max_codepoint=127), max_size=20), st.binary(max_size=40))
def test_another_library_signs_the_same_bytes(payload_type: str, payload: bytes) -> None:
    assert pae(payload_type, payload) == Dsse(payload, payload_type, {}).pae()


@given(st.text(max_size=8), st.binary(max_size=8), st.text(max_size=8), st.binary(max_size=8))
def test_no_two_payloads_are_signed_as_one(one: str, first: bytes, two: str, second: bytes) -> None:
    if (one, first) != (two, second):
        assert pae(one, first) != pae(two, second)


envelopes = st.builds(
    Envelope,
    st.text("abc/+.", min_size=1, max_size=20),
    st.binary(min_size=1, max_size=60),
    st.lists(
        st.builds(Signature, digests, st.binary(min_size=64, max_size=64)),
        min_size=1,
        max_size=3,
        unique_by=lambda signature: signature.keyid,
    ).map(tuple),
)


@given(envelopes)
def test_an_envelope_is_printed_and_parsed_back(envelope: Envelope) -> None:
    data = envelope.encode()
    assert Envelope.parse(data) == envelope
    assert Envelope.parse(data).encode() == data
    theirs = Dsse.from_dict(json.loads(data))
    assert (theirs.payload, theirs.payload_type) == (envelope.payload, envelope.payload_type)


def test_an_envelope_of_many_bytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadArtifact, match=f"at most {LIMITS.envelope_bytes} are allowed"):
        Envelope.parse(b"{" + b" " * LIMITS.envelope_bytes)
