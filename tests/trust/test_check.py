"""Checking a pile of attestations: what is accepted, what counts, and what follows for each step."""

from __future__ import annotations

import dataclasses

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unavailable
from auditkit.formats.policy import Auditor, Policy
from auditkit.formats.step_audit import Digests, StepAudit, sha256_of
from auditkit.formats.times import seconds, time_text
from auditkit.trust.attested import Attested, Summary
from auditkit.trust.check import NOT_COUNTED, CheckReport, KnownRun, check
from auditkit.trust.clock import AHEAD_SECONDS
from auditkit.trust.coverage import Status
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.trust.policy import UNLISTED, Trust
from auditkit.verdict import Verdict
from tests.formats import samples
from tests.formats.attestations import KEY, MATCH, MISMATCH, NO_RESULT, OTHER_KEY, UNAVAILABLE, signed, signed_summary

NOW = float(seconds(MATCH.finished))
DEMO = KnownRun(samples.RUN_ID, "demo", samples.CHAIN)
FORK = KnownRun(samples.digest_of("fork"), "fork", samples.CHAIN)
BOTH = Trust(Policy(2, auditors=(Auditor("alice", KEY.public.raw), Auditor("bob", OTHER_KEY.public.raw))))
ONE = Trust.of([KEY.public, OTHER_KEY.public])


def of_step(step: int, audit: StepAudit = MATCH) -> StepAudit:
    """The same finding about another step of the sample run."""
    record = samples.CHAIN[step]
    expected = Digests.of(record)
    computed = expected if audit.verdict is Verdict.MATCH else audit.computed
    return dataclasses.replace(audit, step=step, record=record.digest(), expected=expected, computed=computed)


def of(audit: StepAudit, key: PrivateKey = KEY) -> bytes:
    """The envelope of an audit of any sample step."""
    return sign(audit.statement(sha256_of(samples.CHAIN[audit.step])), key).encode()


def checked(trust: Trust, *files: bytes | AuditkitError, only: KnownRun | None = None) -> CheckReport:
    """The report on files called 0, 1, .. about the sample run."""
    named = [(str(number), data) for number, data in enumerate(files)]
    return check(named, trust, lambda run_id: DEMO if run_id == DEMO.run_id else None, only, now=NOW)


def test_a_policy_that_is_satisfied() -> None:
    report = checked(BOTH, of(MATCH), of(MATCH, OTHER_KEY), signed_summary())
    assert report.verdict is Verdict.MATCH
    assert [file.auditor for file in report.files] == ["alice", "bob", "alice"]
    assert [file.why_not for file in report.files] == ["", "", NOT_COUNTED]
    assert all(file.bound for file in report.files)
    (step,) = report.steps
    assert (step.subject, step.status, step.matches, step.families) == ("demo/step/1", Status.COVERED, 2, 1)
    assert len(report.accepted) == 2


def test_a_finish_time_in_the_future_counts_for_nothing() -> None:
    for ahead, verdict in ((AHEAD_SECONDS, Verdict.MATCH), (AHEAD_SECONDS + 1, Verdict.UNTRUSTED)):
        report = checked(ONE, of(dataclasses.replace(MATCH, finished=time_text(NOW + ahead))))
        assert report.verdict is verdict
        assert len(report.steps) == (verdict is Verdict.MATCH)
    assert "which is in the future" in report.files[0].message


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ([of(MATCH)], Status.PARTIAL),
        ([of(MATCH), of(MATCH)], Status.PARTIAL),  # the same key again
        ([of(UNAVAILABLE), of(UNAVAILABLE, OTHER_KEY)], Status.OPEN),
        ([of(dataclasses.replace(MATCH, automation="ci")), of(MATCH, OTHER_KEY)], Status.PARTIAL),
        ([of(MATCH), of(dataclasses.replace(MISMATCH, automation=""), OTHER_KEY)], Status.DISPUTED),
        ([of(dataclasses.replace(MISMATCH, automation="")), of(MATCH, OTHER_KEY)], Status.DISPUTED),
    ],
)
def test_a_policy_that_is_not_satisfied(files: list[bytes], status: Status) -> None:
    report = checked(BOTH, *files)
    assert [step.status for step in report.steps] == [status]
    assert report.verdict is Verdict.INCOMPLETE


def test_enough_auditors_with_one_other_result_are_a_mismatch() -> None:
    audit = dataclasses.replace(MISMATCH, automation="")
    report = checked(BOTH, of(audit), of(audit, OTHER_KEY))
    assert report.verdict is Verdict.MISMATCH
    assert [step.status for step in report.steps] == [Status.MISMATCH]
    no_result = dataclasses.replace(NO_RESULT, automation="")
    assert checked(BOTH, of(audit), of(no_result, OTHER_KEY)).verdict is Verdict.INCOMPLETE
    assert checked(BOTH, of(no_result), of(no_result, OTHER_KEY)).verdict is Verdict.MISMATCH
    assert checked(ONE, of(audit)).verdict is Verdict.MISMATCH


def test_one_step_that_is_not_covered_is_enough() -> None:
    report = checked(ONE, of(MATCH), of(of_step(2, UNAVAILABLE)))
    assert [step.status for step in report.steps] == [Status.COVERED, Status.OPEN]
    assert report.verdict is Verdict.INCOMPLETE


def test_an_untrusted_file_spoils_it_and_does_not_count() -> None:
    stranger = PrivateKey(bytes([77]) * 32)
    report = checked(BOTH, of(MATCH), of(MATCH, OTHER_KEY), of(MATCH, stranger))
    assert report.verdict is Verdict.UNTRUSTED
    assert [file.verdict for file in report.files] == [Verdict.MATCH, Verdict.MATCH, Verdict.UNTRUSTED]
    assert report.steps[0].matches == 2
    assert report.files[2].says is None


def test_a_known_key_that_the_policy_does_not_list_is_accepted_and_does_not_count() -> None:
    trust = Trust(Policy(1, auditors=(Auditor("alice", KEY.public.raw),)), others=[OTHER_KEY.public])
    report = checked(trust, of(MATCH, OTHER_KEY))
    assert (report.files[0].verdict, report.files[0].why_not) == (Verdict.MATCH, UNLISTED)
    assert report.verdict is Verdict.INCOMPLETE


def test_the_publisher_cannot_vouch_for_itself() -> None:
    report = checked(Trust.of([OTHER_KEY.public], publisher=KEY.public), of(MATCH))
    assert report.files[0].why_not == "the publisher's key"
    assert report.verdict is Verdict.INCOMPLETE


def test_a_file_that_could_not_be_read_or_is_malformed() -> None:
    report = checked(ONE, of(MATCH), Unavailable("cannot read it"), BadArtifact("too large"), b"{}", b"")
    assert [file.verdict for file in report.files[1:]] == [
        Verdict.UNAVAILABLE, Verdict.BAD_ARTIFACT, Verdict.BAD_ARTIFACT, Verdict.BAD_ARTIFACT
    ]  # fmt: skip
    assert report.verdict is Verdict.BAD_ARTIFACT


def test_nothing_is_not_enough() -> None:
    assert checked(ONE).verdict is Verdict.INCOMPLETE
    assert checked(ONE, signed_summary()).verdict is Verdict.INCOMPLETE


def test_a_run_that_is_not_known_leaves_an_attestation_unbound() -> None:
    report = check([("a", of(MATCH)), ("b", signed_summary())], ONE, lambda _: None, now=NOW)
    assert report.verdict is Verdict.MATCH
    assert [file.bound for file in report.files] == [False, False]


def test_one_run_only() -> None:
    report = checked(ONE, of(MATCH), signed_summary(), only=FORK)
    assert [file.message for file in report.files] == [
        f"about run {DEMO.run_id}, not about run {FORK.run_id} (fork)",
        'the subject is "demo/step/1", the step of this run is "fork/step/1"',
    ]
    assert checked(ONE, of(MATCH), signed_summary(), only=DEMO).verdict is Verdict.MATCH
    shorter = KnownRun(samples.RUN_ID, "demo", samples.CHAIN[:1])
    report = checked(ONE, of(MATCH), signed_summary(), only=shorter)
    assert {file.message for file in report.files} == {"about step 1 of a run of 1 steps"}
    assert report.verdict is Verdict.UNTRUSTED


def test_a_run_by_another_name_is_another_subject() -> None:
    report = checked(ONE, of(MATCH), only=KnownRun(samples.RUN_ID, "renamed", samples.CHAIN))
    assert report.files[0].message == 'the subject is "demo/step/1", the step of this run is "renamed/step/1"'


def test_the_same_step_number_of_two_runs_is_two_steps() -> None:
    other = dataclasses.replace(MATCH, run_id=samples.digest_of("other run"))
    report = checked(BOTH, of(MATCH), signed(other, OTHER_KEY))
    assert [(step.run_id, step.matches) for step in report.steps] == sorted([(other.run_id, 1), (MATCH.run_id, 1)])
    assert report.verdict is Verdict.INCOMPLETE


def test_a_very_late_step_needs_no_long_array() -> None:
    late = dataclasses.replace(MATCH, step=9_999_999)
    report = check([("a", signed(late))], ONE, lambda _: None, now=NOW)
    assert [step.step for step in report.steps] == [9_999_999]


def test_the_report_as_json() -> None:
    report = checked(BOTH, of(MATCH), signed_summary(), b"")
    found = report.to_dict()
    assert (found["format"], found["verdict"], found["code"]) == ("auditkit/attest-check/v1", "BAD_ARTIFACT", 4)
    first, second, third = (file.to_dict() for file in report.files)
    assert isinstance(report.files[0].says, Attested)
    assert isinstance(report.files[1].says, Summary)
    assert (first["says"], first["counts"], first["run_id"]) == ("MATCH", True, samples.RUN_ID)
    assert (second["says"], second["counts"], second["run_id"]) == ("SVR", False, "")
    assert (third["accepted"], third["verdict"]) == (False, "BAD_ARTIFACT")
    assert report.steps[0].to_dict()["status"] == "partial"
