"""`auditkit explain`: what departs first in a step that does not match, and why if that can be confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, page_written, to_json

if TYPE_CHECKING:
    from auditkit.explain.findings import Explanation
    from auditkit.explain.patterns import StatePattern
    from auditkit.explain.tracing import Parting

Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="The publisher's trace of the step: names the first op that parts."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Try less: no search for a token, no far states.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write a page: a new file, or over an older such page.")
]
MOST_TENSORS = 12  # told in the text; --json and --html have more


def explain(
    step: Annotated[int, typer.Option("--step", parser=options.number, metavar="N", help="The step, counted from 0.")],
    trace: Trace = None,
    quick: Quick = False,
    html: Html = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Explain a step that does not match: the first quantity that departs, and its cause if replaying confirms one.

    The step is verified first; if it matches there is nothing to explain. A cause is named only when replaying with it
    gives the published digests, bit for bit. The exit code is the verdict's: 3 for a mismatch, explained or not.
    """
    from auditkit.cli.progress import Board
    from auditkit.cli.trace import read
    from auditkit.explain import page
    from auditkit.explain.explain import explain as look
    from auditkit.trust.page_file import PageFile
    from auditkit.version import version

    inputs = [trace] if trace else []
    target = None if html is None else PageFile(html, inputs, marker=page.MARKER, kind=page.KIND)
    theirs = None if trace is None else read(trace)
    with Board() as board:
        found = look(
            run,
            step=step,
            trace=theirs,
            quick=quick,
            artifacts=artifacts,
            device=device,
            threads=threads,
            offline=offline,
            cache_dir=cache_dir,
            progress=board.handle(),
            downloads=board.handle(),
        )
    there, verdict = page_written(target, lambda: page.page(found, f"auditkit {version()}"), found.verdict)
    value = {**found.to_dict(), "code": verdict.code}
    return Outcome(verdict, to_json(value) if json else "\n".join(_lines(found, html if there else None)))


def _lines(found: Explanation, html: str | None) -> Iterator[str]:
    report, step = found.report, found.step
    yield f"run        {printable(report.run)}"
    if step is not None:
        yield from _step(found)
        yield from _causes(found)
        if found.pattern is not None:
            yield from _state(found.pattern)
        if found.parting is not None:
            yield from parting_lines(found.parting)
        yield ""
        yield from (f"note: {printable(note)}" for note in found.notes)
        yield f"tried: {found.spent} micro-batches replayed" + "".join(f"; {words}" for words in found.tried)
        yield from (f"not tried: {printable(words)}" for words in found.not_tried)
    yield f"{report.verdict.name}: {printable(found.message)}"
    if step is None and report.message:
        yield f"  {printable(report.message)}"
        yield from [f"  hint: {printable(report.hint)}"] if report.hint else []
    if html is not None:
        yield f"page       {printable(html)}"
    yield "not checked:"
    yield from (f"  - {printable(text)}" for text in report.not_checked)


def _step(found: Explanation) -> Iterator[str]:
    assert found.step is not None
    checks = (*found.report.checks, *found.step.checks)
    failed = next((check for check in checks if check.status.value == "failed"), None)
    yield f"step       {found.step.step}"
    if failed is not None:
        yield f"first failed check: {failed.number} {failed.name}: {printable(failed.detail)}"
    yield ""
    yield "quantities, in the order in which a step computes them"
    for quantity in found.quantities:
        detail = f"  {printable(quantity.detail)}" if quantity.detail else ""
        yield f"  {quantity.standing.value:<10}  {quantity.name}{detail}"


def _causes(found: Explanation) -> Iterator[str]:
    yield ""
    yield "causes" if found.causes else "causes: none of what was tried gives the published step"
    for cause in found.causes:
        yield f"  {cause.words}"
        yield f"    gives the published {cause.quantity}, bit for bit"


def _state(pattern: StatePattern) -> Iterator[str]:
    yield ""
    yield f"published state {pattern.step} beside the computed one: {'; '.join(pattern.words)}"
    for tensor in pattern.tensors[:MOST_TENSORS]:
        yield f"  {tensor.difference.where}: {tensor.difference.describe()}"
        yield from [f"    {tensor.describe()}"] if tensor.describe() else []
    more = len(pattern.tensors) - MOST_TENSORS + pattern.left_out
    if more > 0:
        yield f"  and {more} more tensors"


def parting_lines(parting: Parting, left: str = "theirs", right: str = "ours") -> Iterator[str]:
    """Where two traces part, for people."""
    yield ""
    yield f"trace: {printable(parting.describe())}"
    for name, a, b in parting.fields:
        yield f"  {name}: {left} {a}, {right} {b}"
    if parting.before is not None:
        yield f"  the last op that gave the same: {printable(parting.before.describe())}"
    for side, op in ((left, parting.left), (right, parting.right)):
        if parting.number is not None:
            yield f"  {side:<7} {printable(' '.join(op.outputs)) if op else 'has ended'}"
    for tensor in parting.tensors:
        yield f"  {tensor.name} {list(tensor.index)}: {tensor.describe(left, right)}"
    if not parting.equal:
        yield f"  {parting.differing} of {parting.compared} ops gave something else"
