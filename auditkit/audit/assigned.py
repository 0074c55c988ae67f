"""The steps given to one auditor, with all that it takes to compute them again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.formats.digest import Digest, content_digest
from auditkit.trust.assignment import DISPUTED, NEVER, OPEN, SETTLED, Levels, Ranks, assign, needs
from auditkit.trust.beacon import Beacon
from auditkit.trust.coverage import Coverage
from auditkit.verdict import Verdict

FORMAT = "auditkit/assignment/v1"
NO_KEY = "0" * 64  # stands for the key id of whoever verifies without signing


@dataclass(frozen=True)
class Subject:
    """What is shared out: a run of `size` steps, and to whom, by key id."""

    run: str
    run_id: Digest
    size: int
    keyid: Digest = NO_KEY


@dataclass(frozen=True, eq=False)
class Assigned:
    """The steps that a beacon gives, best first; `count` were asked for, and fewer may be left.

    `levels` is (size,) u8, the need of each step; `policy` the content digest of the policy under which it was found,
    "" without one; `attestations` how many it rests on.
    """

    subject: Subject
    beacon: Beacon
    count: int
    levels: Levels
    policy: Digest = ""
    attestations: int = 0

    @cached_property
    def ranks(self) -> Ranks:
        """The rank of every step for this auditor."""
        return Ranks(self.subject.run_id, self.subject.keyid, self.beacon.value)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps to verify, the neediest first."""
        return tuple(assign(self.ranks, self.subject.size, self.count, self.levels).tolist())

    @property
    def totals(self) -> dict[str, int]:
        """How many steps of the run are how needy; they add up to its size."""
        found = np.bincount(self.levels, minlength=256)
        partial = int(found[OPEN + 1 : SETTLED].sum())
        names = {"disputed": DISPUTED, "open": OPEN, "settled": SETTLED, "spoken": NEVER}
        return {name: int(found[level]) for name, level in names.items()} | {"partial": partial}

    def need(self, step: int) -> str:
        """How needy a step is, in one word."""
        level = int(self.levels[step])
        return {DISPUTED: "disputed", OPEN: "open", SETTLED: "settled", NEVER: "spoken"}.get(level, "partial")

    def to_dict(self) -> dict[str, object]:
        """The assignment as JSON values; a rank is written as its 8 bytes, as in docs/assignment.md."""
        return {
            "format": FORMAT,
            "verdict": Verdict.MATCH.name,
            "code": Verdict.MATCH.code,
            "run": self.subject.run,
            "run_id": self.subject.run_id,
            "size": self.subject.size,
            "keyid": self.subject.keyid,
            "beacon": self.beacon.to_dict(),
            "count": self.count,
            "policy": self.policy,
            "attestations": self.attestations,
            "needs": self.totals,
            "needs_digest": content_digest(self.levels),
            "steps": [
                {
                    "step": step,
                    "need": self.need(step),
                    "level": int(self.levels[step]),
                    "rank": self.ranks.of(step).to_bytes(8, "little").hex(),
                }
                for step in self.steps
            ],
        }


def assigned(
    subject: Subject, beacon: Beacon, count: int, *, coverage: Coverage | None = None, policy: Digest = ""
) -> Assigned:
    """The steps for one auditor; without a coverage all are open."""
    if coverage is None:
        return Assigned(subject, beacon, count, np.full(subject.size, OPEN, np.uint8), policy)
    return Assigned(subject, beacon, count, needs(coverage, subject.keyid), policy, len(coverage.rows))
