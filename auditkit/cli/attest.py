"""`auditkit attest`: check what auditors signed, or just look at it."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options, rechecking
from auditkit.cli.command import ComputingCommand
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import AuditkitError, Unavailable, Untrusted, UsageError
from auditkit.verdict import Verdict, worst

if TYPE_CHECKING:
    from auditkit.audit.recheck import Recheck
    from auditkit.cli.attested_runs import Logs
    from auditkit.formats.policy import Policy as Policies
    from auditkit.replay.run import Run
    from auditkit.trust.check import Checked, CheckReport, KnownRun, StepStatus
    from auditkit.trust.keys import PublicKey
    from auditkit.trust.policy import Trust

SHOW_FORMAT = "auditkit/attest-show/v1"
SUFFIX = ".json"

_SAID = {
    Verdict.MATCH: "every file is accepted, and the policy is satisfied for each step that they name",
    Verdict.MISMATCH: "as many auditors as the policy asks for found one and the same other result, and none a match",
    Verdict.UNTRUSTED: "not all of this is what a known key signed about these steps",
    Verdict.BAD_ARTIFACT: "a file is malformed",
    Verdict.UNAVAILABLE: "something could not be read",
    Verdict.UNSUPPORTED: "a file is of a newer version",
    Verdict.INCOMPLETE: "the policy is not satisfied for each step named",
}

app = typer.Typer(help="Check or show attestations.", rich_markup_mode=None)

Files = Annotated[list[Path], typer.Argument(metavar="FILES...", help=f"Attestations, or folders of them (*{SUFFIX}).")]
Policy = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Whose word counts, and how many it takes (policy.toml)."),
]
Keys = Annotated[
    list[Path] | None,
    typer.Option(
        "--key", metavar="PEM", help="A key to check with, either half, repeatable. Without --policy each counts alone."
    ),
]
OneRun = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="NAME|PATH|URL", help="The run they are about. Default: the bundled run, if it is one."
    ),
]


@app.command("check", cls=ComputingCommand, short_help="Verify who signed them, about what, and by a policy.")
def check(
    files: Files,
    policy: Policy = None,
    key: Keys = None,
    run: OneRun = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    recheck: rechecking.Wanted = False,
    device: rechecking.Device = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> Outcome:
    """Verify who signed attestations and about what, and whether the policy is satisfied for each step they name.

    The signed log of a run that is known here is checked, by the policy's [log] if it has one.
    With --policy a key counts if the policy lists it; with --key alone one attestation by any of the keys is enough.
    The publisher's key and, unless the policy says otherwise, automation never count. Nothing is replayed, unless with
    --recheck, and what a replay here refutes counts for nothing.
    """
    from auditkit.cli.attested_runs import Logs
    from auditkit.cli.progress import Board
    from auditkit.replay.run import open_run
    from auditkit.store import SystemClock
    from auditkit.trust.check import check as check_files

    keys = _keys(key or [])
    if policy is None and not keys:
        raise UsageError(
            "neither --policy nor --key: whom should it trust?", hint="--key auditor.pem, or --policy FILE"
        )
    now, logs = SystemClock().wall(), Logs(policy)
    replay = rechecking.replay_options(recheck, device, threads)
    with ExitStack() as stack:
        board = stack.enter_context(Board())

        def opened(name: str) -> Run:
            progress = board.handle()
            found = open_run(name, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=progress)
            return stack.enter_context(found)

        given = opened(run) if run is not None else None
        trust = _trust(logs.policy, keys, given)
        read, find, only = list(_read(files)), _bundled(opened, logs), logs.known(given) if given else None
        report, found = check_files(read, trust, find, only, now=now), None
        if recheck:
            places = {"artifacts": artifacts, "cache_dir": cache_dir, "offline": offline}
            shown = {"progress": board.handle(), "downloads": board.handle()}
            place = rechecking.places(opened, run)
            found = rechecking.rechecked(report, trust.keys, place, **replay, **places, **shown)
            report = check_files(rechecking.without_refuted(read, found), trust, find, only, now=now)
    return _outcome(report, found, logs, json)


@app.command("show", cls=ComputingCommand, short_help="Print what one says, without verifying it.")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An attestation.")], json: options.Json = False
) -> Outcome:
    """Print what an attestation says. Nothing is verified: anybody can write such a file."""
    import hashlib

    from auditkit.formats import canonical
    from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope
    from auditkit.formats.limits import LIMITS

    data = _envelope(file)
    envelope = Envelope.parse(data)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise Untrusted(f"{file}: a payload of type {canonical.shown(envelope.payload_type)}, not an attestation")
    found = {
        "verified": False,
        "envelope_sha256": hashlib.sha256(data).hexdigest(),
        "keyids": [signature.keyid for signature in envelope.signatures],
        "statement": canonical.loads_relaxed(envelope.payload, what="statement", limit=LIMITS.envelope_bytes),
    }
    if json:
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, "format": SHOW_FORMAT, **found}))
    lines = [
        "NOT VERIFIED: this is what the file says, whoever wrote it (`auditkit attest check` verifies)",
        f"envelope  sha256 {found['envelope_sha256']}",
        *(f"keyid     {keyid}" for keyid in found["keyids"]),
        json_text.dumps(found["statement"], indent=2, ensure_ascii=True),
    ]
    return Outcome(Verdict.MATCH, "\n".join(lines))


def _outcome(report: CheckReport, found: dict[str, Recheck] | None, logs: Logs, json: bool) -> Outcome:
    """The result; `found` are the rechecks by path, None where none were asked for."""
    verdict = worst([report.verdict, *rechecking.verdicts(found or {})])
    if not json:
        return Outcome(verdict, "\n".join(_lines(report, found, logs, verdict)))
    value = {**report.to_dict(), "verdict": verdict.name, "code": verdict.code, "logs": logs.to_list()}
    if found is not None:
        value["rechecks"] = [{"path": path, **rechecking.value(one)} for path, one in found.items()]
    return Outcome(verdict, to_json(value))


def _keys(paths: list[Path]) -> list[PublicKey]:
    from auditkit.trust.keys import load_public_half

    return [load_public_half(path) for path in paths]


def _trust(policy: Policies | None, keys: list[PublicKey], run: Run | None) -> Trust:
    from auditkit.trust.policy import Trust

    publisher = _publisher(run) if run else None
    if policy is None:
        return Trust.of(keys, publisher)
    return Trust(policy, publisher, others=keys)


def _publisher(run: Run) -> PublicKey | None:
    from auditkit.trust.keys import PublicKey

    named = run.manifest.publisher
    return PublicKey(named.public) if named else None


def _read(paths: list[Path]) -> Iterator[tuple[str, bytes | AuditkitError]]:
    """Name and bytes of each file, or why there are none; of a folder, of each file that could be an attestation."""
    for path in paths:
        listed = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not listed:
            yield str(path), Unavailable(f"there is no *{SUFFIX} in this folder")
        for file in listed:
            try:
                yield str(file), _envelope(file)
            except AuditkitError as error:
                yield str(file), error


def _envelope(file: Path) -> bytes:
    """The bytes of a file, without the one newline at its end that an editor adds, as everywhere that reads them."""
    from auditkit.formats.limits import LIMITS
    from auditkit.trust import key_files

    return key_files.read(file, LIMITS.envelope_bytes + 1).removesuffix(b"\n")


def _bundled(opened: Callable[[str], Run], logs: Logs) -> Callable[[str], KnownRun | None]:
    """Finds a bundled run by its id; each is opened when the first is asked for."""
    from auditkit.store.locate import known as names

    runs: dict[str, Run] = {}

    def find(run_id: str) -> KnownRun | None:
        if not runs:
            runs.update((run.run_id, run) for run in map(opened, names()))
        return logs.known(runs[run_id]) if run_id in runs else None

    return find


def _lines(report: CheckReport, found: dict[str, Recheck] | None, logs: Logs, verdict: Verdict) -> Iterator[str]:
    from auditkit.cli.render import verdict_lines

    width = max((len(printable(file.path)) for file in report.files), default=0)
    for file in report.files:
        yield from _file(file, width)
        if found and file.says is not None and file.path in found:
            yield f"{'':<{width}}  {rechecking.line(found[file.path])}"
    if report.steps:
        keys = "1 key" if report.threshold == 1 else f"{report.threshold} keys"
        families = "1 hardware family" if report.families == 1 else f"{report.families} hardware families"
        yield ""
        yield f"each step needs MATCH by {keys} on {families}"
        width = max(len(step.subject) for step in report.steps)
        yield from (_step(step, width) for step in report.steps)
    yield from logs.lines()
    yield ""
    replayed = ", or what a replay here gives" if found is not None and verdict is Verdict.UNTRUSTED else ""
    yield from verdict_lines(verdict, "", "", _SAID.get(verdict, "") + replayed)
    yield "not checked:"
    if found is None:
        yield "  - that the steps were replayed: the proof of work in an attestation takes a replay to check, --recheck"
    else:
        yield "  - who computed the gradients that the proofs of work are made of: they can be handed on"
    yield "  - what auditors say of their machines, times and automation"
    yield from (f"  - {printable(text)}" for text in logs.not_checked())
    if any(file.says is not None and not file.bound for file in report.files):
        yield "  - that the records are those of the run, and its signed log, for runs not bundled: name it with --run"


def _file(file: Checked, width: int) -> Iterator[str]:
    path = f"{printable(file.path):<{width}}"
    if file.says is None:
        yield f"{path}  REFUSED, {file.verdict.name}: {printable(file.message)}"
        if file.hint:
            yield f"{'':<{width}}  hint: {printable(file.hint)}"
        return
    says = getattr(file.says, "verdict", None)
    word = says.name if isinstance(says, Verdict) else "SVR"
    part = getattr(file.says, "part", None)
    word += f" of {part.micro_batches.describe()}, not of the step," if part else ""
    who = f"{printable(file.auditor)} {file.says.keyid[:8]}" if file.auditor else file.says.keyid[:8]
    counts = f"does not count: {printable(file.why_not)}" if file.why_not else "counts"
    yield f"{path}  {printable(file.subject)}  {word} by {who}; {counts}"


def _step(step: StepStatus, width: int) -> str:
    families = "1 hardware family" if step.families == 1 else f"{step.families} hardware families"
    said = f"MATCH by {step.matches} on {families}, MISMATCH by {step.mismatches}"
    return f"{step.subject:<{width}}  {step.status.name:<8}  {said}"
