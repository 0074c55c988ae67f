"""Sign notes and checkpoints, and verify who signed them (C2SP signed-note, tlog-checkpoint)."""

from __future__ import annotations

from auditkit.errors import Untrusted
from auditkit.formats.canonical import shown
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.note import COSIGNATURE, ED25519, NoteKey, NoteSignature, SignedNote
from auditkit.trust.keys import SIGNATURE_BYTES, PrivateKey, PublicKey

_TIME_BYTES = 8
_MAX_TIME = (1 << 63) - 1  # C2SP tlog-cosignature


def note_key(name: str, public: PublicKey, algorithm: int = ED25519) -> NoteKey:
    """The key `public` under a name, for notes or (COSIGNATURE) as a witness."""
    return NoteKey(name, algorithm, public.raw)


def sign(text: str, name: str, private: PrivateKey) -> SignedNote:
    """A note of `text` with the one signature of the key `private`, called `name`."""
    key = note_key(name, private.public)
    return SignedNote(text, (NoteSignature(name, key.hash, private.sign(text.encode("utf-8"))),))


def verify(note: SignedNote, key: NoteKey) -> int:
    """Untrusted unless `key` signed the note and none of its signatures is wrong; signatures of other keys are ignored.

    Returns the time of the latest signature in Unix seconds, 0 for a key that is no witness's.
    """
    lines = [signature for signature in note.signatures if signature.is_of(key)]
    if not lines:
        names = ", ".join(dict.fromkeys(shown(signature.name) for signature in note.signatures))
        raise Untrusted(f"not signed by key {key.text} (signed by {names})")
    return max(_verify(note.text, line, key) for line in lines)


def verify_checkpoint(note: SignedNote, key: NoteKey, origin: str | None = None) -> Checkpoint:
    """The checkpoint of a note that the log's key signed; `origin` is the key's name unless another is given.

    Untrusted: not signed by the key, or a checkpoint of another log; BadArtifact: signed, and no checkpoint.
    """
    if key.algorithm != ED25519:
        raise Untrusted(f"key {key.text} is a witness's, and cannot sign for a log")
    verify(note, key)
    found, expected = Checkpoint.parse(note.text), key.name if origin is None else origin
    if found.origin != expected:
        raise Untrusted(f"checkpoint of log {shown(found.origin)}, not of {shown(expected)}")
    return found


def cosign(note: SignedNote, name: str, private: PrivateKey, time: int) -> SignedNote:
    """The note of a checkpoint with the cosignature of the witness `name` at `time` (Unix seconds) behind the others.

    To be called only for a checkpoint that continues whatever the witness cosigned before for this log.
    """
    Checkpoint.parse(note.text)
    key = note_key(name, private.public, COSIGNATURE)
    if not 0 < time <= _MAX_TIME:
        raise Untrusted(f"cosignature: time {time} is outside 1 to 2^63-1 seconds")
    raw = time.to_bytes(_TIME_BYTES, "big") + private.sign(_cosigned(note.text, time))
    others = [signature for signature in note.signatures if not signature.is_of(key)]
    return SignedNote(note.text, (*others, NoteSignature(name, key.hash, raw)))


def _verify(text: str, line: NoteSignature, key: NoteKey) -> int:
    public, signature, message, time = PublicKey(key.public), line.signature, text.encode("utf-8"), 0
    if key.algorithm == COSIGNATURE:
        time = int.from_bytes(signature[:_TIME_BYTES], "big")
        signature, message = signature[_TIME_BYTES:], _cosigned(text, time)
    if len(signature) != SIGNATURE_BYTES or time > _MAX_TIME:
        raise Untrusted(f"the signature of key {key.text} has no valid form")
    try:
        public.verify(signature, message)
    except Untrusted:
        raise Untrusted(f"the signature of key {key.text} does not fit what it signs") from None
    return time


def _cosigned(text: str, time: int) -> bytes:
    """What a witness signs (C2SP tlog-cosignature, Ed25519 signed message)."""
    return f"cosignature/v1\ntime {time}\n{text}".encode()
