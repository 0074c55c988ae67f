"""PEM: the examples of RFC 8410, every kind of file that is not ours, and damaged ones."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import AuditkitError, BadArtifact, Unsupported, UsageError
from auditkit.formats import pem
from auditkit.formats.limits import LIMITS

# RFC 8410, sections 10.1 and 10.3.
SEED = bytes.fromhex("d4ee72dbf913584ad5b6d8f1f769f8ad3afe7c28cbf1d4fbe097a88f44755842")
RAW = bytes.fromhex("19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1")
PUBLIC = (
    b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
    b"-----END PUBLIC KEY-----\n"
)
PRIVATE = (
    b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n"
    b"-----END PRIVATE KEY-----\n"
)


def test_the_examples_of_the_standard() -> None:
    assert pem.encode(pem.PUBLIC, pem.spki(RAW)) == PUBLIC
    assert pem.encode(pem.PRIVATE, pem.pkcs8(SEED)) == PRIVATE
    assert pem.from_spki(pem.decode(PUBLIC, "key", pem.PUBLIC)[1], "key") == RAW
    assert pem.from_pkcs8(pem.decode(PRIVATE, "key", pem.PRIVATE)[1], "key") == SEED


@given(st.binary(max_size=200))
def test_any_bytes_come_back(der: bytes) -> None:
    assert pem.decode(pem.encode("PUBLIC KEY", der), "key", pem.PUBLIC) == (pem.PUBLIC, der)


@pytest.mark.parametrize(
    "data",
    [
        PUBLIC.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + PUBLIC,
        b"keyid  1234\r\n" + PUBLIC + b"vkey  caf\xc3\xa9+1234+abcd\n",
        PUBLIC.replace(b"\n", b"  \n"),
        PUBLIC.rstrip(),
        PUBLIC.replace(b"bBZ9w7", b"bBZ\n9w7"),
    ],
    ids=["CRLF", "byte order mark", "text around it", "blanks at line ends", "no last line end", "another line length"],
)
def test_harmless_differences_are_read(data: bytes) -> None:
    assert pem.from_spki(pem.decode(data, "key", pem.PUBLIC)[1], "key") == RAW


def block(label: str, body: bytes = b"\0" * 48) -> bytes:
    """A PEM file of any kind."""
    return pem.encode(label, body)


OTHERS = {
    "nothing": (b"", BadArtifact, "key: no PEM block (-----BEGIN PUBLIC KEY-----)"),
    "text": (b"hello\n", BadArtifact, "key: no PEM block (-----BEGIN PUBLIC KEY-----)"),
    "UTF-16": (PUBLIC.decode("ascii").encode("utf-16"), BadArtifact, "key: not ASCII text (UTF-16?)"),
    "OpenSSH public": (b"ssh-ed25519 AAAA me@here", Unsupported, "key: an OpenSSH public key, a PEM file is expected"),
    "OpenSSH private": (
        block("OPENSSH PRIVATE KEY"), Unsupported, "key: a private key of OpenSSH, which is not supported"
    ),
    "encrypted": (
        block("ENCRYPTED PRIVATE KEY"), Unsupported, "key: the private key is encrypted, which is not supported"
    ),
    "private": (PRIVATE, UsageError, "key: a private key, a public key is needed here"),
    "certificate": (block("CERTIFICATE"), BadArtifact, "key: PEM of kind certificate, not of kind public key"),
    "RSA, old form": (
        b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n-----END RSA PRIVATE KEY-----\n",
        BadArtifact, "key: PEM of kind rsa private key, not of kind public key",
    ),
    "two": (PUBLIC + PUBLIC, BadArtifact, "key: 2 PEM blocks, one is expected"),
    "cut": (PUBLIC[:60], BadArtifact, "key: the PEM block has no end (truncated?)"),
    "other end": (
        PUBLIC.replace(b"END PUBLIC", b"END PRIVATE"), BadArtifact, "key: the PEM block has no end (truncated?)"
    ),
    "not base64": (
        PUBLIC.replace(b"MCow", b"MC*w"), BadArtifact, "key: the PEM block holds something other than base64"
    ),
    "half a byte": (PUBLIC.replace(b"MCow", b"MCo"), BadArtifact, "key: the PEM block is not base64 (truncated?)"),
    "padding inside": (
        PUBLIC.replace(b"MCow", b"MC==\n"), BadArtifact, "key: the PEM block is not base64 (truncated?)"
    ),
    "second spelling": (
        PUBLIC.replace(b"ZuE=", b"ZuF="), BadArtifact, "key: the PEM block ends in bits that are not zero"
    ),
    "large": (
        PUBLIC + b" " * LIMITS.key_file_bytes, BadArtifact, f"key: {len(PUBLIC) + 16384} bytes, at most 16384 are"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_file_is_refused_by_its_name(name: str) -> None:
    data, kind, message = OTHERS[name]
    with pytest.raises(kind) as caught:
        pem.decode(data, "key", pem.PUBLIC)
    assert caught.value.message.startswith(message)


def test_a_public_key_where_a_private_one_is_needed() -> None:
    with pytest.raises(UsageError, match="key: a public key, a private key is needed here"):
        pem.decode(PUBLIC, "key", pem.PRIVATE)


@pytest.mark.parametrize("der", [pem.spki(RAW)[:-1], pem.spki(RAW) + b"\0", b"", b"\x30" + pem.spki(RAW)[:-1]])
def test_der_of_another_algorithm_or_length_is_no_key(der: bytes) -> None:
    with pytest.raises(BadArtifact, match="key: not an Ed25519 public key"):
        pem.from_spki(der, "key")
    with pytest.raises(BadArtifact, match="key: not an Ed25519 private key in PKCS #8, version 1"):
        pem.from_pkcs8(der, "key")


@given(st.integers(0, len(PRIVATE) - 1), st.integers(0, 255))
def test_a_changed_private_file_is_refused_without_showing_it(place: int, byte: int) -> None:
    data = PRIVATE[:place] + bytes([byte]) + PRIVATE[place + 1 :]
    try:
        pem.decode(data, "key", pem.PRIVATE)
    except AuditkitError as error:
        secret = base64.b64encode(pem.pkcs8(SEED)).decode("ascii")
        assert not any(secret[i : i + 6] in error.message + error.hint for i in range(len(secret) - 6))
