"""in-toto's Simple Verification Result v0.1 (in-toto/attestation, spec/predicates/svr.md): a match, for other tools.

It says less than the step audit beside it and is never counted: no run id, no digests but the subject's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import Value
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields, check_text
from auditkit.formats.limits import LIMITS
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import StepAudit
from auditkit.formats.times import check_time
from auditkit.verdict import Verdict

PREDICATE_TYPE = "https://in-toto.io/attestation/svr/v0.1"
VERIFIER = "urn:auditkit:verifier:step-audit:v1"  # rises when the checks behind STEP_MATCH change
STEP_MATCH = "AUDITKIT_STEP_MATCH"  # the step was replayed, and all that its record claims came out
NUMERICS = "AUDITKIT_NUMERICS_V"  # and the version of the specification that it was replayed under
WHAT = "predicate"


@dataclass(frozen=True, slots=True)
class SimpleResult:
    """Who verified (a URI), when, and which properties passed."""

    verifier: str
    time_created: str
    properties: tuple[str, ...]

    @classmethod
    def of(cls, audit: StepAudit) -> Self:
        """The summary of a match. ValueError: of anything else there is none."""
        if audit.verdict is not Verdict.MATCH:
            raise ValueError(f"no properties passed: {audit.verdict.name}")
        if audit.part is not None:
            raise ValueError("a part of a step is no step that matched")
        return cls(VERIFIER, audit.finished, (STEP_MATCH, f"{NUMERICS}{audit.numerics}"))

    @classmethod
    def from_value(cls, value: Value) -> Self:
        """The predicate of a JSON value; BadArtifact naming the field."""
        fields = Fields(value, WHAT)
        verifier = fields.fields("verifier")
        found = cls(
            verifier=verifier.text("id", limit=LIMITS.url_characters),
            time_created=check_time(fields.raw("timeCreated"), fields.name("timeCreated")),
            properties=tuple(
                check_text(item, f"{fields.name('properties')}[{i}]")
                for i, item in enumerate(fields.items("properties", 1, LIMITS.svr_properties))
            ),
        )
        if len(set(found.properties)) != len(found.properties):
            raise BadArtifact(f"{fields.name('properties')}: one is listed twice")
        verifier.done()
        fields.done()
        return found

    def to_value(self) -> dict[str, Value]:
        """The JSON object."""
        return {
            "properties": list(self.properties),
            "timeCreated": self.time_created,
            "verifier": {"id": self.verifier},
        }


def statement(audit: StepAudit, record_sha256: Digest) -> Statement:
    """The second statement about a match, with the same subject as `audit.statement`. ValueError: not a match."""
    return Statement((audit.subject(record_sha256),), PREDICATE_TYPE, SimpleResult.of(audit).to_value())
