"""Nights that attest: what is signed, submitted and drawn next, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from auditkit.audit.assigned import Subject
from auditkit.audit.attest import Attester
from auditkit.audit.nightly import Plan, nightly
from auditkit.audit.submit import Result, Status
from auditkit.errors import AuditkitError, Unavailable, Unsupported, Untrusted
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.replay.verify import verify
from auditkit.trust import key_files
from auditkit.trust.assignment import Ranks, assign
from auditkit.trust.attested import read_attestation
from auditkit.trust.coverage import Coverage, cover
from auditkit.trust.keys import PrivateKey
from auditkit.trust.policy import Trust
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.audit.nights import BEACON, Make, clock, make, own_cache, result
from tests.replay import make_run
from tests.replay.flaky import FlakyBackend, FlippedOps
from tests.store.tools import FakeClock

__all__ = ["clock", "make", "own_cache"]


@pytest.fixture(scope="module")
def attester() -> Attester:
    """The nightly job's key, always the same one: the steps depend on it."""
    return Attester(PrivateKey(bytes([2]) * 32), "nightly")


def test_evidence_that_cannot_be_kept_does_not_keep_a_mismatch_from_being_signed(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester
) -> None:
    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")

    def evidence() -> dict[str, bytes]:
        raise Unavailable("cannot read checkpoints: input/output error")

    night = nightly(Plan(count=1000), make(lying, attester, evidence=evidence), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH
    assert [name for name in night.attestations if name.startswith("attestations/step-3.")]
    assert "UNAVAILABLE: cannot read checkpoints: input/output error" in result(night)["notes"]


def test_every_step_is_attested_as_nightly_and_submitted(
    make: Make, honest: Path, tmp_path: Path, attester: Attester
) -> None:
    sent: list[bytes] = []

    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        sent.extend(data for _, data in envelopes)
        return [Result(name, "ab" * 32, Status.TAKEN, at) for at, (name, _) in enumerate(envelopes, 1)]

    night = nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path)
    found = result(night)
    assert (found["verdict"], found["attested"], found["keyid"]) == ("MATCH", True, attester.keyid)
    assert [(entry["status"], entry["position"]) for entry in found["submitted"]] == [("taken", 1), ("taken", 2)]
    with open_run(str(honest)) as run:
        expected = assign(Ranks(run.run_id, attester.keyid, BEACON.value), run.size, 2).tolist()
        keys = {attester.keyid: attester.key.public}
        read = [read_attestation(data, keys, run_id=run.run_id, records=run.records) for data in sent]
    assert [attested.step for attested in read] == sorted(expected)
    assert {(attested.verdict, attested.automation) for attested in read} == {(Verdict.MATCH, "nightly")}
    assert all(attested.work for attested in read)
    kept = [(night.folder / name).read_bytes() for name in found["attestations"] if not name.endswith(".svr.json")]
    assert kept == sent
    assert len(found["attestations"]) == 4  # and two summaries


def test_steps_that_this_key_has_spoken_on_are_not_drawn_again_until_all_are_done(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, clock: FakeClock
) -> None:
    entries: list[Entry] = []
    drawn: list[int] = []

    def said(subject: Subject) -> tuple[Coverage, str]:
        return cover(Rows.of(entries), Trust.of([attester.key.public]), subject.size), "cd" * 32

    for _ in range(5):
        clock.time += 1
        night = nightly(Plan(count=2), make(honest, attester, said=said), tmp_path)
        assert night.assigned is not None
        assert night.assigned.policy == ("cd" * 32 if len(drawn) < make_run.STEPS else "")
        drawn += night.assigned.steps
        entries += [Entry(s, attester.keyid, Verdict.MATCH, "cpu-x86_64", 1, "nightly") for s in night.assigned.steps]
    assert sorted(drawn[: make_run.STEPS]) == list(range(make_run.STEPS))
    assert any("spoken on every step" in note for note in night.notes)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(Unavailable("busy"), Verdict.INCOMPLETE), (Untrusted("no"), Verdict.UNTRUSTED)],
)
def test_a_registry_that_fails_spoils_the_night_but_loses_nothing(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, error: AuditkitError, verdict: Verdict
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        raise error

    night = nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path)
    found = result(night)
    assert night.verdict is verdict
    assert len(found["attestations"]) == 4
    assert found["submitted"] == []
    assert f"{error.verdict.name}: {error.message}" in found["notes"]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (Status.KNOWN, Verdict.MATCH),
        (Status.REFUSED, Verdict.UNTRUSTED),
        (Status.LATER, Verdict.INCOMPLETE),  # nothing is known of earlier nights
    ],
)
def test_what_a_registry_did_not_take_is_part_of_the_verdict(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, status: Status, verdict: Verdict
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        return [Result(name, "ab" * 32, status, message="because") for name, _ in envelopes]

    assert nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path).verdict is verdict


def test_a_registry_that_fails_does_not_hide_a_mismatch(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        raise Untrusted("no")

    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    night = nightly(Plan(count=1000), make(lying, attester, submit=submit), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH


def test_a_night_goes_on_where_what_was_attested_cannot_be_read(
    make: Make, honest: Path, tmp_path: Path, attester: Attester
) -> None:
    def said(subject: Subject) -> tuple[Coverage | None, str]:
        raise Unavailable("the log does not answer")

    night = nightly(Plan(), make(honest, attester, said=said), tmp_path)
    assert night.verdict is Verdict.MATCH
    assert any("the log does not answer" in note for note in night.notes)


def test_a_disk_that_fails_while_signing_does_not_lose_the_report(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Unsupported("the disk is full")

    monkeypatch.setattr(key_files, "write_new", full)
    night = nightly(Plan(), make(honest, attester), tmp_path)
    assert night.verdict is Verdict.UNSUPPORTED
    assert (night.folder / "report.json").exists()
    assert "UNSUPPORTED: the disk is full" in result(night)["notes"]


def test_a_mismatch_is_signed_and_told_though_no_report_can_be_written(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Unsupported("the disk is full")

    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    monkeypatch.setattr("auditkit.audit.nightly._write", full)
    monkeypatch.setattr("auditkit.audit.history.write", full)
    night = nightly(Plan(count=1000), make(lying, attester), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH
    assert [name for name in night.attestations if name.startswith("attestations/step-3.")]
    assert night.notes.count("UNSUPPORTED: the disk is full") == 3  # report, result and history


def test_a_machine_that_disagrees_with_itself_signs_nothing_and_is_not_tried_again(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, clock: FakeClock
) -> None:
    def replay(steps: str) -> Report:
        return verify(
            str(honest),
            steps=steps,
            backend=FlakyBackend(FlippedOps("adamw"), 1, "flaky"),
            work_key=attester.work_key,
            clock=clock,
        )

    night = nightly(Plan(count=1), make(honest, attester, verify=replay), tmp_path)
    assert night.verdict is Verdict.MACHINE_FAULT
    assert night.assigned is not None and night.assigned.steps[0] in make_run.PUBLISHED
    found = result(night)
    assert found["attestations"] == []
    assert any("says nothing about the publisher" in note for note in found["notes"])
    assert clock.waits == []
