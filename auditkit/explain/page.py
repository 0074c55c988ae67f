"""The page of an explanation: one HTML file without a script, which needs nothing else and reaches nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from auditkit.explain.findings import Explanation
from auditkit.replay.report import Check
from auditkit.trust.page import content_policy, filled
from auditkit.trust.page_parts import text

MARKER = b"<!doctype html>\n<!-- auditkit explain page -->\n"
"""What every page of an explanation begins with, and nothing else does."""

KIND = "page of an explanation"


def page(found: Explanation, program: str) -> bytes:
    """The whole file in UTF-8; all texts of the run in it are escaped. `program` is the name and version of this."""
    folder = files("auditkit.explain")
    base = files("auditkit.trust") / "page.css"
    style = base.read_text(encoding="utf-8") + (folder / "page.css").read_text(encoding="utf-8")
    values = {
        "CSP": text(content_policy(style)),
        "TITLE": text(found.report.run),
        "STEP": str(found.step.step if found.step else found.asked),
        "STYLE": style,
        "HEADLINE": f"<strong>{found.verdict.name}</strong>: {text(found.message)}",
        "FACTS": _facts(found),
        "SECTIONS": _sections(found),
        "FOOTER": f"<p>Written by {text(program)}.</p>",
    }
    return filled((folder / "page.html").read_text(encoding="utf-8"), values)


def _facts(found: Explanation) -> str:
    report, first = found.report, found.first
    pairs = [("run id", f"<code>{text(report.run_id)}</code>"), ("manifest", f"<code>{text(report.manifest)}</code>")]
    if found.step:
        pairs.append(("record", f"<code>{text(found.step.record)}</code>"))
    if first:
        pairs.append(("departs first", f"{text(first.name)}{f': {text(first.detail)}' if first.detail else ''}"))
    machine = report.machine
    if machine:
        pairs.append(("device", text(f"{machine['device']}, self-test {machine['self_test']}")))
    return '<dl class="facts">' + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def _sections(found: Explanation) -> str:
    parts = [
        ("Causes", _causes(found)),
        ("Quantities, in the order in which a step computes them", _quantities(found)),
        ("Trace", _trace(found)),
        ("The published state beside the computed one", _state(found)),
        ("Checks", _checks((*found.report.checks, *(found.step.checks if found.step else ())))),
        ("What was tried", _tried(found)),
        ("Not checked", _list(found.report.not_checked)),
    ]
    return "".join(
        f'<section aria-labelledby="h-{n}"><h2 id="h-{n}">{title}</h2>{body}</section>'
        for n, (title, body) in enumerate(parts)
        if body
    )


def _causes(found: Explanation) -> str:
    if found.step is None:
        return ""
    if not found.causes:
        return "<p>None of what was tried gives the published step.</p>"
    items = "".join(
        f"<li>{text(cause.words)}: gives the published {text(cause.quantity)}, bit for bit</li>"
        for cause in found.causes
    )
    said = (
        "With them, all that is published of the step comes out." if found.confirmed else "They do not give all of it."
    )
    return f'<ol class="causes">{items}</ol><p>{said}</p>'


def _quantities(found: Explanation) -> str:
    first = found.first
    rows = [
        (
            [text(q.name), f'<span class="mark {q.standing.value}">{q.standing.value}</span>', text(q.detail)],
            "first" if q is first else "",
        )
        for q in found.quantities
    ]
    differences = [
        [text(d.field), f"<code>{text(d.published)}</code>", f"<code>{text(d.computed)}</code>"]
        for d in (found.step.differences if found.step else ())
    ]
    table = _table(["quantity", "published", "where it departs"], rows)
    return table + _table(["field of the record", "published", "computed"], [(row, "") for row in differences])


def _trace(found: Explanation) -> str:
    parting = found.parting
    if parting is None:
        return ""
    said = f"<p>{text(parting.describe())}.</p>"
    if parting.before:
        said += f"<p>The last op that gave the same: {text(parting.before.describe())}.</p>"
    return f"{said}<p>{parting.differing:,} of {parting.compared:,} ops gave something else.</p>"


def _state(found: Explanation) -> str:
    pattern = found.pattern
    if pattern is None:
        return ""
    rows = [
        (
            [
                text(f"{t.difference.role} {t.difference.name}"),
                f"{t.difference.differing:,} of {t.difference.elements:,}",
                "" if t.difference.max_ulps is None else f"{t.difference.max_ulps:,}",
                text(list(t.difference.index)),
                f"<code>{text(t.difference.left_bits)}</code>",
                f"<code>{text(t.difference.right_bits)}</code>",
                text(t.describe()),
            ],
            "",
        )
        for t in pattern.tensors
    ]
    heads = ["tensor", "elements", "most ulp", "first at", "published", "computed", "pattern"]
    more = f"<p>{pattern.left_out:,} more tensors differ.</p>" if pattern.left_out else ""
    return f"{_list(pattern.words)}{_table(heads, rows)}{more}"


def _checks(checks: Sequence[Check]) -> str:
    rows = [([str(c.number), text(c.name), c.status.value, text(c.detail)], "") for c in checks]
    return _table(["check", "of", "ended", "detail"], rows)


def _tried(found: Explanation) -> str:
    if found.step is None:
        return ""
    said = [f"{found.spent:,} micro-batches were replayed for it", *found.tried, *found.notes]
    return _list(said) + _list([f"not tried: {words}" for words in found.not_tried])


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> str:
    """A table of rows of HTML, each with its class."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row, kind in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>'
