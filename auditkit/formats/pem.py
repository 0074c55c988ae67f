"""Ed25519 keys as PEM files: RFC 7468 text around SubjectPublicKeyInfo or PKCS #8 (RFC 8410).

With one algorithm and no parameters there is one DER form of each, a fixed head and the 32 bytes, so no general reader
of ASN.1 is needed to tell it from all others.
"""

from __future__ import annotations

import base64
import binascii
import re

from auditkit.errors import AuditkitError, BadArtifact, Unsupported, UsageError
from auditkit.formats.limits import LIMITS

PUBLIC, PRIVATE = "PUBLIC KEY", "PRIVATE KEY"

_SPKI = bytes.fromhex("302a300506032b6570032100")  # RFC 8410 section 4
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")  # RFC 8410 section 7, version 1 without attributes

_BEGIN = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----")
_BASE64_LINE = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_NEW_KEY = "make a key of its own for this: auditkit key new FILE"


def spki(raw: bytes) -> bytes:
    """DER SubjectPublicKeyInfo of 32 raw bytes of a public key."""
    return _SPKI + raw


def from_spki(der: bytes, what: str) -> bytes:
    """The 32 raw bytes of a public key; BadArtifact naming `what` for another algorithm or form."""
    if der[: len(_SPKI)] != _SPKI or len(der) != len(_SPKI) + 32:
        raise BadArtifact(f"{what}: not an Ed25519 public key", hint="auditkit signs with Ed25519 only")
    return der[len(_SPKI) :]


def pkcs8(seed: bytes) -> bytes:
    """DER PrivateKeyInfo of the 32 bytes of a private key."""
    return _PKCS8 + seed


def from_pkcs8(der: bytes, what: str) -> bytes:
    """The 32 secret bytes of a private key; BadArtifact naming `what` for another algorithm or form."""
    if der[: len(_PKCS8)] != _PKCS8 or len(der) != len(_PKCS8) + 32:
        raise BadArtifact(f"{what}: not an Ed25519 private key in PKCS #8, version 1", hint=_NEW_KEY)
    return der[len(_PKCS8) :]


def begin(label: str) -> bytes:
    """The line with which a PEM block begins, without its end."""
    return f"-----BEGIN {label}-----".encode("ascii")


def encode(label: str, der: bytes) -> bytes:
    """The PEM text of DER bytes: lines of 64 characters that end in LF."""
    text = base64.b64encode(der).decode("ascii")
    lines = [text[i : i + 64] for i in range(0, len(text), 64)]
    return begin(label) + "\n".join(["", *lines, f"-----END {label}-----", ""]).encode("ascii")


def decode(data: bytes, what: str, *labels: str) -> tuple[str, bytes]:
    """The label and the DER bytes of the only PEM block in `data`, which must have one of `labels`.

    Text before and after the block is ignored, as RFC 7468 has it; CRLF and LF both end a line. BadArtifact naming
    `what`: no block, several, or a damaged one. Unsupported: an encrypted or OpenSSH key. UsageError: a public key
    where a private one is asked for, or the reverse. No message shows any of the contents.
    """
    if len(data) > LIMITS.key_file_bytes:
        raise BadArtifact(f"{what}: {len(data)} bytes, at most {LIMITS.key_file_bytes} are allowed")
    begins = list(_BEGIN.finditer(data))
    if not begins:
        raise _no_block(data, what, labels[0])
    if len(begins) > 1:
        raise BadArtifact(f"{what}: {len(begins)} PEM blocks, one is expected")
    label = begins[0][1].decode("ascii")
    if label not in labels:
        raise _other_label(label, what, labels[0])
    body, end, _ = data[begins[0].end() :].partition(b"-----END " + begins[0][1] + b"-----")
    if not end:
        raise BadArtifact(f"{what}: the PEM block has no end (truncated?)")
    return label, _body(body, what)


def _body(body: bytes, what: str) -> bytes:
    lines = [line.strip(b" \t") for line in body.replace(b"\r\n", b"\n").split(b"\n")]
    if not all(map(_BASE64_LINE.fullmatch, lines)):
        raise BadArtifact(f"{what}: the PEM block holds something other than base64")
    text = b"".join(lines)
    try:
        der = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise BadArtifact(f"{what}: the PEM block is not base64 (truncated?)") from None
    if base64.b64encode(der) != text:
        raise BadArtifact(f"{what}: the PEM block ends in bits that are not zero")
    return der


def _no_block(data: bytes, what: str, wanted: str) -> AuditkitError:
    if b"\0" in data:
        return BadArtifact(f"{what}: not ASCII text (UTF-16?)", hint="save it as ASCII or UTF-8")
    if data.lstrip().startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return Unsupported(f"{what}: an OpenSSH public key, a PEM file is expected", hint=_NEW_KEY)
    return BadArtifact(f"{what}: no PEM block (-----BEGIN {wanted}-----)")


def _other_label(label: str, what: str, wanted: str) -> AuditkitError:
    if label == "ENCRYPTED PRIVATE KEY":
        hint = "openssl pkey -in FILE -out PLAIN takes the passphrase away; keep PLAIN at mode 0600"
        return Unsupported(f"{what}: the private key is encrypted, which is not supported", hint=hint)
    if label == "OPENSSH PRIVATE KEY":
        return Unsupported(f"{what}: a private key of OpenSSH, which is not supported", hint=_NEW_KEY)
    if label == PUBLIC:
        return UsageError(f"{what}: a public key, a private key is needed here")
    if label == PRIVATE:
        hint = "auditkit key show FILE prints the public key"
        return UsageError(f"{what}: a private key, a public key is needed here", hint=hint)
    return BadArtifact(f"{what}: PEM of kind {label.lower()}, not of kind {wanted.lower()}")
