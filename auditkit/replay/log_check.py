"""What a verification asks of a signed log. Keys, signatures and proofs are passed in (auditkit/audit/signed_log.py).

With the log, the records of a few steps can be had without all of records.bin: they come from the log, each under the
signed root, and the links of the chain between them and to their neighbours are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from auditkit.errors import BadArtifact
from auditkit.formats.chain import segment_record
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.record import StepRecord
from auditkit.replay.plan import Interval
from auditkit.replay.run import Run


@dataclass(frozen=True)
class LogFound:
    """What the signed log gave.

    `detail` is what check 3 says, empty for a run without a log; `records` are those that were asked for, by step;
    `not_checked` are limits for the report.
    """

    detail: str = ""
    records: Mapping[int, StepRecord] | None = None
    not_checked: tuple[str, ...] = ()


class LogCheck(Protocol):
    """Judges the signed log of a run."""

    def needed(self, run: Run, plan: Sequence[Interval]) -> tuple[int, ...] | None:
        """The steps whose records are to come from the log, ascending; None when all are read from records.bin."""

    def check(self, run: Run, needed: Sequence[int] | None) -> LogFound:
        """Check 3. Untrusted: signature, key, witnesses or history; Unavailable, BadArtifact: the log's files."""


def records_for(run: Run, plan: Sequence[Interval]) -> tuple[int, ...]:
    """The steps whose records a plan needs, with the neighbours that they are chained to."""
    wanted: set[int] = set()
    for interval in plan:
        wanted.update(range(max(0, interval.start - 1), min(run.size, interval.stop + 1)))
    return tuple(sorted(wanted))


def check_links(run: Run, records: Mapping[int, StepRecord]) -> str:
    """Check 2 where only some records were read: each is of this run, names the one before, and fits the states.

    The record of a segment that begins between two of them follows from the manifest.
    """
    # 2 record chain
    for step in sorted(records):
        record, before = records[step], records.get(step - 1)
        segment, begun = run.segment(step), run.timeline.begun(step)
        expected = {
            "run": run.run_id,
            "step": step,
            "numerics": segment.recipe.numerics.version,
            "micro_batches": segment.recipe.batch.micro_batches,
        }
        if step == 0:
            expected |= {"previous": ZERO_DIGEST, "state_before": run.state0}
        elif before is not None:
            link = before if begun is None else segment_record(begun, before)
            expected |= {"previous": link.digest(), "state_before": link.state_after}
        for name, right in expected.items():
            found = getattr(record, name)
            if found != right:
                raise BadArtifact(f"record {step} of the signed log: {name} is {found}, {right} is expected")
        _check_state(run, step + 1, record.state_after)
        if begun is None:  # else the record before says in which root the published state ended
            _check_state(run, step, record.state_before)
    return f"{_spans(sorted(records))}, each naming the one before; the rest of the chain was not read"


def _check_state(run: Run, step: int, recorded: str) -> None:
    state = run.published.get(step)
    if state is not None and state.root != recorded:
        raise BadArtifact(f"published state {step} has root {state.root}, the records of the signed log say {recorded}")


def _spans(steps: Sequence[int]) -> str:
    """Steps in words: records 3 to 5 and 9."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    words = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    if len(words) > 5:
        return f"{len(steps)} records"
    joined = ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
    return f"record{'s' if len(steps) > 1 else ''} {joined}"
