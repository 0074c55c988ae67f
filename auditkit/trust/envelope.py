"""Sign DSSE envelopes and find out who signed one.

securesystemslib knows DSSE; trust/keys.py decides which keys and signatures are sound. The library's own keys are not
used: they take points of small order, and their keyid is whatever one says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from auditkit.errors import Untrusted
from auditkit.formats import dsse
from auditkit.formats.canonical import shown
from auditkit.formats.dsse import Envelope
from auditkit.formats.statement import Statement
from auditkit.trust.keys import PrivateKey, PublicKey


def sign(statement: Statement, key: PrivateKey) -> Envelope:
    """The envelope of a statement with one signature; BadArtifact for one that no reader would accept."""
    payload = statement.encode()
    Statement.parse(payload)
    return sign_payload(payload, dsse.PAYLOAD_TYPE, key)


def sign_payload(payload: bytes, payload_type: str, key: PrivateKey) -> Envelope:
    """The envelope of any payload with one signature; BadArtifact for one that no reader would accept."""
    from securesystemslib.dsse import Envelope as Dsse

    signer: Any = _Signer(key)
    made = Dsse(payload, payload_type, {}).sign(signer)
    envelope = Envelope(payload_type, payload, (dsse.Signature(made.keyid, bytes.fromhex(made.signature)),))
    Envelope.parse(envelope.encode())
    return envelope


def signer(envelope: Envelope, keys: Mapping[str, PublicKey], *, payload_type: str = dsse.PAYLOAD_TYPE) -> PublicKey:
    """The key that signed, one of `keys` (by keyid).

    Untrusted unless there is one signature, by a key known here, over a payload of that type.
    """
    from securesystemslib.dsse import Envelope as Dsse

    if len(envelope.signatures) != 1:
        raise Untrusted(f"envelope: {len(envelope.signatures)} signatures, one is expected")
    if envelope.payload_type != payload_type:
        raise Untrusted(f"envelope: payload of type {shown(envelope.payload_type)}, not {shown(payload_type)}")
    found = envelope.signatures[0]
    key = keys.get(found.keyid)
    if key is None or key.keyid != found.keyid:
        raise Untrusted(f"signed by key {found.keyid[:8]}, which is not known here", hint=f"its keyid is {found.keyid}")
    signatures: dict[str, Any] = {key.keyid: _Signature(key.keyid, found.sig.hex())}
    known: list[Any] = [_Key(key)]
    accepted = Dsse(envelope.payload, envelope.payload_type, signatures).verify(known, 1)
    if list(accepted) != [key.keyid]:
        raise Untrusted(f"not signed by key {key.keyid8}")
    return key


class _Signature(NamedTuple):
    """A signature as securesystemslib holds it, in hex."""

    keyid: str
    signature: str


class _Signer:
    """A private key as securesystemslib uses one."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key

    def sign(self, payload: bytes) -> _Signature:
        return _Signature(self._key.public.keyid, self._key.sign(payload).hex())


class _Key:
    """A public key as securesystemslib uses one; what our own key refuses leaves as Untrusted."""

    def __init__(self, key: PublicKey) -> None:
        self.keyid, self._key = key.keyid, key

    def verify_signature(self, signature: _Signature, data: bytes) -> None:
        self._key.verify(bytes.fromhex(signature.signature), data)
