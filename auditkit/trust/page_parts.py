"""The parts of the coverage page that need no script: facts, legend, and a table for everything the map shows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from auditkit.trust import escape
from auditkit.trust.coverage import Coverage, Status, ranges, share, span
from auditkit.trust.page_data import MEANINGS, PageData
from auditkit.trust.rows import outcome_words
from auditkit.verdict import Verdict

MAX_ROWS = 1_000  # of a table
MAX_KEYS = 2_000  # auditors listed
MAX_FINDINGS = 300  # mismatches and disputes told in full
PARTS = 100  # of the run in the table that stands for the map

NOT_CHECKED = (
    "that the steps were replayed: what each auditor signed is believed",
    "that different keys belong to different people",
    "times, hardware families and automation: they are what the auditors declare",
)
"""What no coverage says, however it is shown."""

UNSIGNED = "none: the manifest names no publisher"
UNSIGNED_NOT_CHECKED = "whose records these are: the run's manifest names no publisher who signs them"

Row = Sequence[str]


@dataclass(frozen=True)
class About:
    """What the page says besides the coverage itself; `signed_log` is what was found of the run's, in words."""

    run: str
    run_id: str
    manifest: str
    policy: str  # in words
    made: str  # time of the collection, UTC
    program: str  # name and version
    signed_log: str
    not_checked: Sequence[str] = NOT_CHECKED
    warnings: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of auditors, by key id
    refused: Sequence[tuple[str, int]] = ()  # reasons, and how many attestations each


def text(value: object) -> str:
    """Any text as HTML text or attribute; what cannot be printed appears as an escape."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value))
    return html.escape(shown, quote=True)


def headline(coverage: Coverage) -> str:
    """The state of the run in one sentence."""
    totals = coverage.totals
    said = [f"<strong>{share(totals[Status.COVERED], coverage.size)}</strong> of {coverage.size:,} steps are covered"]
    for status, one, many in (
        (Status.MISMATCH, "mismatch", "mismatches"),
        (Status.DISPUTED, "disputed step", "disputed steps"),
    ):
        if totals[status]:
            said.append(f"<strong>{totals[status]:,} {one if totals[status] == 1 else many}</strong>")
    return ", ".join(said) + "."


def warnings(about: About) -> str:
    """What a reader must know before the numbers."""
    return "".join(f'<p class="warning" role="note"><strong>Warning</strong>: {text(w)}</p>' for w in about.warnings)


def facts(coverage: Coverage, about: About) -> str:
    """Run, policy and numbers as a definition list."""
    rows = coverage.rows
    verified = len(rows) + len(coverage.part_rows)
    refused = sum(count for _, count in about.refused)
    pairs = [
        ("run id", f"<code>{text(about.run_id)}</code>"),
        ("manifest", f"<code>{text(about.manifest)}</code>"),
        ("signed log", text(about.signed_log)),
        ("policy", text(about.policy)),
        ("attestations", f"{verified:,} verified, from {len(rows.keys):,} keys; {refused:,} refused"),
        ("collected", text(about.made)),
    ]
    return '<dl class="facts">' + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def legend(coverage: Coverage) -> str:
    """Each status with its colour, pattern and number of steps."""
    return "".join(
        f'<li title="{text(MEANINGS[status])}"><span class="swatch s{status.value}"></span>'
        f"{status.name.lower()} <span>{coverage.totals[status]:,}</span></li>"
        for status in reversed(Status)
    )


def footer(about: About, data: PageData) -> str:
    """What was left out of the map's details, and what no coverage can say."""
    said = [
        f"Written by {text(about.program)}. Times of attestations are the signers' own.",
    ]
    if data.attestations_left_out:
        said.insert(0, f"The map lists not every attestation: {data.attestations_left_out:,} are only counted.")
    if data.keys_left_out:
        said.insert(0, f"The map names not every key: {data.keys_left_out:,} with few attestations are not named.")
    unchecked = "".join(f"<li>{text(line)}</li>" for line in about.not_checked)
    listed = f"<p>Not checked:</p><ul>{unchecked}</ul>"
    return listed + "".join(f"<p>{line}</p>" for line in said)


def sections(coverage: Coverage, about: About) -> str:
    """All tables, mismatches first."""
    parts: list[tuple[str, str]] = [
        ("Mismatches and disputes", _findings(coverage, about)),
        ("Keys that contradict themselves", _contradictions(coverage, about)),
        ("Not verifiable", _not_verifiable(coverage)),
        ("Gaps", _gaps(coverage)),
        ("Chance that tampering escaped", _escapes(coverage)),
        ("Auditors", _auditors(coverage, about)),
        ("Hardware", _table(["family", "#steps with a match"], _families(coverage))),
        ("Refused attestations", _refused(about)),
        (f"The run in {min(PARTS, coverage.size)} parts", _parts(coverage)),
    ]
    return "".join(
        f'<section class="long" aria-labelledby="h-{n}"><h2 id="h-{n}">{title}</h2>{body}</section>'
        for n, (title, body) in enumerate(parts)
        if body
    )


def _table(heads: Row, rows: Iterable[Row], total: int | None = None) -> str:
    """A table of at most MAX_ROWS rows of HTML; heads that begin with # are of numbers. Nothing without rows."""
    shown = list(rows)
    if not shown:
        return ""
    kinds = [' class="n"' if head.startswith("#") else "" for head in heads]
    head = "".join(
        f'<th scope="col"{kind}>{name.removeprefix("#")}</th>' for kind, name in zip(kinds, heads, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in shown
    )
    more = f'<p class="note">{total - len(shown):,} more are not listed.</p>' if total and total > len(shown) else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>{more}'


def _who(coverage: Coverage, about: About, key: int) -> str:
    keyid = coverage.rows.keys[key]
    name = about.names.get(keyid, "")
    return f'<bdi title="{text(keyid)}">{text(name or keyid[:8])}</bdi>'


def _steps(first: int, stop: int) -> str:
    return f'<span class="short">{span(first, stop)}</span>'


def _findings(coverage: Coverage, about: About) -> str:
    flagged = np.flatnonzero(coverage.status <= Status.DISPUTED)
    flagged = flagged[np.argsort(coverage.status[flagged], kind="stable")]
    if not len(flagged):
        return "<p>None: no auditor who counts computed another result than the published one.</p>"
    shown = flagged[:MAX_FINDINGS]
    # of the few steps shown, the votes of each
    votes = coverage.votes
    begins, ends = np.searchsorted(votes.step, shown), np.searchsorted(votes.step, shown, side="right")
    rows = [
        _finding(coverage, about, step, range(begin, end))
        for step, begin, end in zip(shown.tolist(), begins.tolist(), ends.tolist(), strict=True)
    ]
    heads = ["#step", "status", "computed another result", "match"]
    return _table(heads, rows, len(flagged))


def _finding(coverage: Coverage, about: About, step: int, votes: range) -> Row:
    against: dict[str, list[str]] = {}
    agreeing = []
    for vote in votes:
        key, said = int(coverage.votes.key[vote]), int(coverage.votes.statement[vote])
        who = _who(coverage, about, key)
        if said == 0:
            agreeing.append(who)
        else:
            against.setdefault(coverage.rows.outcomes[said - 1], []).append(who)
    part = coverage.parts.get(step)
    for outcome, keys in part.mismatches.items() if part else ():
        against.setdefault(outcome, []).extend(_who(coverage, about, key) for key in keys)
    found = "<br>".join(f"{_result(outcome)}<br>by {_several(who)}" for outcome, who in against.items())
    return [f"{step:,}", Status(coverage.status[step]).name.lower(), found, _several(agreeing) if agreeing else "none"]


def _result(outcome: str) -> str:
    return "<br>".join(f"<code>{text(words)}</code>" for words in outcome_words(outcome))


def _several(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _contradictions(coverage: Coverage, about: About) -> str:
    found = coverage.contradictions
    rows = [[f"{step:,}", _who(coverage, about, key)] for step, key in found[:MAX_ROWS]]
    return _table(["#step", "auditor"], rows, len(found))


def _not_verifiable(coverage: Coverage) -> str:
    said = {
        Verdict.UNAVAILABLE: "an auditor could not get what the publisher should serve",
        Verdict.BAD_ARTIFACT: "an auditor got bytes that are malformed or not those of their digest",
    }
    rows: list[Row] = []
    total = 0
    for verdict, meaning in said.items():
        flags = np.zeros(coverage.size, np.bool_)
        flags[coverage.not_verifiable(verdict)] = True
        found = ranges(flags)
        total += len(found)
        rows += [[_steps(*pair), meaning] for pair in found[:MAX_ROWS]]
    note = "<p>Neither failed nor passed: nothing was computed for these steps.</p>"
    table = _table(["steps", "reported"], rows, total)
    return note + table if table else ""


def _gaps(coverage: Coverage) -> str:
    gaps, partial = coverage.gaps, coverage.ranges(Status.PARTIAL)
    rows = [[_steps(*pair), f"{pair[1] - pair[0]:,}", "open"] for pair in gaps[:MAX_ROWS]]
    rows += [[_steps(*pair), f"{pair[1] - pair[0]:,}", "partial"] for pair in partial[: MAX_ROWS - len(rows)]]
    return _table(["steps", "#number", "status"], rows, len(gaps) + len(partial)) or "<p>None.</p>"


def _escapes(coverage: Coverage) -> str:
    totals = coverage.totals
    size = coverage.size - totals[Status.MISMATCH] - totals[Status.DISPUTED]
    done = totals[Status.COVERED]
    rows = [[f"{row.tampered:,}", row.text] for row in escape.table(size, done)]
    table = _table(["#tampered steps", "#chance that none of them is covered"], rows)
    caught = [
        f"{extent.tampered:,} or more with {extent.confidence} %"
        for extent in escape.extents(size, done)
        if extent.tampered is not None
    ]
    said = f"<p>Steps without a finding: {size:,}, of which covered: {done:,}."
    said += f" Tampered steps would have been noticed: {', '.join(caught)}.</p>" if caught else "</p>"
    note = (
        '<p class="note">Exact, if the publisher had fixed the run and could not foresee which steps would be verified.'
        " Steps that could be foreseen prove only themselves.</p>"
    )
    return said + table + note if table else ""


def _auditors(coverage: Coverage, about: About) -> str:
    counts = coverage.by_key
    order = np.lexsort((-counts["attestations"], -counts["match"]))[:MAX_KEYS].tolist()
    rows = [
        [
            _who(coverage, about, key),
            f'<code class="short">{text(coverage.rows.keys[key][:8])}</code>',
            *(f"{int(counts[name][key]):,}" for name in ("match", "mismatch", "undecided", "attestations")),
            text(coverage.not_counted(key)),
        ]
        for key in order
    ]
    heads = ["auditor", "key", "#steps matched", "#steps not", "#without result", "#attestations", "not counted"]
    return _table(heads, rows, len(coverage.rows.keys))


def _families(coverage: Coverage) -> list[Row]:
    matched = [(name, count) for name, count in coverage.by_family.items() if count]
    found = sorted(matched, key=lambda item: (-item[1], item[0]))
    return [[text(name), f"{count:,}"] for name, count in found[:MAX_ROWS]]


def _refused(about: About) -> str:
    rows = [[text(reason), f"{count:,}"] for reason, count in about.refused[:MAX_ROWS]]
    table = _table(["reason", "#attestations"], rows, len(about.refused))
    return "<p>They changed no status.</p>" + table if table else ""


def _parts(coverage: Coverage) -> str:
    edges = sorted({part * coverage.size // PARTS for part in range(PARTS + 1)})
    heads = ["steps", *(f"#{status.name.lower()}" for status in reversed(Status))]
    return _table(heads, _part_rows(coverage, edges))


def _part_rows(coverage: Coverage, edges: list[int]) -> Iterator[Row]:
    for first, stop in zip(edges, edges[1:], strict=False):
        found = np.bincount(coverage.status[first:stop], minlength=len(Status))
        yield [_steps(first, stop), *(f"{int(found[status]):,}" for status in reversed(Status))]
