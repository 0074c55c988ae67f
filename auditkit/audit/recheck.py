"""Whether an attestation's digests and its work are those of a replay here.

Digests can be copied from the record or from another auditor. The work cannot: it is made of gradients that nobody
publishes, under a key of the auditor's own, and a replay here makes it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditkit.audit.verify import verify
from auditkit.formats.digest import Digest
from auditkit.formats.step_audit import UNDECIDED, AuditedPart, Digests
from auditkit.formats.work import work_key
from auditkit.replay.report import PartReport, Report, StepReport
from auditkit.replay.selection import in_words
from auditkit.trust.attested import Attested
from auditkit.trust.keys import PublicKey
from auditkit.verdict import Verdict

HERE = "if others reproduce it and this machine does not, doubt this machine: `auditkit doctor`"


@dataclass(frozen=True)
class Recheck:
    """What a replay here says of an attestation.

    verdict   MATCH: its verdict, its digests and its work are those of the replay here, whatever its verdict is.
              UNTRUSTED: one of them is not. Another one: the replay here came to no result, or it had nothing to repeat
    here      the report of the replay; None where there was none
    """

    attested: Attested
    verdict: Verdict
    message: str
    hint: str = ""
    here: StepReport | None = None


def recheck(
    attestations: Sequence[Attested], keys: Mapping[str, PublicKey], run: str | None = None, **options: Any
) -> list[Recheck]:
    """Replay the step of each attestation under its auditor's work key, and compare.

    attestations   bound to the run by `read_attestation(records=..)`
    keys           the auditors' keys by keyid
    run, options   those of `verify`, whose UsageError may be raised

    Steps are replayed together where they can be, several attestations of one step one after the other.
    """
    found: dict[int, Recheck] = {}
    for together in _rounds(attestations):
        chosen = {attestations[i].step: attestations[i] for i in together}
        report = _replay(chosen, keys, run, options)
        here = {step.step: step for step in report.steps}
        for i in together:
            found[i] = compare(attestations[i], report, here.get(attestations[i].step))
    return [found[i] if i in found else _nothing_to_repeat(one) for i, one in enumerate(attestations)]


def _rounds(attestations: Sequence[Attested]) -> Iterator[list[int]]:
    """Places of the attestations to be replayed, in lists in which no step occurs twice."""
    left = [i for i, one in enumerate(attestations) if one.verdict not in UNDECIDED]
    while left:
        taken: dict[int, int] = {}
        for i in left:
            if attestations[i].part is None:
                taken.setdefault(attestations[i].step, i)
        taken = taken or {attestations[left[0]].step: left[0]}  # some micro-batches, alone
        yield list(taken.values())
        done = set(taken.values())
        left = [i for i in left if i not in done]


def _replay(
    chosen: Mapping[int, Attested], keys: Mapping[str, PublicKey], run: str | None, options: Mapping[str, Any]
) -> Report:
    def key(run_id: Digest, step: int) -> bytes:
        return work_key(keys[chosen[step].keyid].raw, run_id, step)

    steps = sorted(chosen)
    part = chosen[steps[0]].part
    if part is not None:
        asked = part.micro_batches.text
        return verify(run, step=steps[0], micro_batches=asked, replay_to=True, work_key=key, **options)
    if len(steps) == 1:
        return verify(run, step=steps[0], work_key=key, **options)
    return verify(run, steps=in_words((step, step + 1) for step in steps), work_key=key, **options)


def compare(attested: Attested, report: Report, here: StepReport | None) -> Recheck:
    """What a report says of an attestation; `here` is its replay of the step, under the auditor's work key."""
    if here is None:
        return Recheck(attested, report.verdict, f"not replayed here: {report.message}", report.hint)
    if attested.run_id != report.run_id:
        return _refused(attested, here, f"about run {attested.run_id}, not about run {report.run_id}")
    if (attested.record_sha256, attested.expected) != (here.record_sha256, here.expected):
        return _refused(attested, here, f"about another record than that of step {here.step}")
    if here.verdict not in (Verdict.MATCH, Verdict.MISMATCH):
        return Recheck(attested, here.verdict, f"not decided here: {here.message}", here.hint, here)
    return _compared(attested, here)


def _compared(attested: Attested, here: StepReport) -> Recheck:
    """Of an attestation and a replay that both came to a result."""
    # 1 digests
    if attested.part is not None:
        differing = _part_difference(attested.part, here.part)
        if differing:
            return _refused(attested, here, f"says {attested.verdict.name}, digests not reproduced: {differing}", HERE)
    if attested.computed != here.obtained:
        said = f"digests not reproduced: {_difference(attested.computed, here.obtained)}"
        return _refused(attested, here, f"says {attested.verdict.name}, {said}", HERE)
    # 2 verdict
    if attested.verdict is not here.verdict:
        return _refused(attested, here, f"says {attested.verdict.name}, a replay here says {here.verdict.name}", HERE)
    # 3 work
    if attested.work != here.work:
        return _refused(
            attested,
            here,
            f"the digests are right and may be copied: the proof of work is {attested.work}, "
            f"a replay under this key gives {here.work}",
            "nothing shows that this auditor computed the step",
        )
    said = "without a result, as here" if here.work == "" else "digests and proof of work are those of a replay here"
    return Recheck(attested, Verdict.MATCH, f"{attested.verdict.name}: {said}", here=here)


def _refused(attested: Attested, here: StepReport, message: str, hint: str = "") -> Recheck:
    return Recheck(attested, Verdict.UNTRUSTED, message, hint, here)


def _part_difference(said: AuditedPart, here: PartReport | None) -> str:
    """The first digest of some micro-batches that differs, on both sides; "" if none does."""
    assert here is not None  # the same part was asked for
    pairs = (
        ("micro-batches", said.micro_batches.text, here.chosen.text),
        ("published leaves", said.leaves, here.expected),
        ("leaves", said.computed, here.obtained),
        ("gradient", said.gradient, here.gradient),
    )
    return next((f"{name} {a or 'none'} in the attestation, {b or 'none'} here" for name, a, b in pairs if a != b), "")


def _difference(said: Digests | None, here: Digests | None) -> str:
    """The first digest that differs, on both sides."""
    if said is None or here is None:
        return f"{_words(said)} in the attestation, {_words(here)} here"
    for name in ("micro_batches", "gradient", "state"):  # in the order in which a step computes them
        theirs, ours = getattr(said, name), getattr(here, name)
        if theirs != ours:
            return f"{name} {theirs} in the attestation, {ours} here"
    raise AssertionError("two digests that differ are alike")


def _words(digests: Digests | None) -> str:
    return f"state {digests.state}" if digests else "no result"


def _nothing_to_repeat(attested: Attested) -> Recheck:
    message = f"says {attested.verdict.name}: nothing was computed, so there is nothing to repeat"
    return Recheck(attested, Verdict.INCOMPLETE, message)
