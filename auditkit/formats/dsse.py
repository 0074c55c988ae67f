"""DSSE envelopes (https://github.com/secure-systems-lab/dsse): a payload, its type, and signatures over both.

DSSE leaves the JSON free; here it is canonical, so that an envelope has one digest, and keyids and signatures have one
form: SHA-256 of the public key, and the 64 bytes of Ed25519. Nothing here verifies a signature: see trust/envelope.py.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import decode_base64

PAYLOAD_TYPE = "application/vnd.in-toto+json"  # an in-toto Statement
SIGNATURE_BYTES = 64


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding (DSSE protocol.md), with both lengths in bytes."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature (64 bytes) and the keyid of the key that is said to have made it."""

    keyid: Digest
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed payload, the signatures not yet verified: nothing of it is to be believed."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The envelope of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="envelope", limit=LIMITS.envelope_bytes), "envelope")
        envelope = cls(
            payload_type=_media_type(fields, "payloadType"),
            payload=_base64(fields, "payload"),
            signatures=tuple(map(_signature, fields.rows("signatures", 1, LIMITS.envelope_signatures))),
        )
        fields.done()
        if len({signature.keyid for signature in envelope.signatures}) != len(envelope.signatures):
            raise BadArtifact("envelope.signatures: one keyid is listed twice")
        return envelope

    def encode(self) -> bytes:
        """Canonical JSON."""
        listed = [{"keyid": s.keyid, "sig": base64.b64encode(s.sig).decode("ascii")} for s in self.signatures]
        payload = base64.b64encode(self.payload).decode("ascii")
        value = {"payload": payload, "payloadType": self.payload_type, "signatures": listed}
        return canonical.dumps(value, what="envelope")


def _signature(fields: Fields) -> Signature:
    signature = Signature(keyid=fields.digest("keyid"), sig=_base64(fields, "sig"))
    if len(signature.sig) != SIGNATURE_BYTES:
        raise BadArtifact(f"{fields.name('sig')}: {len(signature.sig)} bytes, {SIGNATURE_BYTES} are expected")
    fields.done()
    return signature


def _media_type(fields: Fields, key: str) -> str:
    """Printable ASCII, which media types and URIs are: of other texts some libraries sign a wrong length."""
    text = fields.text(key)
    if not text.isascii():
        raise BadArtifact(f"{fields.name(key)}: {shown(text)} is not ASCII")
    return text


def _base64(fields: Fields, key: str) -> bytes:
    return decode_base64(fields.text(key, limit=LIMITS.envelope_bytes), fields.name(key))
