"""Checkpoints: the examples of C2SP and of Go, and texts that are none."""

from __future__ import annotations

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.checkpoint import Checkpoint, check_origin, parse_decimal
from auditkit.formats.merkle import EMPTY_ROOT, leaf_hash
from auditkit.formats.note import SignedNote
from tests.formats import published_logs as published


def test_the_example_of_the_specification() -> None:
    found = Checkpoint.parse(SignedNote.parse(published.SOFA_NOTE.encode()).text)
    assert (found.origin, found.size, found.extensions) == ("example.com/behind-the-sofa", 20852163, ())
    assert found.root.hex() == "0ac5186a91863e8e1d90c808014aa89bf5da8e3ee1d9f07630f0378f68f1ab62"
    assert found.text() == published.SOFA_TEXT


def test_the_tree_of_go() -> None:
    made = Checkpoint("go.sum database tree", 123456789012, leaf_hash(b"hello world"))
    assert made.text() == published.GO_TREE
    assert Checkpoint.parse(published.GO_TREE) == made


@pytest.mark.parametrize("note", [published.SUMDB_NOTE, published.ARCHE_NOTE])
def test_checkpoints_of_real_logs(note: str) -> None:
    text = SignedNote.parse(note.encode()).text
    assert Checkpoint.parse(text).text() == text


def test_trees_that_go_refuses() -> None:
    for bad in (published.GO_TREE.replace("123456789012", "0xabcdef"), published.GO_TREE.replace("Bb0=", "BTOOBIG=")):
        with pytest.raises(BadArtifact):
            Checkpoint.parse(bad, "log")


def test_extension_lines_are_kept() -> None:
    found = Checkpoint.parse(published.SOFA_TEXT + "one\ntwo\n")
    assert found.extensions == ("one", "two")
    for extensions in (("",), ("a\nb",), ("a\x1b[2J",)):
        with pytest.raises(BadArtifact):
            Checkpoint("a", 1, bytes(32), extensions)


def test_an_empty_log_has_one_root() -> None:
    assert Checkpoint("a", 0, EMPTY_ROOT).describe() == f"0 entries, root {EMPTY_ROOT.hex()}"
    with pytest.raises(BadArtifact):
        Checkpoint("a", 0, bytes(32))


@pytest.mark.parametrize(
    ("origin", "size", "root"),
    [("", 1, bytes(32)), ("a\nb", 1, bytes(32)), ("a", -1, bytes(32)), ("a", 1 << 53, bytes(32)), ("a", 1, bytes(31))],
)
def test_no_checkpoint_is_made_that_would_not_parse(origin: str, size: int, root: bytes) -> None:
    with pytest.raises(BadArtifact):
        Checkpoint(origin, size, root)


@pytest.mark.parametrize(
    ("origin", "valid"),
    [
        ("", False),
        ("a", True),
        ("a" * 255, True),
        ("a" * 256, False),
        ("\u00e9" * 127 + "a", True),
        ("\u00e9" * 128, False),
        ("example log+origin", True),
        ("\ud800", False),
    ],
)
def test_the_length_of_an_origin_is_counted_in_bytes(origin: str, valid: bool) -> None:
    if valid:
        assert check_origin(origin, "log") == origin
    else:
        with pytest.raises(BadArtifact):
            check_origin(origin, "log")


def test_numbers_have_one_spelling() -> None:
    assert parse_decimal("9007199254740991", "x") == (1 << 53) - 1
    for bad in ("", "00", "1_0", "\u0661", "+1", "1 ", "9007199254740992", "9" * 5000):
        with pytest.raises(BadArtifact):
            parse_decimal(bad, "x")
