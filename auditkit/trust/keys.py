"""Ed25519 keys (RFC 8032): sign, verify, and keep them in PEM files. A key is called by its keyid.

The library decides signatures; what it leaves to its caller is refused here: keys and signatures about which verifiers
disagree (auditkit/trust/point.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from auditkit.errors import BadArtifact, Untrusted
from auditkit.formats import pem
from auditkit.formats.limits import LIMITS
from auditkit.trust import key_files
from auditkit.trust.point import ORDER, check_point

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64

# R = the neutral point is what a signer gets who takes 0 for the secret nonce. Of the points of small order it is the
# only one that a key of prime order can be made to sign with, and it gives the private key away.
_NEUTRAL = (1).to_bytes(32, "little")


@dataclass(frozen=True)
class PublicKey:
    """A sound public key, 32 raw bytes. Untrusted: not the canonical encoding of a point of prime order."""

    raw: bytes

    def __post_init__(self) -> None:
        _check(self.raw)

    @classmethod
    def from_pem(cls, data: bytes, what: str = "public key") -> Self:
        """The key of a PEM file with SubjectPublicKeyInfo; the errors of `pem.decode`, and Untrusted as above."""
        _, der = pem.decode(data, what, pem.PUBLIC)
        return cls(pem.from_spki(der, what))

    def pem(self) -> bytes:
        """The PEM file, SubjectPublicKeyInfo."""
        return pem.encode(pem.PUBLIC, pem.spki(self.raw))

    @cached_property
    def keyid(self) -> str:
        """SHA-256 of the DER SubjectPublicKeyInfo, 64 hex digits."""
        return hashlib.sha256(pem.spki(self.raw)).hexdigest()

    @property
    def keyid8(self) -> str:
        """The first 8 digits of the keyid, for people."""
        return self.keyid[:8]

    def verify(self, signature: bytes, message: bytes) -> None:
        """Untrusted unless `signature` (64 bytes) is this key's over `message`."""
        from cryptography.exceptions import InvalidSignature

        if len(signature) != SIGNATURE_BYTES:
            raise Untrusted(f"signature of {len(signature)} bytes, an Ed25519 signature has {SIGNATURE_BYTES}")
        if int.from_bytes(signature[32:], "little") >= ORDER or signature[:32] == _NEUTRAL:
            raise Untrusted(f"signature of key {self.keyid8} is not in the one accepted form")
        try:
            _loaded(self.raw).verify(signature, message)
        except InvalidSignature:
            raise Untrusted(f"signature of key {self.keyid8} does not fit what it signs") from None


class PrivateKey:
    """A private key: 32 secret bytes, which nothing but `pem` shows."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != 32:
            raise BadArtifact(f"private key: {len(seed)} bytes, an Ed25519 private key has 32")
        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def from_pem(cls, data: bytes, what: str = "private key") -> Self:
        """The key of a PEM file with PKCS #8; the errors of `pem.decode`."""
        _, der = pem.decode(data, what, pem.PRIVATE)
        return cls(pem.from_pkcs8(der, what))

    def pem(self) -> bytes:
        """The PEM file, PKCS #8 without a passphrase: a secret."""
        return pem.encode(pem.PRIVATE, pem.pkcs8(self._key.private_bytes_raw()))

    def sign(self, message: bytes) -> bytes:
        """The signature over `message`, 64 bytes; always the same for the same message."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.keyid8})"


def new_key() -> PrivateKey:
    """A fresh key from the system's random numbers."""
    import secrets

    return PrivateKey(secrets.token_bytes(32))


def load(path: Path) -> PrivateKey | PublicKey:
    """The key of a PEM file of either kind; Unavailable, the errors of `from_pem`, Untrusted as `load_private`."""
    data = key_files.read(path, LIMITS.key_file_bytes)
    label, _ = pem.decode(data, str(path), pem.PRIVATE, pem.PUBLIC)
    return PublicKey.from_pem(data, str(path)) if label == pem.PUBLIC else load_private(path)


def load_private(path: Path) -> PrivateKey:
    """The private key of a PEM file. Untrusted: others may read the file; Unavailable, and the errors of `from_pem`."""
    data, mode = key_files.read_with_mode(path, LIMITS.key_file_bytes)
    if pem.begin(pem.PUBLIC) not in data:  # of a public key who may read it is not what is wrong with it
        key_files.require_private(path, mode)
    return PrivateKey.from_pem(data, str(path))


def save_private(path: Path, key: PrivateKey) -> None:
    """Write a new file that only its owner can read. UsageError: there is something at `path`, which stays."""
    key_files.write_new(path, key.pem(), mode=0o600)


def load_public(path: Path) -> PublicKey:
    """The public key of a PEM file; Unavailable, and the errors of `from_pem`. A private key is refused."""
    return PublicKey.from_pem(key_files.read(path, LIMITS.key_file_bytes), str(path))


def load_public_half(path: Path) -> PublicKey:
    """The public key of a PEM file of either kind, for who is meant by it; the errors of `load`."""
    found = load(path)
    return found.public if isinstance(found, PrivateKey) else found


def save_public(path: Path, key: PublicKey) -> None:
    """Write a new file that anyone may read. UsageError: there is something at `path`, which stays."""
    key_files.write_new(path, key.pem(), mode=0o644)


@lru_cache(maxsize=4096)
def _check(raw: bytes) -> None:
    check_point(raw, "public key")


@lru_cache(maxsize=4096)
def _loaded(raw: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(raw)
