"""`auditkit registry`: make, serve, back up and restore a registry of attestations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.command import ComputingCommand
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import Unsupported, UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.registry.limits import RegistryLimits

EXTRA = "pip install 'auditkit-verifier[registry]'"
MOST_PORT, MOST_RATE, MOST_SECONDS = 65535, 1_000_000, 30 * 86400

app = typer.Typer(help="Make, serve, back up and restore a registry of attestations.", rich_markup_mode=None)

Place = Annotated[Path, typer.Argument(metavar="FOLDER", help="The registry's folder: its log, log key and database.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="PATH|URL", help="SQLite file or postgresql:// address. Default: FOLDER/registry.db."
    ),
]
Origin = Annotated[
    str,
    typer.Option("--origin", metavar="NAME", help="Name of the log, for ever: for example registry.example/audits."),
]
LogKey = Annotated[
    Path | None, typer.Option("--log-key", metavar="FILE", help="Private key of the log. Default: a fresh one.")
]
Runs = Annotated[
    list[str],
    typer.Option("--run", metavar="NAME|PATH|URL", help="A run whose attestations are taken; may be repeated."),
]
PolicyFile = Annotated[
    Path, typer.Option("--policy", metavar="FILE", help="policy.toml: whose attestations are taken, and which count.")
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option("--port", parser=options.number, metavar="N", help="Port, 0 for a free one. Default: 8440."),
]
Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address by which clients call this registry; may be repeated. Default: where it listens.",
    ),
]
Proxy = Annotated[
    list[str] | None,
    typer.Option("--proxy", metavar="ADDRESS", help="A proxy before it, whose X-Forwarded-For is believed."),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="Take attestations of other keys than the policy's, too; they do not count."),
]
BeaconText = Annotated[
    str | None,
    typer.Option("--beacon", metavar="HEX", help="Public random value that orders the leases. Default: the date."),
]
AddressRate = Annotated[
    int | None,
    typer.Option("--address-rate", parser=options.number, metavar="N", help="Submissions a second of an address."),
]
KeyRate = Annotated[
    int | None,
    typer.Option("--key-rate", parser=options.number, metavar="N", help="New attestations a second of a key."),
]
LeaseSeconds = Annotated[
    int | None,
    typer.Option("--lease-seconds", parser=options.number, metavar="N", help="How long a lease lasts. Default: 3600."),
]


@app.command("init", cls=ComputingCommand)
def init(
    folder: Place,
    origin: Origin,
    log_key: LogKey = None,
    database: DatabaseOption = None,
    json: options.Json = False,
) -> Outcome:
    """Make a registry: a folder with the key of its log, and an empty database."""
    from auditkit.registry import folder as folders
    from auditkit.trust.keys import load_private

    private = load_private(log_key) if log_key is not None else None
    made = folders.init(folder, origin, address=database, private=private)
    if json:
        found = {"format": "auditkit/registry-init/v1", "folder": str(folder), "log_key": made.text}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **found}))
    return Outcome(
        Verdict.MATCH,
        f"made {printable(str(folder))}\nlog key  {made.text}\n"
        f"keep {printable(str(folders.Folder(folder).private))} safe and apart from the backups",
    )


@app.command("serve", cls=ComputingCommand)
def serve(
    folder: Place,
    run: Runs,
    policy: PolicyFile,
    host: Host = "127.0.0.1",
    port: Port = None,
    url: Url = None,
    proxy: Proxy = None,
    is_open: Open = False,
    beacon: BeaconText = None,
    database: DatabaseOption = None,
    address_rate: AddressRate = None,
    key_rate: KeyRate = None,
    lease_seconds: LeaseSeconds = None,
    cache_dir: options.CacheDir = None,
) -> Outcome:
    """Serve a registry until SIGTERM or Ctrl-C: take attestations, hand out leases, keep the log, show the coverage."""
    require_libraries()
    from auditkit.cli.progress import Board
    from auditkit.formats.lease import registry_address
    from auditkit.registry import serve as server
    from auditkit.registry.opening import Choices, open_registry
    from auditkit.trust import beacon as beacons

    limits = _limits(address_rate, key_rate, lease_seconds)
    given = tuple(registry_address(text) for text in url or ())
    drawn = beacons.parse(beacon) if beacon is not None else None
    socket = server.listen(host, _bounded("port", 8440 if port is None else port, 0, MOST_PORT))
    with socket:
        found = server.addresses(socket)
        choices = Choices(
            folder=folder,
            runs=run,
            policy=policy,
            addresses=given or found,
            is_open=is_open,
            beacon=drawn,
            database=database,
            cache_dir=cache_dir,
            limits=limits,
            tell=lambda line: console.tell(printable(line)),
        )
        with Board() as board:
            registry = open_registry(choices, board.handle())
        console.tell(f"serving {found[0]}/ for {', '.join(choices.addresses)}")
        server.serve(registry, socket, proxies=tuple(proxy or ()))
    console.tell("stopped")
    return Outcome(Verdict.MATCH, "")


@app.command("backup", cls=ComputingCommand)
def backup(folder: Place, file: File, database: DatabaseOption = None, json: options.Json = False) -> Outcome:
    """Write all that the database holds into one file, also while the registry serves. The log's key is not in it."""
    from auditkit.cli.progress import Board
    from auditkit.registry import backup as backups
    from auditkit.registry.folder import Folder, open_database

    opened = open_database(Folder(folder), database)
    try:
        with Board() as board:
            count, root = backups.backup(opened, file, board.handle())
    finally:
        opened.close()
    return _told("backup", file, count, root, json)


@app.command("restore", cls=ComputingCommand)
def restore(folder: Place, file: File, database: DatabaseOption = None, json: options.Json = False) -> Outcome:
    """Fill the empty database of a registry from a backup; every signature is verified again."""
    from auditkit.cli.progress import Board
    from auditkit.registry import backup as backups
    from auditkit.registry.folder import Folder, open_database

    opened = open_database(Folder(folder), database)
    try:
        with Board() as board:
            count, root = backups.restore(opened, file, board.handle())
    finally:
        opened.close()
    return _told("restore", file, count, root, json)


def require_libraries() -> None:
    """Unsupported when what serves HTTP is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"the registry needs {error.name}, which is not installed", hint=EXTRA) from None


def _limits(address_rate: int | None, key_rate: int | None, lease_seconds: int | None) -> RegistryLimits:
    """The usual limits with what the operator set; bursts and plain requests grow with the rates."""
    from auditkit.registry.limits import REGISTRY_LIMITS

    limits = REGISTRY_LIMITS
    if address_rate is not None:
        rate = _bounded("address-rate", address_rate, 1, MOST_RATE)
        limits = replace(limits, envelopes_per_second=rate, envelopes_burst=40 * rate)
        requests = max(limits.requests_per_second, 2 * rate)
        limits = replace(limits, requests_per_second=requests, requests_burst=int(10 * requests))
    if key_rate is not None:
        rate = _bounded("key-rate", key_rate, 1, MOST_RATE)
        limits = replace(limits, key_envelopes_per_second=rate, key_envelopes_burst=40 * rate)
    if lease_seconds is not None:
        limits = replace(limits, lease_seconds=_bounded("lease-seconds", lease_seconds, 1, MOST_SECONDS))
    return limits


def _told(kind: str, file: Path, count: int, root: str, json: bool) -> Outcome:
    if json:
        found = {"format": f"auditkit/registry-{kind}/v1", "file": str(file), "attestations": count, "root": root}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **found}))
    way = "in" if kind == "backup" else "restored from"
    return Outcome(Verdict.MATCH, f"{count} attestations {way} {printable(str(file))}\nroot  {root}")


def _bounded(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise UsageError(f"--{name} {value} is outside {low} to {high}")
    return value
