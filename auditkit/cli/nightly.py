"""`auditkit nightly`: verify and attest steps that a public beacon draws, and keep all that was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.next import LogKey, Places, Policy
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import UsageError

if TYPE_CHECKING:
    from auditkit.audit.nightly import Night, Plan

MOST_STEPS, MOST_TRIES, MOST_SECONDS, MOST_DAYS = 1_000_000, 100, 86400, 365

Count = Annotated[
    int | None, typer.Option("--count", parser=options.number, metavar="K", help="How many steps. Default: 3.")
]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where each night gets a folder, beside history.json and data/.")
]
Key = Annotated[
    Path | None,
    typer.Option("--attest", metavar="KEYFILE", help="Sign with this private key. Default: the PEM in AUDITKIT_KEY."),
]
BeaconText = Annotated[
    str | None,
    typer.Option("--beacon", metavar="HEX", help="Public random value. Default: the latest round of drand."),
]
Relay = Annotated[
    str | None, typer.Option("--drand", metavar="URL", help="Relay to ask for it. Default: the public ones.")
]
Tries = Annotated[
    int | None,
    typer.Option("--tries", parser=options.number, metavar="N", help="Tries where a place is busy. Default: 3."),
]
Pause = Annotated[
    int | None,
    typer.Option("--pause", parser=options.number, metavar="SECONDS", help="Wait before the next try. Default: 300."),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        parser=options.number,
        metavar="DAYS",
        help="Days without a full match that may pass quietly. Default: 3.",
    ),
]
RegistryUrl = Annotated[
    str | None, typer.Option("--registry", metavar="URL", help="Hand the attestations over to this registry.")
]


def nightly(
    places: Places = None,
    count: Count = None,
    out: Out = Path("nights"),
    attest: Key = None,
    beacon: BeaconText = None,
    drand: Relay = None,
    tries: Tries = None,
    pause: Pause = None,
    patience: Patience = None,
    policy: Policy = None,
    log_key: LogKey = None,
    registry: RegistryUrl = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Verify steps that a public beacon draws, attest them, and keep report and attestations: for a scheduler.

    Where PATH or URL tell what was said so far, the neediest steps come first, as `auditkit next` has it.
    Without a key nothing is attested, and the result says so. What cannot be reached ends with 5, and with 9 when it
    has been so for days or nothing is known of earlier nights: treat 5 as a warning and all else as a failure.
    """
    from auditkit.audit.drand import RELAYS
    from auditkit.audit.night_tools import Setting, find_key, make_tools
    from auditkit.audit.nightly import nightly as one_night
    from auditkit.cli.progress import Board
    from auditkit.replay.arguments import check_options

    check_options(device, threads, False)
    plan = _plan(count, tries, pause, patience)
    relays = RELAYS if drand is None else (drand if drand.endswith("/") else f"{drand}/",)
    setting = Setting(
        run=run,
        artifacts=artifacts,
        device=device,
        threads=threads,
        cache_dir=cache_dir,
        beacon=beacon,
        relays=relays,
        places=places or (),
        policy=policy,
        log_key=log_key,
        data=out / "data",
        registry=registry,
    )
    with Board() as board:
        night = one_night(plan, make_tools(setting, find_key(attest), board.handle(), board.handle()), out)
    return Outcome(night.verdict, to_json(night.to_dict()) if json else "\n".join(_lines(night)))


def _plan(count: int | None, tries: int | None, pause: int | None, patience: int | None) -> Plan:
    from auditkit.audit.nightly import Plan

    return Plan(
        count=_bounded("count", count, 3, 1, MOST_STEPS),
        tries=_bounded("tries", tries, 3, 1, MOST_TRIES),
        pause_seconds=_bounded("pause", pause, 300, 0, MOST_SECONDS),
        # half a day more, for no two nights begin at the same minute
        patience_days=_bounded("patience", patience, 3, 0, MOST_DAYS) + 0.5,
    )


def _bounded(name: str, value: int | None, otherwise: int, low: int, high: int) -> int:
    found = otherwise if value is None else value
    if not low <= found <= high:
        raise UsageError(f"--{name} {found} is outside {low} to {high}")
    return found


def _lines(night: Night) -> Iterator[str]:
    from auditkit.cli.render import verdict_lines

    found = night.assigned
    if found is not None:
        yield f"run          {printable(found.subject.run)}, {found.subject.size} steps"
        yield f"run id       {found.subject.run_id}"
        yield f"beacon       {found.beacon.detail or found.beacon.origin.value}, {found.beacon.text}"
    if night.round.get("signature"):
        yield "             the signature of the round is recorded, and not verified"
    if night.report is not None:
        for step in night.report.steps:
            way = ", on the way" if step.on_the_way else ""
            yield f"step {step.step}{way}  {step.verdict.name}" + (
                f": {printable(step.message)}" if step.message else ""
            )
    if night.attestations:
        yield f"attested     {len(night.attestations)} files, as nightly, by key {night.keyid}"
    for result in night.submitted:
        told = f": {printable(result.message)}" if result.message else f", entry {result.position}"
        yield f"submitted    {result.place}  {result.status.value}{told}"
    yield f"kept in      {printable(str(night.folder))}"
    said = "every step drawn was computed here and equals the published one"
    yield from verdict_lines(night.verdict, night.message, night.hint, said if night.verdict.code == 0 else "")
    yield from (f"  {printable(note)}" for note in night.notes)
