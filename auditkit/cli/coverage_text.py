"""The coverage of a run as text: findings first, then gaps, counts, chances of escape, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auditkit.audit.coverage_report import CoverageReport, Finding, remaining
from auditkit.cli.console import printable
from auditkit.cli.render import verdict_lines
from auditkit.formats.micro_batches import MicroBatches
from auditkit.trust.coverage import Status, share, span
from auditkit.trust.rows import outcome_words
from auditkit.verdict import Verdict

LISTED = 20  # of anything that may be long; --json has all

_SAID = {
    Verdict.MISMATCH: "as many auditors as the policy asks for computed one and the same other result, none a match",
    Verdict.INCOMPLETE: "not every step is covered",
    Verdict.MATCH: "every step is covered",
}


def coverage_text(report: CoverageReport, page: str = "") -> str:
    """The whole report; `page` is the file with the map, if one was written."""
    return "\n".join(_lines(report, page)) + "\n"


def _lines(report: CoverageReport, page: str) -> Iterator[str]:
    yield from _head(report)
    yield from _findings(report, Status.MISMATCH, "mismatches")
    yield from _findings(report, Status.DISPUTED, "disputed steps")
    yield from _contradictions(report)
    yield from _not_verifiable(report)
    yield from _spans("gaps", report.coverage.gaps)
    some = ", or of some micro-batches only" if report.coverage.parts else ""
    title = f"partial, fewer keys or families than the policy asks for{some}"
    yield from _spans(title, report.coverage.ranges(Status.PARTIAL))
    yield from _parts(report)
    yield from _auditors(report)
    yield from _escapes(report)
    yield from _refused(report)
    yield ""
    kept_back = report.coverage.verdict is not report.verdict
    said = "a log shows fewer entries than were seen before" if kept_back else _SAID[report.verdict]
    yield from verdict_lines(report.verdict, "", _hint(report), said)
    yield "not checked:"
    yield from (f"  - {text}" for text in report.not_checked)
    if page:
        yield f"map of the run: {printable(page)}"


def _head(report: CoverageReport) -> Iterator[str]:
    coverage, collection = report.coverage, report.collection
    yield f"run           {printable(report.run)}"
    yield f"run id        {report.run_id}"
    yield f"manifest      {report.manifest}"
    yield f"signed log    {printable(report.signed_log)}"
    yield f"policy        {printable(report.policy)}"
    yield from (f"warning       {printable(text)}" for text in report.warnings)
    counts = f"{collection.verified:,} verified now, {collection.remembered:,} before"
    keys, refused = len(coverage.rows.keys), collection.refused_count
    total = len(coverage.rows) + len(coverage.part_rows)
    yield f"attestations  {total:,} by {keys:,} keys ({counts}); {refused:,} refused"
    if len(coverage.part_rows):
        count = len(coverage.part_rows)
        yield f"of parts      {count:,} of them, of some micro-batches of a step: they cover no step"
    other = [
        (collection.repeats, "repeats"),
        (collection.summaries + report.summaries, "summaries (SVR)"),
        (report.passed_over, "other files"),
        (len(report.logs), "logs inside folders, not read"),
    ]
    if any(count for count, _ in other):
        yield "passed over   " + ", ".join(f"{name}: {count:,}" for count, name in other if count)
    yield ""
    yield f"{'steps':<12}{coverage.size:>12,}"
    for status in reversed(Status):
        count = coverage.totals[status]
        yield f"{status.name.lower():<12}{count:>12,}{share(count, coverage.size):>14}"


def _more(total: int, indent: str = "  ") -> Iterator[str]:
    if total > LISTED:
        yield f"{indent}.. {total - LISTED:,} more (--json lists all)"


def _who(report: CoverageReport, keyids: Sequence[str]) -> str:
    def one(keyid: str) -> str:
        name = report.names.get(keyid, "")
        return f"{printable(name)} {keyid[:8]}" if name else keyid[:8]

    more = f" and {len(keyids) - LISTED:,} more" if len(keyids) > LISTED else ""
    return ", ".join(map(one, keyids[:LISTED])) + more


def _findings(report: CoverageReport, status: Status, title: str) -> Iterator[str]:
    found = report.findings(status)
    if not found:
        return
    yield ""
    yield f"{title}: {len(found):,}"
    for finding in found[:LISTED]:
        yield from _finding(report, finding)
    yield from _more(len(found))


def _finding(report: CoverageReport, finding: Finding) -> Iterator[str]:
    yield f"  step {finding.step:,}"
    for result, keyids in finding.results.items():
        yield f"    computed by {_who(report, keyids)}:"
        yield from (f"      {line}" for line in outcome_words(result))
    yield f"    MATCH by {_who(report, finding.matching) if finding.matching else 'nobody'}"


def _contradictions(report: CoverageReport) -> Iterator[str]:
    found = report.coverage.contradictions
    if found:
        yield ""
        yield f"keys that contradict themselves (their latest word counts): {len(found):,}"
        yield from (f"  step {step:,}  {_who(report, [report.coverage.rows.keys[k]])}" for step, k in found[:LISTED])
        yield from _more(len(found))


def _not_verifiable(report: CoverageReport) -> Iterator[str]:
    said = {"UNAVAILABLE": "the publisher's data could not be had", "BAD_ARTIFACT": "the published data is damaged"}
    for name, found in report.not_verifiable().items():
        yield from _spans(f"not verifiable, for an auditor says that {said[name]}", found)


def _spans(title: str, found: Sequence[tuple[int, int]]) -> Iterator[str]:
    if not found:
        return
    steps = sum(stop - first for first, stop in found)
    yield ""
    yield f"{title}: {steps:,} {'step' if steps == 1 else 'steps'}"
    yield from (f"  {span(first, stop)}" for first, stop in found[:LISTED])
    yield from _more(len(found))


def _parts(report: CoverageReport) -> Iterator[str]:
    """Steps of which micro-batches were audited: which, by how many keys, and what is left."""
    found = list(report.coverage.parts.values())
    if not found:
        return
    yield ""
    yield f"audits of some micro-batches: {len(found):,} {'step' if len(found) == 1 else 'steps'}"
    for part in found[:LISTED]:
        left = remaining(report.coverage, part)
        yield f"  step {part.step:,}, {part.count:,} micro-batches" + (f"; left: {_short(left)}" if left else "")
        for some in [some for some in part.spans if some.keys][:LISTED]:
            which = MicroBatches(((some.first, some.stop),), part.count).text
            families = "1 hardware family" if some.families == 1 else f"{some.families} hardware families"
            yield f"    {which}: MATCH by {some.keys} {'key' if some.keys == 1 else 'keys'} on {families}"
        for outcome, keys in part.mismatches.items():
            who = _who(report, [report.coverage.rows.keys[key] for key in keys])
            yield f"    MISMATCH by {who}: computed {printable(outcome)}"
    yield from _more(len(found))


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:96] + " ..."


def _auditors(report: CoverageReport) -> Iterator[str]:
    found = report.auditors()
    if not found:
        return
    names = [printable(auditor["name"]) for auditor in found[:LISTED]]
    width = max(7, *map(len, names))
    yield ""
    yield f"{'auditor':<{width}}  key       {'match':>9} {'mismatch':>9} {'no result':>9}"
    for auditor, name in zip(found, names, strict=False):
        counts = " ".join(f"{auditor[kind]:>9,}" for kind in ("match", "mismatch", "undecided"))
        not_counted = f"  {printable(auditor['not_counted'])}" if auditor["not_counted"] else ""
        yield f"{name:<{width}}  {auditor['keyid'][:8]}  {counts}{not_counted}"
    yield from _more(len(found), "")
    yield ""
    yield "steps matched on each hardware family"
    matched = [(name, count) for name, count in report.coverage.by_family.items() if count]
    families = sorted(matched, key=lambda item: (-item[1], item[0]))
    yield from (f"  {printable(name):<16} {count:>9,}" for name, count in families[:LISTED])
    yield from _more(len(families))


def _escapes(report: CoverageReport) -> Iterator[str]:
    rows = report.escapes()
    if not rows:
        return
    yield ""
    yield f"chance that tampered steps all escaped so far, of {report.without_finding:,} steps without a finding"
    yield from (f"  {row.tampered:>9,} tampered  {row.text}" for row in rows)
    for extent in report.extents():
        if extent.tampered is not None:
            yield f"  {extent.tampered:,} or more would have been caught with {extent.confidence} %"
    yield "  if the publisher could not foresee which steps would be verified"


def _refused(report: CoverageReport) -> Iterator[str]:
    refused, reasons = report.collection.refused, report.collection.reasons
    if not refused:
        return
    yield ""
    yield f"refused: {report.collection.refused_count:,} (they change no status)"
    if len(refused) > LISTED:
        yield from (f"  {count:>9,}  {printable(reason)}" for reason, count in reasons[:LISTED])
        yield f"  the first {LISTED} (--json lists all):"
    yield from (f"  {printable(found.where)}: {printable(found.reason)}" for found in refused[:LISTED])


def _hint(report: CoverageReport) -> str:
    if len(report.coverage.rows) + len(report.coverage.part_rows) or not report.collection.refused:
        return ""
    unknown = all("is not known here" in found.reason for found in report.collection.refused)
    return "the auditors' public keys are missing: --key PEM, *.pem in the folder, or --policy FILE" if unknown else ""
