"""What a verification found: the numbered checks, each step's verdict, and what was not checked."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import NoReturn

from auditkit.formats.digest import Digest
from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.step_audit import Digests
from auditkit.replay.compare import TensorDifference
from auditkit.verdict import Verdict, worst

FORMAT = "auditkit/report/v1"

# The names of the numbered checks; 1 to 3 concern the run, 4 to 8 each step.
CHECKS = {
    1: "manifest",
    2: "record chain",
    3: "record against the log root",
    4: "start state root",
    5: "batch digest",
    6: "replay",
    7: "end state root",
    8: "gradient, micro-batches, loss, norm, learning rate",
}


class Status(enum.Enum):
    """How one check ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One numbered check: its place in CHECKS, how it ended and what was compared."""

    number: int
    status: Status
    detail: str = ""

    @property
    def name(self) -> str:
        """What the check is about."""
        return CHECKS[self.number]

    def to_dict(self) -> dict[str, object]:
        """The check as JSON values."""
        return {"number": self.number, "name": self.name, "status": self.status.value, "detail": self.detail}


@dataclass(frozen=True)
class FieldDifference:
    """A field of the record that came out differently: its published and its computed text."""

    field: str
    published: str
    computed: str

    def to_dict(self) -> dict[str, object]:
        """The difference as JSON values."""
        return {"field": self.field, "published": self.published, "computed": self.computed}


@dataclass(frozen=True)
class PartReport:
    """What was audited of a step of which only some micro-batches were asked for.

    chosen              the micro-batches
    expected, obtained  root over their published leaves, and over those computed here; "" where there are none
    gradient            that of the whole step as it came out here, if all micro-batches were asked for, else ""
    """

    chosen: MicroBatches
    expected: Digest
    obtained: Digest = ""
    gradient: Digest = ""

    def to_dict(self) -> dict[str, object]:
        """The part as JSON values."""
        return {
            "micro_batches": self.chosen.text,
            "count": self.chosen.count,
            "expected": self.expected,
            "obtained": self.obtained,
            "gradient": self.gradient,
        }


@dataclass(frozen=True)
class StepReport:
    """The outcome for one step.

    `published` and `computed` are the state roots after the step (empty when it was not reached); `start` is the step
    of the state that the replay began from, so that `step - start` steps lie on the way; `on_the_way` says that the
    step was not asked for; `seconds` is the time of this step alone, `started` and `finished` (UTC) when it was.

    record, record_sha256   BLAKE3 and SHA-256 of the canonical record
    expected, obtained      the digests that the record claims, and those computed here; None where there are none
    work                    the proof of work under the caller's key; "" without a key or a result
    skipped                 why the recipe skips the step, in words; "" for one that takes its update
    part                    None for a whole step; else what was asked for of it, and there is no state after it
    """

    step: int
    verdict: Verdict
    start: int
    checks: tuple[Check, ...] = ()
    published: str = ""
    computed: str = ""
    record: str = ""
    record_sha256: str = ""
    expected: Digests | None = None
    obtained: Digests | None = None
    work: str = ""
    skipped: str = ""
    message: str = ""
    hint: str = ""
    differences: tuple[FieldDifference, ...] = ()
    tensor: TensorDifference | None = None
    seconds: float = 0.0
    started: datetime | None = None
    finished: datetime | None = None
    on_the_way: bool = False
    part: PartReport | None = None

    def to_dict(self) -> dict[str, object]:
        """The step's outcome as JSON values."""
        return {
            "step": self.step,
            "verdict": self.verdict.name,
            "start": self.start,
            "on_the_way": self.on_the_way,
            "record": self.record,
            "record_sha256": self.record_sha256,
            "published": self.published,
            "computed": self.computed,
            "expected": asdict(self.expected) if self.expected else None,
            "obtained": asdict(self.obtained) if self.obtained else None,
            "work": self.work,
            "skipped": self.skipped,
            "part": self.part.to_dict() if self.part else None,
            "message": self.message,
            "hint": self.hint,
            "checks": [check.to_dict() for check in self.checks],
            "differences": [difference.to_dict() for difference in self.differences],
            "tensor": self.tensor.to_dict() if self.tensor else None,
            "seconds": round(self.seconds, 3),
            "started": utc_text(self.started) if self.started else "",
            "finished": utc_text(self.finished) if self.finished else "",
        }


@dataclass(frozen=True)
class Report:
    """The outcome of a verification.

    `numerics` is the version of the specification that the run was checked against; 0 before its manifest was read.
    `wanted` are the steps asked for, of which `steps` may lack some; the selection says the same in words.
    A report has no truth value, since `if report:` would read a mismatch as success: compare `verdict` instead.
    """

    run: str
    selection: str
    verdict: Verdict
    run_id: str = ""
    manifest: str = ""
    numerics: int = 0
    wanted: tuple[int, ...] = ()
    checks: tuple[Check, ...] = ()
    steps: tuple[StepReport, ...] = ()
    not_checked: tuple[str, ...] = ()
    machine: dict[str, str] = field(default_factory=dict)
    message: str = ""
    hint: str = ""

    def __bool__(self) -> NoReturn:
        raise TypeError("a Report has no truth value; compare report.verdict with Verdict.MATCH")

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.run,
            "run_id": self.run_id,
            "manifest": self.manifest,
            "numerics": self.numerics,
            "selection": self.selection,
            "checks": [check.to_dict() for check in self.checks],
            "steps": [step.to_dict() for step in self.steps],
            "not_checked": list(self.not_checked),
            "machine": self.machine,
            "message": self.message,
            "hint": self.hint,
        }

    def to_json(self) -> str:
        """The report as one JSON object on one line, ASCII only."""
        return json.dumps(self.to_dict(), ensure_ascii=True, allow_nan=False)


def utc_text(moment: datetime) -> str:
    """A moment in UTC to the second: "2026-01-02T03:04:05Z"."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def overall(steps: Sequence[StepReport], wanted: Sequence[int]) -> Verdict:
    """The verdict over all steps: the worst one found, and never MATCH unless every wanted step matched."""
    found = [step.verdict for step in steps]
    matched = {step.step for step in steps if step.verdict is Verdict.MATCH}
    if not wanted or not matched.issuperset(wanted):
        found.append(Verdict.INCOMPLETE)
    return worst(found)
