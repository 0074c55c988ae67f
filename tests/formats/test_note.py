"""Signed notes and vkeys: the published examples, every mangling of Go's test key, limits, line ends."""

from __future__ import annotations

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unsupported
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import COSIGNATURE, ED25519, NoteKey, NoteSignature, SignedNote, check_name, decode_base64
from tests.formats import published_logs as published


@pytest.mark.parametrize(
    ("text", "name", "algorithm"),
    [
        (published.PETER, "PeterNeumann", ED25519),
        (published.ENOCH, "EnochRoot", ED25519),
        (published.FOO, "example.com/foo", ED25519),
        (published.SUMDB, "sum.golang.org", ED25519),
        (published.ARCHE, "arche2025h1.staging.ct.transparency.dev", ED25519),
        (published.REMORA, "remora.n621.de", COSIGNATURE),
    ],
)
def test_published_keys_have_the_hash_they_name(text: str, name: str, algorithm: int) -> None:
    key = NoteKey.parse(text)
    assert (key.name, key.algorithm, len(key.public)) == (name, algorithm, 32)
    assert key.hash.hex() == text.split("+")[1]
    assert key.text == text


def test_one_key_has_another_hash_under_another_name_or_algorithm() -> None:
    key = NoteKey.parse(published.PETER)
    others = [NoteKey("Peter", key.algorithm, key.public), NoteKey(key.name, COSIGNATURE, key.public)]
    assert len({key.hash, *(other.hash for other in others)}) == 3


def test_no_part_of_a_key_passes_for_a_key() -> None:
    """The manglings of sumdb/note's TestNewVerifier: every substring, and every byte raised by one."""
    text = published.PETER
    parts = {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)} - {text}
    raised = {text[:i] + chr(ord(text[i]) + 1) + text[i + 1 :] for i in range(len(text))}
    for bad in parts | raised:
        with pytest.raises(AuditkitError):
            NoteKey.parse(bad)


def test_keys_that_go_refuses() -> None:
    with pytest.raises(BadArtifact):
        NoteKey.parse(published.WRONG_LENGTH)
    with pytest.raises(Unsupported, match="type 101"):
        NoteKey.parse(published.WRONG_ALGORITHM)


@pytest.mark.parametrize(
    ("name", "algorithm", "public"),
    [("a", 2, bytes(32)), ("a", 1, bytes(31)), ("a b", 1, bytes(32)), ("", 1, bytes(32))],
)
def test_no_key_is_made_of_the_wrong_parts(name: str, algorithm: int, public: bytes) -> None:
    with pytest.raises(BadArtifact):
        NoteKey(name, algorithm, public)


def test_the_text_of_a_note_ends_at_its_last_blank_line() -> None:
    note = SignedNote.parse(published.QUASIMODO_NOTE.encode())
    assert note.text.endswith("sole:\n\ned \u00e8 subito sera.\n")
    assert [signature.name for signature in note.signatures] == ["quasimodo.example/salvatore"]


def test_signatures_of_unknown_types_and_keys_are_kept_as_they_are() -> None:
    note = SignedNote.parse(published.ARCHE_NOTE.encode())
    assert [len(signature.signature) for signature in note.signatures] == [82, 64, 72, 72, 72, 72]
    remora = NoteKey.parse(published.REMORA)
    assert [signature.is_of(remora) for signature in note.signatures] == [False] * 4 + [True, False]
    # the same name with another hash, the same hash under another name
    assert not NoteSignature(remora.name, b"\0\0\0\0", b"x").is_of(remora)
    assert not NoteSignature("other", remora.hash, b"x").is_of(remora)


def test_a_note_is_bounded_before_it_is_read() -> None:
    with pytest.raises(BadArtifact, match="262145 bytes, at most 262144"):
        SignedNote.parse(b"a" * (LIMITS.note_bytes + 1))


def test_sixteen_post_quantum_signatures_fit() -> None:
    """C2SP signed-note: verifiers accept at least 16 signatures, and one may have nearly 5 kB."""
    lines = tuple(NoteSignature(f"witness.example/{i}", b"abcd", bytes(5000)) for i in range(16))
    note = SignedNote("text\n", lines)
    assert SignedNote.parse(note.encode()) == note


def test_line_ends_of_windows_are_named() -> None:
    with pytest.raises(BadArtifact) as caught:
        SignedNote.parse(published.FOO_NOTE.replace("\n", "\r\n").encode(), "log/checkpoint")
    assert caught.value.message == "log/checkpoint: holds a control character"
    assert caught.value.hint == "line ends changed on the way?"


def test_no_note_is_made_that_would_not_parse() -> None:
    signature = NoteSignature("a", b"abcd", b"x")
    for text, signatures in (("a", (signature,)), ("a\r\n", (signature,)), ("a\n", ()), ("a\n", (signature,) * 101)):
        with pytest.raises(BadArtifact):
            SignedNote(text, signatures)
    for name, key_hash, raw in (("a b", b"abcd", b"x"), ("a", b"abc", b"x"), ("a", b"abcd", b"")):
        with pytest.raises(BadArtifact):
            NoteSignature(name, key_hash, raw)


def test_names_are_counted_in_bytes() -> None:
    assert check_name("\u00e9" * 127, "key")
    for name in ("\u00e9" * 128, "", "\ud800", "a\u3000b", "a+b", "a\x7f\u2028b"):
        with pytest.raises(BadArtifact):
            check_name(name, "key")


def test_base64_has_one_spelling() -> None:
    assert decode_base64("AAE=", "x") == b"\0\1"
    for bad in ("AAE", "AAF=", "AAE=\n", " AAE=", "AA_=", "AAE==", "\u00e9"):
        with pytest.raises(BadArtifact):
            decode_base64(bad, "x")
