"""Version 2 of the predicate: an audit of some micro-batches, which nobody can read as one of the step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from auditkit.errors import BadArtifact, Untrusted
from auditkit.formats import svr
from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.step_audit import PART_TYPE, PREDICATE_TYPE, AuditedPart, StepAudit
from auditkit.formats.work import part_work_key
from auditkit.trust.attested import read_attestation
from auditkit.trust.envelope import sign
from auditkit.verdict import Verdict
from tests.formats import samples
from tests.formats.attestations import KEY, KEYS, MATCH, MISMATCH, RECORD, SHA256, UNAVAILABLE

COUNT = RECORD.micro_batches
ALL = MicroBatches(((0, COUNT),), COUNT)
ROOT, OTHER = samples.digest_of("leaves"), samples.digest_of("other leaves")
CHECKS = MATCH.checks | {7: "skipped"}
FIRST = MicroBatches(((0, 1),), COUNT)

PART = dataclasses.replace(MATCH, computed=None, checks=CHECKS, part=AuditedPart(FIRST, ROOT, ROOT))
WHOLE = dataclasses.replace(PART, part=AuditedPart(ALL, RECORD.micro_root, RECORD.micro_root, MATCH.expected.gradient))
WRONG = dataclasses.replace(
    PART, verdict=Verdict.MISMATCH, checks=CHECKS | {8: "failed"}, part=AuditedPart(FIRST, ROOT, OTHER)
)
NOTHING = dataclasses.replace(
    UNAVAILABLE, checks=CHECKS | {4: "failed", 5: "skipped", 6: "skipped", 8: "skipped"}, part=AuditedPart(FIRST)
)


def read(audit: StepAudit) -> Any:
    return read_attestation(sign(audit.statement(SHA256), KEY).encode(), KEYS, records=samples.CHAIN)


@pytest.mark.parametrize("audit", [PART, WHOLE, WRONG, NOTHING])
def test_it_is_read_back(audit: StepAudit) -> None:
    assert StepAudit.from_value(audit.to_value(), PART_TYPE) == audit
    assert audit.statement(SHA256).predicate_type == PART_TYPE
    found = read(audit)
    assert found.part == audit.part and found.verdict is audit.verdict
    assert found.entry().part == f"{audit.part.micro_batches.text}/{COUNT}"  # type: ignore[union-attr]


def test_version_1_knows_no_part_and_version_2_has_one() -> None:
    with pytest.raises(BadArtifact, match='unknown key "part"'):
        StepAudit.from_value(NOTHING.to_value(), PREDICATE_TYPE)
    with pytest.raises(BadArtifact, match='key "part" is missing'):
        StepAudit.from_value(MATCH.to_value(), PART_TYPE)
    assert MATCH.statement(SHA256).predicate_type == PREDICATE_TYPE


def test_there_is_no_summary_of_a_part() -> None:
    with pytest.raises(ValueError, match="part"):
        svr.statement(PART, SHA256)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"computed": MATCH.computed}, "with the digests of a whole step"),
        ({"checks": MATCH.checks}, "check 7, the state after the step, is not skipped"),
        ({"checks": CHECKS | {6: "skipped"}}, "not every check is ok"),
        ({"part": AuditedPart(FIRST, ROOT, OTHER)}, "computed is not what was expected"),
        ({"part": AuditedPart(FIRST)}, "computed is not what was expected"),
        ({"part": AuditedPart(FIRST, ROOT, ROOT, ROOT)}, "a gradient is that of all micro-batches"),
        ({"part": AuditedPart(ALL, RECORD.micro_root, RECORD.micro_root)}, "a gradient is that of all micro-batches"),
        ({"part": AuditedPart(ALL, ROOT, ROOT, MATCH.expected.gradient)}, "other leaves than the step"),
        (
            {"part": AuditedPart(ALL, RECORD.micro_root, RECORD.micro_root, OTHER)},
            "computed is not what was expected",
        ),
        ({"work": ""}, "belong together"),
        ({"verdict": Verdict.UNAVAILABLE}, "something was computed"),
    ],
)
def test_what_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArtifact, match=says):
        dataclasses.replace(PART, **change)


@pytest.mark.parametrize(
    ("key", "value"),
    [("count", 0), ("count", COUNT + 1), ("micro_batches", "0,0"), ("micro_batches", f"{COUNT}"), ("leaves", "x")],
)
def test_a_part_of_a_wrong_form_is_refused(key: str, value: object) -> None:
    predicate = PART.to_value()
    predicate["part"] = {**PART.part.to_value(), key: value}  # type: ignore[union-attr]
    statement = dataclasses.replace(PART.statement(SHA256), predicate=predicate)
    with pytest.raises(Untrusted):
        read_attestation(sign(statement, KEY).encode(), KEYS, records=samples.CHAIN)


def test_equal_outcomes_are_equal_results() -> None:
    outcome = read(WRONG).outcome
    assert outcome == f"micro-batches 0: leaves {OTHER}"
    assert outcome != read(MISMATCH).outcome
    assert read(PART).outcome == ""


def test_the_key_of_parts_is_not_that_of_the_step() -> None:
    step_key = bytes(range(32))
    assert part_work_key(step_key) != step_key
    with pytest.raises(ValueError, match="32 bytes"):
        part_work_key(b"x")
