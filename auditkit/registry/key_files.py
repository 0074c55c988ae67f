"""The public keys of those who signed the entries of a log, as static files beside its tiles: keys/KEYID.pem.

An envelope names its key by SHA-256 only, so without the keys a log of strangers' attestations could not be verified by
anyone, its own registry included once the database is lost. A file proves itself by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from auditkit.errors import BadArtifact
from auditkit.formats.dsse import Envelope
from auditkit.formats.limits import LIMITS
from auditkit.trust import disk
from auditkit.trust.keys import PublicKey

FOLDER = "keys"


class KeyFiles:
    """The key files of the log in the folder `log`."""

    def __init__(self, log: Path) -> None:
        self._log, self._folder = log, log / FOLDER

    def write(self, keys: Iterable[bytes]) -> None:
        """Have a file on the disk for each public key of 32 bytes. Unsupported: the disk refuses."""
        with disk.writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        for key in map(PublicKey, keys):
            place = self._place(key.keyid)
            if not place.exists():
                disk.write(place, key.pem())
        disk.sync([], self._log)

    def read(self, keyids: Iterable[str]) -> dict[str, PublicKey]:
        """Those of some keys that there is a file of, by keyid. BadArtifact: a file holds another key, or none."""
        found = {}
        for keyid in keyids:
            place = self._place(keyid)
            data = disk.read(place, LIMITS.key_file_bytes)
            if data is None:
                continue
            key = PublicKey.from_pem(data, str(place))
            if key.keyid != keyid:
                raise BadArtifact(f"{place}: holds key {key.keyid}", hint="take the file from another copy of the log")
            found[keyid] = key
        return found

    def _place(self, keyid: str) -> Path:
        return self._folder / f"{keyid}.pem"


def signers(data: bytes) -> tuple[str, ...]:
    """The keyids that an envelope names, nothing verified yet. BadArtifact: it is none."""
    return tuple(signature.keyid for signature in Envelope.parse(data).signatures)
