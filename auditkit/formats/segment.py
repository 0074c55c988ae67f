"""The segment record: the published claim that recipe or data changed between two steps, an entry of the run's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.digest import DATA_ROOT, Digest, content_digest, root
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.record import FORMAT as RECORD_FORMAT
from auditkit.formats.record import StepRecord

FORMAT = "auditkit/segment/v1"


def data_digest(data: DataSpec) -> Digest:
    """What a segment record calls its data: BLAKE3, under DATA_ROOT, of the canonical data section."""
    return root(DATA_ROOT, canonical.dumps(data.to_value(), what="data"))


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The claim: before step `step` of run `run`, the state became one of another recipe or place in the data.

    `previous` is the digest of the record of the step before, `state_before` the root of the state that it ended in.
    The same tensors have root `state_after` under the digest `recipe` and with `sequence` sequences consumed of the
    data of digest `data`; the record of the step itself names this record as its previous one and begins from there.
    """

    run: Digest
    step: int
    previous: Digest
    recipe: Digest
    data: Digest
    sequence: int
    state_before: Digest
    state_after: Digest

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The record of canonical JSON; BadArtifact naming the field."""
        what = "segment record"
        fields = Fields(canonical.loads(data, what=what, limit=LIMITS.record_bytes), what)
        fields.format(FORMAT)
        record = cls(
            run=fields.digest("run"),
            step=fields.integer("step", 1, LIMITS.steps - 1),
            previous=fields.digest("previous"),
            recipe=fields.digest("recipe"),
            data=fields.digest("data"),
            sequence=fields.integer("sequence"),
            state_before=fields.digest("state_before"),
            state_after=fields.digest("state_after"),
        )
        fields.done()
        if record.state_before == record.state_after:
            raise BadArtifact(f"{what}: state_after is state_before, so that nothing changed")
        return record

    def encode(self) -> bytes:
        """Canonical JSON."""
        names = ("data", "previous", "recipe", "run", "sequence", "state_after", "state_before", "step")
        value: dict[str, canonical.Value] = {name: getattr(self, name) for name in names}
        return canonical.dumps({**value, "format": FORMAT}, what="segment record")

    def digest(self) -> Digest:
        """Plain BLAKE3 of the canonical JSON."""
        return content_digest(self.encode())


LogEntry = StepRecord | SegmentRecord


def parse_entry(data: bytes) -> LogEntry:
    """An entry of a run's log, by its format; BadArtifact naming the field, Unsupported for a later version."""
    value = canonical.loads(data, what="log entry", limit=LIMITS.record_bytes)
    named = value.get("format") if type(value) is dict else None
    kind = named.rpartition("/")[0] if type(named) is str else ""
    if kind == FORMAT.rpartition("/")[0]:
        return SegmentRecord.parse(data)
    if kind == RECORD_FORMAT.rpartition("/")[0]:
        return StepRecord.parse(data)
    Fields(value, "log entry").format(RECORD_FORMAT, FORMAT)  # raises: it is neither
    raise BadArtifact("log entry: neither a step's record nor a segment's")
