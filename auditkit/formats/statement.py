"""in-toto Statements v1 (https://github.com/in-toto/attestation, spec/v1/statement.md): a predicate about subjects.

Of what in-toto allows, one form is accepted: canonical JSON, and subjects that are named and have a SHA-256 and no
other digest (public verifiers look for that one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import Value
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS

TYPE = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a statement is about: a name, and SHA-256 of the bytes as 64 hex digits."""

    name: str
    sha256: Digest


@dataclass(frozen=True, slots=True)
class Statement:
    """A predicate of some type about one or more subjects."""

    subjects: tuple[Subject, ...]
    predicate_type: str
    predicate: dict[str, Value]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The statement of canonical JSON; BadArtifact naming the field."""
        return cls.from_value(canonical.loads(data, what="statement", limit=LIMITS.envelope_bytes))

    @classmethod
    def from_value(cls, value: Value) -> Self:
        """The statement of a JSON value; BadArtifact naming the field."""
        fields = Fields(value, "statement")
        fields.choice("_type", TYPE)
        statement = cls(
            subjects=tuple(map(_subject, fields.rows("subject", 1, LIMITS.statement_subjects))),
            predicate_type=fields.text("predicateType"),
            predicate=fields.raw("predicate"),
        )
        fields.done()
        if type(statement.predicate) is not dict:
            raise BadArtifact("statement.predicate: not an object")
        return statement

    def encode(self) -> bytes:
        """Canonical JSON; BadArtifact for values that it cannot hold."""
        value = {
            "_type": TYPE,
            "predicate": self.predicate,
            "predicateType": self.predicate_type,
            "subject": [{"digest": {"sha256": s.sha256}, "name": s.name} for s in self.subjects],
        }
        return canonical.dumps(value, what="statement")


def _subject(fields: Fields) -> Subject:
    digest = fields.fields("digest")
    subject = Subject(name=fields.text("name"), sha256=digest.digest("sha256"))
    digest.done()
    fields.done()
    return subject
