"""Offline proofs: the layout of C2SP tlog-proof, as transparency-dev/merkle writes it, and limits."""

from __future__ import annotations

import base64
import hashlib

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import SignedNote
from auditkit.formats.tlog_proof import LogProof
from tests.formats import published_logs as published

NOTE = SignedNote.parse(published.SOFA_NOTE.encode())
ONE, TWO = (hashlib.sha256(text).digest() for text in (b"hash1", b"hash2"))


@pytest.mark.parametrize(
    ("proof", "head"),
    [
        (LogProof(5, (ONE, TWO), NOTE), "index 5\n1\n2\n"),
        (LogProof(10, (ONE,), NOTE, b"extra information"), "extra ZXh0cmEgaW5mb3JtYXRpb24=\nindex 10\n1\n"),
        (LogProof(0, (), NOTE), "index 0\n"),
    ],
)
def test_the_layout(proof: LogProof, head: str) -> None:
    for number, raw in (("\n1\n", ONE), ("\n2\n", TWO)):
        head = head.replace(number, f"\n{base64.b64encode(raw).decode()}\n")
    assert proof.encode().decode() == f"c2sp.org/tlog-proof@v1\n{head}\n{published.SOFA_NOTE}"
    assert LogProof.parse(proof.encode()) == proof


def test_a_checkpoint_with_blank_lines_of_its_own_is_kept_whole() -> None:
    note = SignedNote.parse(published.QUASIMODO_NOTE.encode())
    assert LogProof.parse(LogProof(1, (ONE,), note).encode()).checkpoint == note


def test_it_is_bounded_before_it_is_read() -> None:
    with pytest.raises(BadArtifact, match="at most 1048576"):
        LogProof.parse(b"c" * (LIMITS.log_proof_bytes + 1))


@pytest.mark.parametrize(
    ("index", "hashes"), [(-1, ()), (1 << 53, ()), (0, (b"",)), (0, (bytes(33),)), (0, (bytes(32),) * 64)]
)
def test_no_proof_is_made_that_would_not_parse(index: int, hashes: tuple[bytes, ...]) -> None:
    with pytest.raises(BadArtifact):
        LogProof(index, hashes, NOTE)
