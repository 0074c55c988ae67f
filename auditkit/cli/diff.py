"""`auditkit diff`: two states, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.replay.diff import Differences

State = typer.Argument(metavar="STATE", help="A folder with state.json, or RUN:STEP of a published state.")


def diff(
    left: Annotated[str, State],
    right: Annotated[str, State],
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Compare two states: differing tensors, elements, bits, and distances in units in the last place.

    Everything is compared by bits: 0.0 and -0.0 differ, equal NaN payloads do not. Exit code 0: equal, 3: different.
    """
    from auditkit.cli.progress import Board
    from auditkit.replay.diff import diff as compare
    from auditkit.replay.diff import open_named

    with Board() as board:
        handle = board.handle()
        states = [open_named(name, cache_dir=cache_dir, offline=offline, downloads=handle) for name in (left, right)]
        found = compare(states[0], states[1], (left, right))
    verdict = Verdict.MATCH if found.equal else Verdict.MISMATCH
    if json:
        return Outcome(verdict, to_json({"verdict": verdict.name, "code": verdict.code, **found.to_dict()}))
    return Outcome(verdict, "\n".join(_lines(found)))


def _lines(found: Differences) -> Iterator[str]:
    yield f"left   {found.left_root}  {printable(found.left)}"
    yield f"right  {found.right_root}  {printable(found.right)}"
    for name, left, right in found.fields:
        yield f"{name}: left {left}, right {right}"
    for tensor in found.tensors:
        yield f"{tensor.where}: {tensor.describe('left', 'right')}"
    if found.equal:
        yield f"EQUAL: {found.compared} tensors, every bit"
    else:
        yield f"DIFFERENT: {len(found.tensors)} of {found.compared} tensors differ"
