"""What an explanation says: quantities of a step in the order in which it computes them, each with what was found."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from auditkit.explain.patterns import StatePattern
from auditkit.explain.tracing import Parting
from auditkit.replay.report import Report, StepReport
from auditkit.verdict import Verdict

FORMAT = "auditkit/explain/v1"


class Standing(enum.Enum):
    """How a published quantity stands to what was computed."""

    SAME = "same"  # as the declared step gives it
    REPRODUCED = "reproduced"  # as the step gives it under the causes found
    FOLLOWS = "follows"  # from what is published before it, where that could not be reproduced
    DIFFERENT = "different"  # as nothing that was tried gives it
    UNKNOWN = "unknown"  # not published, or it rests on one that could not be reproduced


@dataclass(frozen=True)
class Cause:
    """A way to compute the step, tried and confirmed: with it, the published `quantity` comes out, bit for bit.

    `key` names the kind of cause for programs, `words` is what was done otherwise.
    """

    key: str
    words: str
    quantity: str

    def to_dict(self) -> dict[str, object]:
        """The cause as JSON values."""
        return {"key": self.key, "words": self.words, "quantity": self.quantity}


@dataclass(frozen=True)
class Quantity:
    """One published quantity of the step, its standing, and what is known of the place where it departs."""

    name: str
    standing: Standing
    detail: str = ""

    def to_dict(self) -> dict[str, object]:
        """The quantity as JSON values."""
        return {"name": self.name, "standing": self.standing.value, "detail": self.detail}


@dataclass
class Story:
    """An explanation in the making."""

    quantities: list[Quantity] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    not_tried: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, standing: Standing, detail: str = "") -> None:
        """Add a quantity."""
        self.quantities.append(Quantity(name, standing, detail))

    def found(self, key: str, words: str, quantity: str) -> None:
        """Add a cause that was confirmed."""
        self.causes.append(Cause(key, words, quantity))

    @property
    def confirmed(self) -> bool:
        """Whether every published quantity comes out under the causes."""
        standings = {quantity.standing for quantity in self.quantities}
        return bool(self.causes) and not standings & {Standing.DIFFERENT, Standing.UNKNOWN, Standing.FOLLOWS}


@dataclass(frozen=True)
class Explanation:
    """What `explain` found out about one step.

    `step` is the step examined: the first on the way that does not match, which may come before the one asked for.
    `first` is the first published quantity that departs from the declared step.
    """

    report: Report
    asked: int
    step: StepReport | None
    quantities: Sequence[Quantity] = ()
    causes: Sequence[Cause] = ()
    confirmed: bool = False
    pattern: StatePattern | None = None
    parting: Parting | None = None
    tried: Sequence[str] = ()
    not_tried: Sequence[str] = ()
    notes: Sequence[str] = ()
    spent: int = 0

    @property
    def verdict(self) -> Verdict:
        """The verification's verdict: an explanation does not change it."""
        return self.report.verdict

    @property
    def first(self) -> Quantity | None:
        """The first published quantity that departs."""
        return next((q for q in self.quantities if q.standing is not Standing.SAME), None)

    @property
    def message(self) -> str:
        """The outcome in one sentence."""
        if self.step is None:
            matched = self.report.verdict is Verdict.MATCH
            return "the step matches: nothing to explain" if matched else "there is no mismatch to explain"
        causes = "; and ".join(dict.fromkeys(cause.words for cause in self.causes))
        first = self.first
        if not self.quantities:
            return "not explained"
        where = f"{first.name}{f': {first.detail}' if first.detail else ''}" if first else "none"
        if self.confirmed:
            return f"confirmed: replaying with {causes} gives all that is published of the step, bit for bit"
        if self.causes:
            given = ", ".join(dict.fromkeys(cause.quantity for cause in self.causes))
            missing = (Standing.DIFFERENT, Standing.UNKNOWN)
            left = next((q for q in self.quantities if q.standing in missing), self.quantities[-1])
            return f"in part: replaying with {causes} gives the published {given}, bit for bit, but not {left.name}"
        op = f"; by the trace, {self.parting.describe()}" if self.parting and not self.parting.equal else ""
        return f"not explained; the first quantity that departs is {where}{op}"

    def to_dict(self) -> dict[str, object]:
        """The explanation as JSON values."""
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.report.run,
            "run_id": self.report.run_id,
            "manifest": self.report.manifest,
            "asked": self.asked,
            "step": self.step.step if self.step else None,
            "message": self.message,
            "confirmed": self.confirmed,
            "first": self.first.to_dict() if self.first else None,
            "causes": [cause.to_dict() for cause in self.causes],
            "quantities": [quantity.to_dict() for quantity in self.quantities],
            "state": self.pattern.to_dict() if self.pattern else None,
            "trace": self.parting.to_dict() if self.parting else None,
            "tried": list(self.tried),
            "not_tried": list(self.not_tried),
            "notes": list(self.notes),
            "micro_batches_replayed": self.spent,
            "checks": [c.to_dict() for c in (*self.report.checks, *(self.step.checks if self.step else ()))],
            "differences": [d.to_dict() for d in self.step.differences] if self.step else [],
            "not_checked": list(self.report.not_checked),
            "machine": self.report.machine,
            "hint": self.report.hint,
        }
