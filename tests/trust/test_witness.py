"""Cosignatures: the message of the specification, thresholds, and what does not count as another witness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditkit.errors import BadArtifact, Untrusted
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.note import COSIGNATURE, NoteKey, NoteSignature, SignedNote
from auditkit.trust import notes
from auditkit.trust.keys import PrivateKey
from auditkit.trust.notes import cosign
from auditkit.trust.witness import Cosignature, cosignatures, shown_time, verify_witnesses
from tests.formats import published_logs as published
from tests.trust.logs import KEY, ORIGIN, PRIVATE, flip

WITNESSES = [PrivateKey(bytes([i]) * 32) for i in (1, 2, 3)]
NAMES = ["w1.example", "w2.example", "w3.example"]
KEYS = [notes.note_key(name, key.public, COSIGNATURE) for name, key in zip(NAMES, WITNESSES, strict=True)]
TIME = 1679315147
SIGNED = notes.sign(Checkpoint(ORIGIN, 7, bytes(range(32)), ("an extension",)).text(), ORIGIN, PRIVATE)


def cosigned(count: int) -> SignedNote:
    """The checkpoint with the first `count` witnesses."""
    note = SIGNED
    for name, key in zip(NAMES[:count], WITNESSES, strict=False):
        note = cosign(note, name, key, TIME)
    return note


def test_the_message_is_that_of_the_specification() -> None:
    """The signature line of tlog-cosignature: key ID, 64-bit time, signature over two lines and the note's text."""
    line = cosigned(1).signatures[1]
    assert line.key_hash == KEYS[0].hash
    assert int.from_bytes(line.signature[:8], "big") == TIME
    message = f"cosignature/v1\ntime 1679315147\n{SIGNED.text}".encode()
    WITNESSES[0].public.verify(line.signature[8:], message)


def test_the_example_of_the_specification_has_its_time() -> None:
    line = SignedNote.parse(published.SOFA_NOTE.encode()).signatures[1]
    assert line.name == "witness.example.com/w1"
    assert int.from_bytes(line.signature[:8], "big") == TIME
    assert shown_time(TIME) == "2023-03-20T12:25:47Z"


def test_a_real_witness() -> None:
    note, key = SignedNote.parse(published.ARCHE_NOTE.encode()), NoteKey.parse(published.REMORA)
    (found,) = verify_witnesses(note, [key], 1, log=NoteKey.parse(published.ARCHE))
    assert found == Cosignature(key, published.ARCHE_TIME)
    assert found.describe() == "remora.n621.de at 2026-05-23T21:50:24Z"


def test_the_threshold_counts_different_witnesses() -> None:
    assert [found.key for found in verify_witnesses(cosigned(3), KEYS, 2)] == KEYS
    assert verify_witnesses(cosigned(0), [], 0) == ()
    for count, keys, threshold in ((1, KEYS, 2), (3, KEYS[:1], 2), (0, KEYS, 1)):
        with pytest.raises(Untrusted, match=f"{threshold} are asked for"):
            verify_witnesses(cosigned(count), keys, threshold)


def test_one_key_under_two_names_is_one_witness() -> None:
    alias = notes.note_key("alias.example", WITNESSES[0].public, COSIGNATURE)
    line = cosigned(1).signatures[1]
    twice = SignedNote(SIGNED.text, (*cosigned(1).signatures, NoteSignature(alias.name, alias.hash, line.signature)))
    assert len(cosignatures(twice, [KEYS[0], alias])) == 2
    with pytest.raises(Untrusted, match="1 known witnesses cosigned"):
        verify_witnesses(twice, [KEYS[0], alias], 2)


def test_one_witness_that_signs_twice_counts_once_with_its_later_time() -> None:
    earlier, later = cosign(SIGNED, NAMES[0], WITNESSES[0], 5), cosign(SIGNED, NAMES[0], WITNESSES[0], 9)
    both = SignedNote(SIGNED.text, (*later.signatures, earlier.signatures[1]))
    assert [found.time for found in verify_witnesses(both, KEYS, 1)] == [9]
    with pytest.raises(Untrusted):
        verify_witnesses(both, KEYS, 2)


def test_the_log_is_no_witness_of_its_own() -> None:
    own = notes.note_key("elsewhere.example", PRIVATE.public, COSIGNATURE)
    note = cosign(SIGNED, own.name, PRIVATE, TIME)
    assert verify_witnesses(note, [own], 1)
    with pytest.raises(Untrusted):
        verify_witnesses(note, [own], 1, log=KEY)


def test_a_wrong_cosignature_refuses_the_note() -> None:
    note = cosigned(2)
    for at in (0, 7, 8, 71):  # time and signature
        bad = replace(note.signatures[1], signature=flip(at)(note.signatures[1].signature))
        with pytest.raises(Untrusted):
            verify_witnesses(SignedNote(note.text, (note.signatures[0], bad, note.signatures[2])), KEYS, 1)


def test_extension_lines_are_covered() -> None:
    note = cosigned(1)
    with pytest.raises(Untrusted):
        verify_witnesses(SignedNote(note.text.replace("an extension", "another"), note.signatures), KEYS, 1)


def test_signing_again_replaces_the_older_line() -> None:
    again = cosign(cosigned(2), NAMES[0], WITNESSES[0], TIME + 1)
    assert [found.time for found in verify_witnesses(again, KEYS, 2)] == [TIME + 1, TIME]
    assert len(again.signatures) == 3


def test_only_checkpoints_are_cosigned_and_only_at_a_time() -> None:
    with pytest.raises(BadArtifact):
        cosign(notes.sign("hello\n", ORIGIN, PRIVATE), NAMES[0], WITNESSES[0], TIME)
    for time in (0, -1, 1 << 63):
        with pytest.raises(Untrusted):
            cosign(SIGNED, NAMES[0], WITNESSES[0], time)


def test_times_that_no_calendar_has_are_shown_as_they_are() -> None:
    last = cosign(SIGNED, NAMES[0], WITNESSES[0], (1 << 63) - 1)
    (found,) = verify_witnesses(last, KEYS, 1)
    assert found.describe() == "w1.example at 9223372036854775807 s"
    assert shown_time(253402300799) == "9999-12-31T23:59:59Z"
    beyond = (1 << 63).to_bytes(8, "big") + last.signatures[1].signature[8:]
    with pytest.raises(Untrusted, match="no valid form"):
        verify_witnesses(SignedNote(SIGNED.text, (NoteSignature(NAMES[0], KEYS[0].hash, beyond),)), KEYS, 1)
