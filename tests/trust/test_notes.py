"""Signatures of notes and checkpoints, against what others published and against what is not to be believed."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from auditkit.errors import BadArtifact, Untrusted
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.note import COSIGNATURE, NoteKey, NoteSignature, SignedNote
from auditkit.trust import notes
from auditkit.trust.keys import PrivateKey
from tests.formats import published_logs as published
from tests.trust.logs import KEY, ORIGIN, OTHER, PRIVATE, flip

PETER = NoteKey.parse(published.PETER)
PETER_PRIVATE = PrivateKey(base64.b64decode(published.PETER_PRIVATE)[1:])
CHECKPOINT = Checkpoint(ORIGIN, 7, bytes(range(32)))
SIGNED = notes.sign(CHECKPOINT.text(), ORIGIN, PRIVATE)


def test_the_note_of_go_comes_out_byte_for_byte() -> None:
    note = notes.sign(published.PETER_TEXT, "PeterNeumann", PETER_PRIVATE)
    assert note.encode().decode() == published.PETER_TEXT + "\n" + published.PETER_LINE
    assert notes.note_key("PeterNeumann", PETER_PRIVATE.public) == PETER


@pytest.mark.parametrize(
    ("note", "keys"),
    [
        (published.PETER_TEXT + "\n" + published.PETER_LINE, [published.PETER]),
        (published.PETER_TEXT + "\n" + published.PETER_LINE + published.ENOCH_LINE, [published.PETER, published.ENOCH]),
        (published.PETER_TEXT + "\n" + published.PETER_LINE * 100, [published.PETER]),
        (published.FOO_NOTE, [published.FOO]),
        (published.SUMDB_NOTE, [published.SUMDB]),
        (published.ARCHE_NOTE, [published.ARCHE]),
    ],
)
def test_published_notes_verify(note: str, keys: list[str]) -> None:
    parsed = SignedNote.parse(note.encode())
    for key in keys:
        assert notes.verify(parsed, NoteKey.parse(key)) == 0
    changed = SignedNote("x" + parsed.text, parsed.signatures)
    for key in keys:
        with pytest.raises(Untrusted, match="does not fit what it signs"):
            notes.verify(changed, NoteKey.parse(key))


def test_a_witness_of_a_real_log_verifies_with_its_time() -> None:
    note = SignedNote.parse(published.ARCHE_NOTE.encode())
    witness = NoteKey.parse(published.REMORA)
    assert notes.verify(note, witness) == published.ARCHE_TIME
    found = Checkpoint.parse(note.text)
    with pytest.raises(Untrusted):
        notes.verify(SignedNote(replace(found, size=42).text(), note.signatures), witness)


def test_signatures_of_unknown_keys_are_no_matter() -> None:
    note = SignedNote.parse((published.PETER_TEXT + "\n" + published.PETER_LINE + published.ENOCH_LINE).encode())
    strange = replace(note.signatures[1], signature=b"anything")
    assert notes.verify(SignedNote(note.text, (strange, note.signatures[0])), PETER) == 0


def test_one_wrong_signature_of_a_known_key_refuses_the_note() -> None:
    """C2SP signed-note: clients should reject the whole note; here they do, wherever the line stands."""
    good = SIGNED.signatures[0]
    wrong = NoteSignature(good.name, good.key_hash, flip(9)(good.signature))
    for lines in ((wrong,), (good, wrong), (wrong, good)):
        with pytest.raises(Untrusted, match="does not fit"):
            notes.verify(SignedNote(SIGNED.text, lines), KEY)


@pytest.mark.parametrize("size", [1, 63, 65, 72])
def test_a_signature_of_another_length_has_no_valid_form(size: int) -> None:
    line = NoteSignature(ORIGIN, KEY.hash, bytes(size))
    with pytest.raises(Untrusted, match="no valid form"):
        notes.verify(SignedNote(SIGNED.text, (line,)), KEY)


def test_a_key_that_did_not_sign_is_told_with_who_did() -> None:
    other = notes.note_key(ORIGIN, OTHER.public)
    with pytest.raises(Untrusted, match=rf'not signed by key .* \(signed by "{ORIGIN}"\)'):
        notes.verify(SIGNED, other)
    # the hash of another key, forged: the signature itself decides
    forged = replace(SIGNED.signatures[0], key_hash=other.hash)
    with pytest.raises(Untrusted, match="does not fit"):
        notes.verify(SignedNote(SIGNED.text, (forged,)), other)


def test_a_key_of_small_order_is_refused() -> None:
    """One signature under such a key holds for every message."""
    key = NoteKey("weak", 1, b"\1" + bytes(31))
    line = NoteSignature("weak", key.hash, b"\1" + bytes(63))
    with pytest.raises(Untrusted, match="small order"):
        notes.verify(SignedNote("anything\n", (line,)), key)


def test_a_signature_above_the_order_is_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    raw = SIGNED.signatures[0].signature
    twin = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    with pytest.raises(Untrusted):
        notes.verify(SignedNote(SIGNED.text, (replace(SIGNED.signatures[0], signature=twin),)), KEY)


def test_a_checkpoint_is_of_the_log_that_is_asked_for() -> None:
    assert notes.verify_checkpoint(SIGNED, KEY) == CHECKPOINT
    assert notes.verify_checkpoint(SIGNED, KEY, ORIGIN) == CHECKPOINT
    with pytest.raises(Untrusted, match=r'checkpoint of log "log\.example/one", not of "another"'):
        notes.verify_checkpoint(SIGNED, KEY, "another")
    sumdb = SignedNote.parse(published.SUMDB_NOTE.encode())
    found = notes.verify_checkpoint(sumdb, NoteKey.parse(published.SUMDB), "go.sum database tree")
    assert found.size == 3784599
    with pytest.raises(Untrusted, match="not of"):
        notes.verify_checkpoint(sumdb, NoteKey.parse(published.SUMDB))


def test_a_signed_text_that_is_no_checkpoint_is_a_bad_artifact() -> None:
    with pytest.raises(BadArtifact):
        notes.verify_checkpoint(notes.sign("hello\n", ORIGIN, PRIVATE), KEY)
    # nothing is parsed before the signature holds
    with pytest.raises(Untrusted):
        notes.verify_checkpoint(SignedNote("hello\n", SIGNED.signatures), KEY)


def test_a_witness_does_not_sign_for_the_log_nor_the_log_as_a_witness() -> None:
    witness = notes.note_key(ORIGIN, PRIVATE.public, COSIGNATURE)
    cosigned = notes.cosign(SIGNED, ORIGIN, PRIVATE, 5)
    assert notes.verify(cosigned, witness) == 5
    with pytest.raises(Untrusted, match="witness's"):
        notes.verify_checkpoint(cosigned, witness)
    only = SignedNote(SIGNED.text, cosigned.signatures[1:])
    with pytest.raises(Untrusted, match="not signed by"):
        notes.verify_checkpoint(only, KEY)
    # the same 64 bytes under the other algorithm's hash
    moved = replace(SIGNED.signatures[0], key_hash=witness.hash)
    with pytest.raises(Untrusted):
        notes.verify(SignedNote(SIGNED.text, (moved,)), witness)
