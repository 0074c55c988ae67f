"""`attest check --recheck`: replay what was attested, and take back what a replay here does not give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditkit.cli.console import printable
from auditkit.errors import AuditkitError, Untrusted, UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.audit.recheck import Recheck
    from auditkit.replay.run import Run
    from auditkit.trust.check import CheckReport
    from auditkit.trust.keys import PublicKey

Wanted = Annotated[
    bool, typer.Option("--recheck", help="Replay each step and compare digests and proof of work: one replay a file.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="Where to replay. Default: auto.")
]

Files = Iterable[tuple[str, bytes | AuditkitError]]
Place = Callable[[str], str | None]  # of a run id: what names the run to `verify`, None for one not known here


def replay_options(wanted: bool, device: str | None, threads: int | None) -> dict[str, Any]:
    """How to replay. UsageError: options of a replay without --recheck."""
    for name, value in (("--device", device), ("--threads", threads)):
        if value is not None and not wanted:
            raise UsageError(f"{name} belongs to --recheck", hint="without it nothing is replayed")
    return {"device": device or "auto", "threads": threads}


def places(opened: Callable[[str], Run], run: str | None) -> Place:
    """What names a run by its id: `run` if it is given, which all attestations are about then, else a bundled name."""
    names: dict[str, str] = {}

    def place(run_id: str) -> str | None:
        from auditkit.store.locate import known

        if run is None and not names:
            names.update((opened(name).run_id, name) for name in known())
        return run if run is not None else names.get(run_id)

    return place


def rechecked(
    report: CheckReport, keys: Mapping[str, PublicKey], place: Place, **verify_options: Any
) -> dict[str, Recheck]:
    """A Recheck of every attestation that was accepted, by the path of its file."""
    from auditkit.audit.recheck import Recheck, recheck
    from auditkit.trust.attested import Attested

    accepted = {file.path: file.says for file in report.files if isinstance(file.says, Attested)}
    found: dict[str, Recheck] = {}
    for run_id in sorted({says.run_id for says in accepted.values()}):
        of_run = {path: says for path, says in accepted.items() if says.run_id == run_id}
        name = place(run_id)
        if name is None:
            message, hint = f"not replayed: run {run_id} is not known here", "--run names it"
            found |= {path: Recheck(says, Verdict.INCOMPLETE, message, hint) for path, says in of_run.items()}
        else:
            done = recheck(list(of_run.values()), keys, name, **verify_options)
            found |= dict(zip(of_run, done, strict=True))
    return found


def without_refuted(files: Files, found: Mapping[str, Recheck]) -> list[tuple[str, bytes | AuditkitError]]:
    """The files, with an error in the place of those that a replay here refutes: they count for nothing."""
    refuted = {path: one for path, one in found.items() if one.verdict is Verdict.UNTRUSTED}
    return [
        (path, Untrusted(refuted[path].message, hint=refuted[path].hint) if path in refuted else data)
        for path, data in files
    ]


def verdicts(found: Mapping[str, Recheck]) -> list[Verdict]:
    """What the rechecks mean for the command; an attestation in which nothing was decided has nothing to repeat."""
    from auditkit.formats.step_audit import UNDECIDED

    return [one.verdict for one in found.values() if one.attested.verdict not in UNDECIDED]


def line(one: Recheck) -> str:
    """One recheck in words."""
    word = "rechecked" if one.verdict is Verdict.MATCH else f"not rechecked, {one.verdict.name}"
    hint = f" (hint: {printable(one.hint)})" if one.hint else ""
    return f"{word}: {printable(one.message)}{hint}"


def value(one: Recheck) -> dict[str, object]:
    """One recheck as JSON values."""
    return {"verdict": one.verdict.name, "message": one.message, "hint": one.hint}
