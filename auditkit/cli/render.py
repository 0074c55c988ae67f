"""A verification report as text: each check, each step with both digests in full, the verdict, what was not checked."""

from __future__ import annotations

from collections.abc import Iterator

from auditkit.cli.console import printable
from auditkit.replay.report import Check, PartReport, Report, Status, StepReport
from auditkit.verdict import Verdict

FULL_STEPS = 3  # of more steps than this, those that match take one line each

_SAID = {
    Verdict.MATCH: "every claim asked for was computed here and equals the published one",
    Verdict.MISMATCH: "computed twice here with the same result, and different from what was published",
    Verdict.BAD_ARTIFACT: "a published file is malformed, or not the bytes its digest names",
    Verdict.UNAVAILABLE: "something could not be fetched or read",
    Verdict.UNSUPPORTED: "this device, memory, disk or version cannot do it",
    Verdict.MACHINE_FAULT: "this machine calculates wrongly; that says nothing about the publisher",
    Verdict.UNTRUSTED: "a signature, a key, or the history of the signed log is not the right one",
    Verdict.INCOMPLETE: "nothing, or not all that was asked for, was verified",
}


def report_text(report: Report) -> str:
    """The whole report; ASCII unless a publisher's own words are not."""
    return "\n".join(_lines(report)) + "\n"


def verdict_lines(verdict: Verdict, message: str, hint: str, said: str) -> Iterator[str]:
    """The verdict in words, its reason and what would help."""
    yield f"{verdict.name}: {said}" if said else verdict.name
    if message:
        yield f"  {printable(message)}"
    if hint:
        yield f"  hint: {printable(hint)}"


def _lines(report: Report) -> Iterator[str]:
    yield f"run        {printable(report.run)}"
    if report.run_id:
        yield f"run id     {report.run_id}"
        yield f"manifest   {report.manifest}"
    yield f"asked for  {report.selection}"
    if report.machine:
        yield f"device     {_machine(report)}"
    yield ""
    yield from map(_check, report.checks)
    brief = len(report.steps) > FULL_STEPS
    for step in report.steps:
        if brief and step.verdict is Verdict.MATCH:
            yield f"step {step.step}  MATCH  published = computed = {step.computed}"
        else:
            yield ""
            yield from _step(step)
    yield ""
    yield from verdict_lines(report.verdict, report.message, report.hint, _summary(report))
    if report.not_checked:
        yield "not checked:"
        yield from (f"  - {text}" for text in report.not_checked)


def _machine(report: Report) -> str:
    m = report.machine
    threads = "1 thread" if m["threads"] == "1" else f"{m['threads']} threads"
    device = f"{m['device']} ({m['device_choice']})"
    driver = f", driver {m['driver']}" if "driver" in m else ""
    where = f"{m['system']} {m['processor']}{driver}"
    ops = f", ops in {m['ops']}" if "ops" in m else ""
    return printable(f"{device}, {threads}{ops}, numpy {m['numpy']}, {where}; self-test {m['self_test']}")


def _check(check: Check) -> str:
    if check.status is Status.SKIPPED:
        return f"{check.number} -       {check.name}: {check.detail or 'not reached'}"
    word = "ok    " if check.status is Status.OK else "FAILED"
    return f"{check.number} {word}  {check.name}: {printable(check.detail)}"


def _step(step: StepReport) -> Iterator[str]:
    way = step.step - step.start
    reached = f", reached from state {step.start} over {way} step{'s' if way > 1 else ''}" if way else ""
    asked = ", on the way" if step.on_the_way else ""
    yield f"step {step.step}{asked}{reached}"
    yield from map(_check, step.checks)
    if step.part is None and (step.computed or step.verdict is Verdict.MISMATCH):
        yield f"  published  {step.published}"
        yield f"  computed   {step.computed or 'none'}"
    if step.part is not None and step.part.obtained:
        yield f"  published  leaves {step.part.expected}"
        yield f"  computed   leaves {step.part.obtained}"
    for difference in step.differences:
        yield f"  {difference.field}:"
        yield f"    published  {difference.published}"
        yield f"    computed   {difference.computed}"
    if step.tensor is not None:
        yield f"  first differing tensor: {step.tensor.where}, {step.tensor.describe()}"
    yield f"  {step.verdict.name}" + (f": {printable(step.message)}" if step.message else "")
    if step.hint:
        yield f"  hint: {printable(step.hint)}"


def _summary(report: Report) -> str:
    """The verdict's meaning with the number of steps it rests on."""
    if report.verdict is Verdict.MATCH and report.steps[-1].part is not None:
        return _part_summary(report.steps[-1].step, report.steps[-1].part)
    matched = sum(step.verdict is Verdict.MATCH for step in report.steps)
    if report.verdict is Verdict.MATCH:
        return f"{matched} step{'s' if matched > 1 else ''}: {_SAID[Verdict.MATCH]}"
    said = _SAID.get(report.verdict, "")
    return f"{said} ({matched} of {len(report.steps)} steps matched)" if len(report.steps) > 1 else said


def _part_summary(step: int, part: PartReport) -> str:
    """What a match of a part means, and in the same breath what it does not."""
    others = len(part.chosen.others)
    left = f"the other {'micro-batch' if others == 1 else f'{others:,} micro-batches'}, " if others else ""
    what = "their losses and gradients, and the step's," if part.gradient else "loss and gradient"
    return (
        f"{part.chosen.describe()} of step {step}: {what} are those published;"
        f" NOT checked: {left}the update, the moments and the state after the step"
    )
