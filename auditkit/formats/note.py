"""Signed notes and the keys that sign them: text, a blank line, signature lines (C2SP signed-note).

A key is named by a text, the vkey: NAME+HASH+BASE64, where BASE64 holds an algorithm byte and the public key, and HASH
is the begin of SHA-256 over name and both (golang.org/x/mod/sumdb/note). Nothing here verifies a signature: see
trust/notes.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats.canonical import shown
from auditkit.formats.fields import UPDATE, check_text
from auditkit.formats.limits import LIMITS

ED25519, COSIGNATURE = 1, 4  # signature types of signed-note: of the note's text; of a witness, with its time
ALGORITHMS = {ED25519: "Ed25519", COSIGNATURE: "Ed25519 cosignature/v1"}
PUBLIC_BYTES = 32

_DASH = "\u2014 "
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f]")
_HASH = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class NoteKey:
    """A public key that signs notes: its name, its algorithm (ED25519 or COSIGNATURE) and its 32 bytes."""

    name: str
    algorithm: int
    public: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "key")
        if self.algorithm not in ALGORITHMS or len(self.public) != PUBLIC_BYTES:
            raise BadArtifact(f"key {shown(self.name)}: not {PUBLIC_BYTES} bytes of a known algorithm")

    @property
    def hash(self) -> bytes:
        """The 4 bytes that stand for the key in a signature line."""
        hashed = hashlib.sha256(self.name.encode("utf-8") + b"\n" + self._typed)
        return hashed.digest()[:4]

    @property
    def text(self) -> str:
        """The vkey."""
        return f"{self.name}+{self.hash.hex()}+{base64.b64encode(self._typed).decode('ascii')}"

    @property
    def _typed(self) -> bytes:
        return bytes([self.algorithm]) + self.public

    @classmethod
    def parse(cls, text: str, what: str = "key") -> Self:
        """The key of a vkey; BadArtifact naming `what`, Unsupported for an algorithm that is not known here."""
        parts = text.split("+", 2)
        if len(parts) != 3 or not _HASH.fullmatch(parts[1]):
            raise BadArtifact(f"{what}: {shown(text)} is not a vkey (NAME+8 lower-case hexadecimal digits+BASE64)")
        name, hashed, encoded = parts
        check_name(name, what)
        typed = decode_base64(encoded, what)
        # First of all the hash, which covers the rest: a damaged key is not taken for one of another algorithm.
        if hashlib.sha256(name.encode("utf-8") + b"\n" + typed).digest()[:4].hex() != hashed:
            raise BadArtifact(f"{what}: the vkey's hash {hashed} is not that of its name and key (damaged?)")
        if not typed:
            raise BadArtifact(f"{what}: no algorithm and no public key")
        if typed[0] not in ALGORITHMS:
            known = ", ".join(f"{number} ({words})" for number, words in ALGORITHMS.items())
            raise Unsupported(f"{what}: signatures of type {typed[0]}; this verifier knows {known}", hint=UPDATE)
        if len(typed) != 1 + PUBLIC_BYTES:
            raise BadArtifact(f"{what}: a public key of {len(typed) - 1} bytes, Ed25519 has {PUBLIC_BYTES}")
        return cls(name, typed[0], typed[1:])


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: the key's name and hash (4 bytes), and the signature's bytes, at least one."""

    name: str
    key_hash: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "note signature")
        if len(self.key_hash) != 4 or not self.signature:
            raise BadArtifact(f"note signature of {shown(self.name)}: no key hash of 4 bytes, or no signature")

    @property
    def line(self) -> str:
        """The line, with its newline."""
        return f"{_DASH}{self.name} {base64.b64encode(self.key_hash + self.signature).decode('ascii')}\n"

    def is_of(self, key: NoteKey) -> bool:
        """Whether the line names this key; only a verification tells whether the key signed."""
        return self.name == key.name and self.key_hash == key.hash

    @classmethod
    def parse(cls, line: str, what: str) -> Self:
        """The signature of a line without its newline; BadArtifact naming `what`."""
        name, space, encoded = line.removeprefix(_DASH).partition(" ")
        if not line.startswith(_DASH) or not space:
            raise BadArtifact(f"{what}: {shown(line)} is not a signature line")
        raw = decode_base64(encoded, what)
        if len(raw) < 5:
            raise BadArtifact(f"{what}: a signature line of {len(raw)} bytes, key hash and signature have 5 or more")
        return cls(name, raw[:4], raw[4:])


@dataclass(frozen=True, slots=True)
class SignedNote:
    """A text that ends in a newline, and signatures over it, of whatever keys: the text is not to be believed yet."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def __post_init__(self) -> None:
        if not self.text.endswith("\n") or _CONTROL.search(self.text):
            raise BadArtifact("note: the text does not end in a newline, or holds a control character")
        if not 1 <= len(self.signatures) <= LIMITS.note_signatures:
            found = len(self.signatures)
            raise BadArtifact(f"note: {found} signatures, 1 to {LIMITS.note_signatures} are allowed")

    @classmethod
    def parse(cls, data: bytes, what: str = "note") -> Self:
        """The note of a file; BadArtifact naming `what`."""
        if len(data) > LIMITS.note_bytes:
            raise BadArtifact(f"{what}: {len(data)} bytes, at most {LIMITS.note_bytes} are allowed")
        try:
            whole = bytes(data).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadArtifact(f"{what}: not UTF-8 at byte {error.start}") from error
        if _CONTROL.search(whole):
            hint = "line ends changed on the way?" if "\r" in whole else ""
            raise BadArtifact(f"{what}: holds a control character", hint=hint)
        # The text may hold blank lines of its own: the last one ends it.
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise BadArtifact(f"{what}: not a text, a blank line and signature lines (truncated?)")
        signatures = lines[:-1].split("\n")
        if len(signatures) > LIMITS.note_signatures:
            found = len(signatures)
            raise BadArtifact(f"{what}: {found} signatures, at most {LIMITS.note_signatures} are allowed")
        return cls(text + "\n", tuple(NoteSignature.parse(line, what) for line in signatures))

    def encode(self) -> bytes:
        """The file."""
        return (self.text + "\n" + "".join(signature.line for signature in self.signatures)).encode("utf-8")


def parse_key(value: object, what: str, algorithm: int) -> NoteKey:
    """The key of a vkey in a document, of one algorithm; BadArtifact naming `what`, Unsupported for an unknown one."""
    key = NoteKey.parse(check_text(value, what, LIMITS.url_characters), what)
    if key.algorithm != algorithm:
        raise BadArtifact(f"{what}: a key of type {ALGORITHMS[key.algorithm]}, {ALGORITHMS[algorithm]} is needed here")
    return key


def check_name(name: str, what: str) -> str:
    """The name of a key, `name` itself: 1 to 255 bytes of UTF-8, no spaces, pluses or controls; BadArtifact otherwise.

    The limit is that of the lengths in C2SP tlog-cosignature.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadArtifact(f"{what}: a name with a lone surrogate") from None
    if not 1 <= size <= LIMITS.note_name_bytes:
        raise BadArtifact(f"{what}: a name of {size} bytes, 1 to {LIMITS.note_name_bytes} are allowed")
    if "+" in name or any(c.isspace() or c < " " for c in name):
        raise BadArtifact(f"{what}: name {shown(name)} holds a space, a plus sign or a control character")
    return name


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of standard base64 (RFC 4648 section 4) that encode to the same text again; BadArtifact otherwise."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadArtifact(f"{what}: {shown(text)} is not base64") from None
    if base64.b64encode(data).decode("ascii") != text:
        raise BadArtifact(f"{what}: {shown(text)} is not the only base64 of its bytes (RFC 4648 section 3.5)")
    return data
