"""The predicate: every field comes back, and what cannot be true together is refused when it is made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.step_audit import AUTOMATION, CHECKS, UNDECIDED, VERDICTS, Digests, StepAudit, subject_name
from auditkit.formats.times import time_text
from auditkit.verdict import Verdict
from tests.formats import attestations
from tests.formats.attestations import AUDITS, MATCH, MISMATCH, NO_RESULT, UNAVAILABLE
from tests.formats.strategies import digests

results = st.builds(Digests, digests, digests, digests)


@st.composite
def audits(draw: st.DrawFn) -> StepAudit:
    """Any audit that does not contradict itself."""
    base = draw(st.sampled_from(list(AUDITS.values())))
    expected, first = draw(results), draw(st.integers(0, 1 << 32))
    has_result = base.verdict is Verdict.MATCH or (base.verdict is Verdict.MISMATCH and draw(st.booleans()))
    statuses = draw(st.lists(st.sampled_from(["ok", "failed", "skipped"]), min_size=8, max_size=8))
    checks = base.checks if base.verdict is Verdict.MATCH else dict(zip(CHECKS, [*statuses[1:], "failed"], strict=True))
    return dataclasses.replace(
        base,
        run_id=draw(digests),
        step=draw(st.integers(0, 9_999_999)),
        verdict=draw(st.sampled_from(UNDECIDED)) if base.verdict in UNDECIDED else base.verdict,
        expected=expected,
        computed=(expected if base.verdict is Verdict.MATCH else draw(results)) if has_result else None,
        work=draw(digests) if has_result else "",
        checks=checks,
        started=time_text(first),
        finished=time_text(first + draw(st.integers(0, 1 << 20))),
        milliseconds=draw(st.integers(0, 1 << 53).filter(lambda n: n < 1 << 53)),
        automation=draw(st.sampled_from(AUTOMATION)),
        message=draw(st.text("ab \u00e9", max_size=20)),
    )


@given(audits())
def test_an_audit_comes_back(audit: StepAudit) -> None:
    assert StepAudit.from_value(audit.to_value()) == audit


def test_every_field_is_written() -> None:
    assert set(MATCH.to_value()) == {field.name for field in dataclasses.fields(StepAudit)} - {"part"}  # of version 2
    assert set(UNAVAILABLE.to_value()) == set(MATCH.to_value()) - {"computed"}


CONTRADICTIONS: dict[str, tuple[StepAudit, dict[str, Any], str]] = {
    "match of another": (MATCH, {"computed": attestations.WRONG}, "MATCH, but computed is not what was expected"),
    "match of nothing": (MATCH, {"computed": None, "work": ""}, "MATCH, but computed is not what was expected"),
    "match with a failure": (MATCH, {"checks": MATCH.checks | {8: "failed"}}, "MATCH, but not every check is ok"),
    "match with a gap": (MATCH, {"checks": MATCH.checks | {1: "skipped"}}, "MATCH, but not every check is ok"),
    "match without work": (MATCH, {"work": ""}, "what was computed and the work belong together"),
    "mismatch without a failure": (MISMATCH, {"checks": MATCH.checks}, "MISMATCH, but no check failed"),
    "mismatch without work": (MISMATCH, {"work": ""}, "what was computed and the work belong together"),
    "work without a result": (NO_RESULT, {"work": MATCH.work}, "what was computed and the work belong together"),
    "undecided with a result": (
        UNAVAILABLE, {"computed": MATCH.computed, "work": MATCH.work}, "UNAVAILABLE, but something was computed"
    ),
    "undecided with work": (UNAVAILABLE, {"work": MATCH.work}, "what was computed and the work belong together"),
    "end before begin": (MATCH, {"finished": "2026-01-02T03:04:04Z"}, "finished .*, before it started .*"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused(name: str) -> None:
    audit, change, error = CONTRADICTIONS[name]
    with pytest.raises(BadArtifact, match=f"predicate: {error}"):
        dataclasses.replace(audit, **change)


def test_a_fault_of_the_auditors_machine_has_no_attestation() -> None:
    assert set(VERDICTS) == {"MATCH", "MISMATCH", "BAD_ARTIFACT", "UNAVAILABLE", "UNSUPPORTED", "INCOMPLETE"}
    with pytest.raises(BadArtifact, match='"MACHINE_FAULT" is not "MATCH" or'):
        StepAudit.from_value(UNAVAILABLE.to_value() | {"verdict": "MACHINE_FAULT"})


def test_a_record_that_lies_about_something_else_is_a_mismatch_with_the_expected_digests() -> None:
    audit = dataclasses.replace(MISMATCH, computed=MISMATCH.expected)
    assert StepAudit.from_value(audit.to_value()) == audit


def test_what_a_reader_would_refuse_is_not_written() -> None:
    bad = dataclasses.replace(MATCH, message="two\nlines")
    with pytest.raises(BadArtifact, match="predicate.message: .* holds an unprintable character"):
        bad.statement(attestations.SHA256)


def test_the_subject_names_run_and_step() -> None:
    subject = MATCH.statement(attestations.SHA256).subjects[0]
    assert (subject.name, subject.sha256) == ("demo/step/1", attestations.SHA256)
    assert subject_name("open-nano", 48213) == "open-nano/step/48213"
