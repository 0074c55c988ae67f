"""What a verification did not check, in words that stand beside its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.replay.report import PartReport, StepReport
from auditkit.replay.run import Run
from auditkit.verdict import Verdict


def unchecked(run: Run, steps: Sequence[StepReport], log: Sequence[str] | None = None) -> tuple[str, ...]:
    """The limits of a report on steps of a run.

    `log` says what the check of the signed log left open, None that there was no such check.
    """
    parts = [line for report in steps if report.part is not None for line in _part(report, report.part)]
    others, steps = _other_steps(run, steps), [report for report in steps if report.part is None]
    said = [*parts, others, _changes(run, steps), *_states(run, steps)]
    said += [
        f"whether {_tokens(run)} (`auditkit data --step N` does)",
        *_signature(run, log),
        "the quality of the data and of the model, and how the corpus came about",
    ]
    return tuple(text for text in said if text)


def _part(report: StepReport, part: PartReport) -> list[str]:
    """What remains of a step of which only some micro-batches were audited."""
    others, step = part.chosen.others, report.step
    word = "micro-batch" if len(others) == 1 else f"{len(others):,} micro-batches"
    left = [f"the other {word} of step {step}: {_cut(others.text)}"] if others.ranges else []
    whole = "" if part.gradient else "the step's gradient, loss, norm and learning rate, "
    moments = f"the moments of state {step}: its document, whose root is in the record, has their digests"
    return [
        *left,
        f"{whole}the update of step {step} (clipping, AdamW) and the state after it: whether they follow from the"
        " gradients",
        *([moments] if report.start == step else []),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:76] + " ..."


def _signature(run: Run, log: Sequence[str] | None) -> Sequence[str]:
    if run.manifest.publisher is None:
        return ("who published the run: nothing is signed, so a match speaks of these files and of nobody's word",)
    return log if log is not None else ("the publisher's signature and the signed log: nobody asked for them",)


def _tokens(run: Run) -> str:
    if run.manifest.data.ids is None:
        return "the tokens follow from the corpus, the tokenizer and the seed"
    return "the token ids, from which the batches were cut, follow from the corpus and the tokenizer"


def _other_steps(run: Run, steps: Sequence[StepReport]) -> str:
    matched = {report.step for report in steps if report.verdict is Verdict.MATCH}
    for report in steps:
        if report.step in matched:
            matched.update(range(report.start, report.step))
    others = run.size - len(matched | {report.step for report in steps})
    if not others:
        return ""
    if run.taken is not None:
        return (
            f"{others} of the run's {run.size} steps: the signed log commits to their records, which were not read,"
            " nor was the chain through them"
        )
    return f"{others} of the run's {run.size} steps: their records were read, they were not replayed"


def _changes(run: Run, steps: Sequence[StepReport]) -> str:
    """Segments whose beginning no replay has met: what they begin from, only their records say."""
    matched = [report for report in steps if report.verdict is Verdict.MATCH]
    replayed = {step for report in matched for step in range(report.start, report.step + 1)}
    left = [segment.start for segment in run.timeline.later if segment.start not in replayed]
    if not left:
        return ""
    what, them = ("change", "it") if len(left) == 1 else ("changes", "them")
    return f"the {what} of recipe or data before {_steps(left)}: no replay went through {them}"


def _states(run: Run, steps: Sequence[StepReport]) -> list[str]:
    """Steps whose states are not published, so that only roots could be compared."""
    matched = [report.step for report in steps if report.verdict is Verdict.MATCH]
    before = [step for step in matched if step not in run.published]
    after = [step for step in matched if step + 1 not in run.published]
    said = []
    if before:
        said.append(f"the bytes of the state before {_steps(before)}: not published, computed here instead")
    if after:
        said.append(f"the bytes of the state after {_steps(after)}: not published, its root was compared")
    return said


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) <= 5:
        return "steps " + ", ".join(map(str, steps))
    return f"{len(steps)} of the steps"
