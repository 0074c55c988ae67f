"""Offline proofs: an entry's index, its audit path and the signed checkpoint that it leads to (C2SP tlog-proof)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.checkpoint import parse_decimal
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import HASH_BYTES
from auditkit.formats.note import SignedNote, decode_base64

HEADER = "c2sp.org/tlog-proof@v1"
SUFFIX = ".tlog-proof"
MAX_HASHES = 63  # of C2SP tlog-witness; a log of 2^53 entries needs 53


@dataclass(frozen=True, slots=True)
class LogProof:
    """What proves that an entry is in a log, besides the entry: nothing of it is checked yet.

    `hashes` is the audit path, 32 bytes each, the leaf's sibling first; nobody vouches for `extra`, which has no
    meaning here.
    """

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: SignedNote
    extra: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.index <= LIMITS.log_entries:
            raise BadArtifact(f"log proof: index {self.index} is outside 0 to {LIMITS.log_entries}")
        if len(self.hashes) > MAX_HASHES or any(len(found) != HASH_BYTES for found in self.hashes):
            raise BadArtifact(f"log proof: more than {MAX_HASHES} hashes, or one that is not {HASH_BYTES} bytes")

    @classmethod
    def parse(cls, data: bytes, what: str = "log proof") -> Self:
        """The proof of a file; BadArtifact naming `what`."""
        if len(data) > LIMITS.log_proof_bytes:
            raise BadArtifact(f"{what}: {len(data)} bytes, at most {LIMITS.log_proof_bytes} are allowed")
        if not data.startswith(f"{HEADER}\n".encode("ascii")):
            raise BadArtifact(f"{what}: does not begin with {HEADER}")
        head, blank, note = bytes(data).partition(b"\n\n")
        try:
            lines = head.decode("ascii").split("\n")[1:]
        except UnicodeDecodeError as error:
            raise BadArtifact(f"{what}: not ASCII at byte {error.start}") from error
        if not blank:
            raise BadArtifact(f"{what}: no blank line before the checkpoint (truncated?)")
        extra = b""
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "), what)
            if not extra:
                raise BadArtifact(f"{what}: an extra line without data")
        if not lines or not lines[0].startswith("index "):
            raise BadArtifact(f"{what}: {shown(lines[0]) if lines else 'nothing'} in place of the index")
        index = parse_decimal(lines.pop(0).removeprefix("index "), what)
        if len(lines) > MAX_HASHES:
            raise BadArtifact(f"{what}: {len(lines)} hashes, at most {MAX_HASHES} are allowed")
        hashes = tuple(_hash(line, what) for line in lines)
        return cls(index, hashes, SignedNote.parse(note, f"{what}: checkpoint"), extra)

    def encode(self) -> bytes:
        """The file."""
        extra = [f"extra {base64.b64encode(self.extra).decode('ascii')}"] if self.extra else []
        path = [base64.b64encode(found).decode("ascii") for found in self.hashes]
        lines = [HEADER, *extra, f"index {self.index}", *path]
        return "".join(f"{line}\n" for line in lines).encode("ascii") + b"\n" + self.checkpoint.encode()


def _hash(line: str, what: str) -> bytes:
    found = decode_base64(line, what)
    if len(found) != HASH_BYTES:
        raise BadArtifact(f"{what}: a hash of {len(found)} bytes, SHA-256 has {HASH_BYTES}")
    return found
