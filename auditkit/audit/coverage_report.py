"""How much of a run has been verified: the coverage of what was collected, as values for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditkit.audit.collect import Collection
from auditkit.trust import escape
from auditkit.trust.coverage import Coverage, Status, ranges, share
from auditkit.trust.page_parts import NOT_CHECKED, UNSIGNED, UNSIGNED_NOT_CHECKED
from auditkit.trust.parts import StepParts
from auditkit.verdict import Verdict

FORMAT = "auditkit/coverage/v1"


@dataclass(frozen=True)
class Finding:
    """A step whose replay did not give what was published, to some: who computed what, and who says MATCH (key ids).

    `results` maps an outcome (state root, gradient root and root of the micro-batches, or "no result") to key ids.
    """

    step: int
    status: Status
    results: dict[str, list[str]]
    matching: list[str]


@dataclass(frozen=True, eq=False)
class CoverageReport:
    """Everything that `auditkit coverage` says.

    `policy`, and in `log` what check 3 says of the signed log ("" for a run without one), in words; `names` of auditors
    by key id. Not read: `passed_over` files of other kinds, `summaries` that are called so, `logs` in folders below
    those that were named. `warnings`: signs that attestations were kept back; with one the verdict is never MATCH.
    """

    run: str
    run_id: str
    manifest: str
    policy: str
    log: str
    log_not_checked: tuple[str, ...]
    made: str
    coverage: Coverage
    collection: Collection
    names: Mapping[str, str] = field(default_factory=dict)
    passed_over: int = 0
    summaries: int = 0
    logs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def signed_log(self) -> str:
        """What check 3 says of the run's signed log, or why there is none."""
        return self.log or UNSIGNED

    @property
    def not_checked(self) -> tuple[str, ...]:
        """What this does not say."""
        unsigned = () if self.log else (UNSIGNED_NOT_CHECKED,)
        return (*NOT_CHECKED, *unsigned, *self.log_not_checked)

    @property
    def verdict(self) -> Verdict:
        """MISMATCH, INCOMPLETE or MATCH, as the coverage; with a warning no better than INCOMPLETE."""
        found = self.coverage.verdict
        return Verdict.INCOMPLETE if found is Verdict.MATCH and self.warnings else found

    def findings(self, status: Status) -> list[Finding]:
        """The steps that are MISMATCH or DISPUTED, ascending."""
        coverage, votes = self.coverage, self.coverage.votes
        steps = coverage.steps(status)
        begins, ends = np.searchsorted(votes.step, steps), np.searchsorted(votes.step, steps, side="right")
        return [
            self._finding(step, status, slice(begin, end))
            for step, begin, end in zip(steps.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]

    def _finding(self, step: int, status: Status, votes: slice) -> Finding:
        rows, found = self.coverage.rows, self.coverage.votes
        results: dict[str, list[str]] = {}
        matching = []
        for key, statement in zip(found.key[votes].tolist(), found.statement[votes].tolist(), strict=True):
            if statement:
                results.setdefault(rows.outcomes[statement - 1], []).append(rows.keys[key])
            else:
                matching.append(rows.keys[key])
        part = self.coverage.parts.get(step)
        for outcome, keys in part.mismatches.items() if part else ():
            results.setdefault(outcome, []).extend(rows.keys[key] for key in keys)
        return Finding(step, status, results, matching)

    def not_verifiable(self) -> dict[str, list[tuple[int, int]]]:
        """Half-open ranges of steps of which an auditor says that the publisher's data could not be had, or is bad."""
        found = {}
        for verdict in (Verdict.UNAVAILABLE, Verdict.BAD_ARTIFACT):
            flags = np.zeros(self.coverage.size, np.bool_)
            flags[self.coverage.not_verifiable(verdict)] = True
            found[verdict.name] = ranges(flags)
        return found

    def _part_value(self, part: StepParts) -> dict[str, Any]:
        coverage = self.coverage
        keys = coverage.rows.keys
        return {
            "step": part.step,
            "micro_batches": part.count,
            "spans": [[span.first, span.stop, span.keys, span.families] for span in part.spans],
            "enough": part.by(coverage.threshold, coverage.families_needed).text,
            "mismatches": [
                {"result": outcome, "keyids": [keys[key] for key in accusing]}
                for outcome, accusing in part.mismatches.items()
            ],
            "remaining": remaining(coverage, part),
        }

    def auditors(self) -> list[dict[str, Any]]:
        """One object for each key, those with most steps first."""
        counts, keys = self.coverage.by_key, self.coverage.rows.keys
        order = np.lexsort((-counts["attestations"], -counts["match"])).tolist()
        return [
            {
                "keyid": keys[key],
                "name": self.names.get(keys[key], ""),
                **{
                    name: int(counts[name][key])
                    for name in ("match", "mismatch", "undecided", "attestations", "counted", "parts")
                },
                "not_counted": self.coverage.not_counted(key),
            }
            for key in order
        ]

    @property
    def without_finding(self) -> int:
        """Number of steps of which nobody who counts says MISMATCH: what the chances of escape are about."""
        totals = self.coverage.totals
        return self.coverage.size - totals[Status.MISMATCH] - totals[Status.DISPUTED]

    def escapes(self) -> list[escape.Escape]:
        """The chances that tampered steps would all have escaped so far."""
        return escape.table(self.without_finding, self.coverage.totals[Status.COVERED])

    def extents(self) -> list[escape.Extent]:
        """How many tampered steps would have been caught, with which confidence."""
        return escape.extents(self.without_finding, self.coverage.totals[Status.COVERED])

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; ranges are half-open."""
        coverage, collection = self.coverage, self.collection
        covered = coverage.totals[Status.COVERED]
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.run,
            "run_id": self.run_id,
            "manifest": self.manifest,
            "signed_log": self.log,
            "warnings": list(self.warnings),
            "collected": self.made,
            "policy": {
                "words": self.policy,
                "threshold": coverage.threshold,
                "families": coverage.families_needed,
            },
            "steps": coverage.size,
            "covered_share": share(covered, coverage.size),
            "totals": {status.name.lower(): coverage.totals[status] for status in Status},
            "mismatches": [_finding_value(f) for f in self.findings(Status.MISMATCH)],
            "disputes": [_finding_value(f) for f in self.findings(Status.DISPUTED)],
            "contradictions": [
                {"step": step, "keyid": coverage.rows.keys[key]} for step, key in coverage.contradictions
            ],
            "not_verifiable": self.not_verifiable(),
            "open": coverage.gaps,
            "partial": coverage.ranges(Status.PARTIAL),
            "parts": [self._part_value(part) for part in coverage.parts.values()],
            "auditors": self.auditors(),
            "families": coverage.by_family,
            "escape": {
                "steps": self.without_finding,
                "covered": covered,
                "chances": [{"tampered": e.tampered, "chance": e.chance, "text": e.text} for e in self.escapes()],
                "caught": [{"percent": e.confidence, "tampered": e.tampered} for e in self.extents() if e.tampered],
            },
            "attestations": {
                "counted_in": len(coverage.rows) + len(coverage.part_rows),
                "of_parts": len(coverage.part_rows),
                "verified_now": collection.verified,
                "verified_before": collection.remembered,
                "repeats": collection.repeats,
                "summaries": collection.summaries + self.summaries,
                "other_files": self.passed_over,
                "logs_not_read": list(self.logs),
            },
            "refused": {
                "count": collection.refused_count,
                "reasons": dict(collection.reasons),
                "all": [{"where": r.where, "reason": r.reason} for r in collection.refused],
            },
            "not_checked": list(self.not_checked),
        }


def remaining(coverage: Coverage, part: StepParts) -> str:
    """What is left of a step of which micro-batches were audited: more of them, and the update at least."""
    if coverage.status[part.step] == Status.COVERED:
        return ""
    left = part.by(coverage.threshold, coverage.families_needed).others
    return f"micro-batches {left.text}; the update" if left.ranges else "the update"


def _finding_value(finding: Finding) -> dict[str, Any]:
    return {
        "step": finding.step,
        "computed": [{"result": result, "keyids": keyids} for result, keyids in finding.results.items()],
        "match": finding.matching,
    }
