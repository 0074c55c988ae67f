"""`auditkit show`: what a run says about itself."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import UsageError
from auditkit.verdict import Verdict


class What(StrEnum):
    """What can be shown."""

    RUN = "run"
    STEP = "step"
    LOG = "log"


def show(
    what: Annotated[What, typer.Argument(metavar="run|step|log", help="The run, one step's record, or the log.")],
    number: Annotated[
        int | None, typer.Argument(parser=options.number, metavar="[N]", help="The step, for `show step N`.")
    ] = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Show a run, one step's record, or the log of all records. Nothing is replayed."""
    if (what is What.STEP) != (number is not None):
        raise UsageError("a step number belongs to `show step`, and only there", hint="auditkit show step 500")
    from auditkit.cli.progress import Board
    from auditkit.replay import show as facts
    from auditkit.replay.run import open_run

    with Board() as board:
        opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=board.handle())
        with opened:
            if number is not None:
                found = facts.show_step(opened, number)
            else:
                found = facts.show_run(opened) if what is What.RUN else facts.show_log(opened)
    # a log that does not give its root is no result to be shown with exit code 0
    verdict = Verdict.BAD_ARTIFACT if found.get("root", 0) != found.get("computed_root", 0) else Verdict.MATCH
    if json:
        return Outcome(verdict, to_json({"verdict": verdict.name, "code": verdict.code, **found}))
    del found["format"]
    lines = [*_lines(found), "not checked: any training step (`auditkit verify` does)"]
    if verdict is not Verdict.MATCH:
        lines.append("BAD_ARTIFACT: the records do not give the log root of the manifest")
    return Outcome(verdict, "\n".join(lines))


def _lines(value: dict[str, object], indent: str = "") -> Iterator[str]:
    """Keys and values, one a line; objects indented, lists of objects one a line."""
    width = max(len(key) for key in value)
    for key, item in value.items():
        name = f"{indent}{key.replace('_', ' '):<{width}}"
        if isinstance(item, dict):
            yield name.rstrip()
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{name}  {len(item)}"
            yield from (f"{indent}  {_row(row)}" for row in item)
        else:
            yield f"{name}  {_text(item)}"


def _row(row: object) -> str:
    if isinstance(row, dict):
        return "  ".join(f"{key.replace('_', ' ')} {_text(item)}" for key, item in row.items())
    return _text(row)


def _text(item: object) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    return printable(f"{item:.9g}" if isinstance(item, float) else str(item))
