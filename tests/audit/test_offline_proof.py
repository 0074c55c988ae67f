"""Offline proofs of a run's records: what they show, and that nothing in the file is believed without the key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.audit.offline_proof import check, prove
from auditkit.audit.signed_log import Rule, SignedLog
from auditkit.errors import AuditkitError, BadArtifact, Untrusted, UsageError
from auditkit.formats.note import COSIGNATURE
from auditkit.formats.tlog_proof import LogProof
from auditkit.replay.run import open_run
from auditkit.trust.keys import PrivateKey
from auditkit.trust.notes import note_key
from tests.audit.signed_runs import SOMEBODY, copy, cosign, key_of, records_of, sign_lie
from tests.trust.logs import flip


def proof_of(run: Path, step: int, data: Path) -> bytes:
    """The proof of a step of a run."""
    with open_run(str(run)) as opened:
        return prove(SignedLog(data=data).open(opened), step).encode()


@pytest.mark.parametrize("step", [0, 5, 7])
def test_a_proof_shows_the_record(signed: Path, tmp_path: Path, step: int) -> None:
    found = check(proof_of(signed, step, tmp_path), Rule(key_of(signed)))
    assert found.record.encode() == records_of(signed)[step]
    assert (found.checkpoint.size, found.checkpoint.origin) == (8, key_of(signed).name)


def test_the_same_proof_from_many_steps(long: Path, tmp_path: Path) -> None:
    found = check(proof_of(long, 3999, tmp_path), Rule(key_of(long)))
    assert (found.record.step, found.checkpoint.size) == (3999, 4000)


def test_it_needs_a_key(signed: Path, tmp_path: Path) -> None:
    data = proof_of(signed, 5, tmp_path)
    with pytest.raises(UsageError):
        check(data, Rule())
    for key in (note_key(key_of(signed).name, SOMEBODY.public), note_key("another", SOMEBODY.public)):
        with pytest.raises(Untrusted):
            check(data, Rule(key))


def test_another_record_is_not_the_one_that_is_proved(signed: Path, tmp_path: Path) -> None:
    proof, key = LogProof.parse(proof_of(signed, 5, tmp_path)), Rule(key_of(signed))
    for changed in (
        replace(proof, extra=records_of(signed)[6]),
        replace(proof, extra=proof.extra.replace(b'"step":5', b'"step":6')),
        replace(proof, index=6),
        replace(proof, hashes=proof.hashes[::-1]),
        replace(proof, extra=b""),
    ):
        with pytest.raises(Untrusted):
            check(changed.encode(), key)


def test_no_changed_byte_passes(signed: Path, tmp_path: Path) -> None:
    data, key = proof_of(signed, 5, tmp_path), Rule(key_of(signed))
    for at in range(0, len(data), 3):
        with pytest.raises(AuditkitError) as caught:
            check(flip(at)(data), key)
        assert isinstance(caught.value, (BadArtifact, Untrusted))


def test_an_entry_that_is_no_record_of_its_place(signed: Path, tmp_path: Path) -> None:
    made = records_of(signed)
    made[5], made[6] = made[6], b"not a record"
    run = sign_lie(copy(signed, tmp_path / "run"), made)
    with pytest.raises(BadArtifact, match="entry 5 of the log is the record of step 6"):
        check(proof_of(run, 5, tmp_path / "data"), Rule(key_of(run)))
    with pytest.raises(BadArtifact, match="log entry"):
        check(proof_of(run, 6, tmp_path / "data"), Rule(key_of(run)))


def test_witnesses_are_in_the_file(signed: Path, tmp_path: Path) -> None:
    run, witness = copy(signed, tmp_path / "run"), PrivateKey(bytes(32))
    cosign(run, "w.example", witness, 1679315147)
    key = note_key("w.example", witness.public, COSIGNATURE)
    data = proof_of(run, 5, tmp_path / "data")
    (found,) = check(data, Rule(key_of(run), (key,), 1)).cosignatures
    assert found.describe() == "w.example at 2023-03-20T12:25:47Z"
    with pytest.raises(Untrusted, match="1 are asked for"):
        check(proof_of(signed, 5, tmp_path / "data"), Rule(key_of(run), (key,), 1))
