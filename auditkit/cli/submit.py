"""`auditkit submit`: hand attestations over to a registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import AuditkitError, UsageError

if TYPE_CHECKING:
    from auditkit.audit.submit import Result
    from auditkit.trust.keys import PublicKey

FORMAT = "auditkit/submit/v1"
WORDS = {"taken": "taken", "known": "known before", "refused": "refused", "later": "not taken yet"}
SHOWN = 20  # refusals told in full

Files = Annotated[
    list[Path], typer.Argument(metavar="FILES...", help="Attestations: files, or folders with *.json and *.jsonl.")
]
RegistryUrl = Annotated[str, typer.Option("--registry", metavar="URL", help="The registry's address.")]


def submit(files: Files, registry: RegistryUrl, json: options.Json = False) -> Outcome:
    """Hand attestations over to a registry; doing it again changes nothing.

    Public keys beside them (*.pem) are brought along, for a registry that is open to everybody. Ends with 8 if one was
    refused, with 4 or 5 if one could not be read, with 5 if the registry could not take all.
    """
    from auditkit.audit.submit import Registry, overall
    from auditkit.cli.progress import Board

    read = _read(files)
    with Board() as board, Registry(registry, progress=board.handle()) as client:
        results = client.submit(read.envelopes, read.keys) + read.failed
        address = client.address
    verdict = overall(results)
    if json:
        value = {
            "format": FORMAT,
            "verdict": verdict.name,
            "code": verdict.code,
            "registry": address,
            "counts": _counts(results),
            "results": [result.to_dict() for result in results],
        }
        return Outcome(verdict, to_json(value))
    return Outcome(verdict, "\n".join(_lines(results, address, read.passed_over)))


@dataclass
class _Read:
    """Envelopes with their places, keys beside them, what could not be read, and how many files were passed over."""

    envelopes: list[tuple[str, bytes]] = field(default_factory=list)
    keys: list[PublicKey] = field(default_factory=list)
    failed: list[Result] = field(default_factory=list)
    passed_over: int = 0


def _read(files: Sequence[Path]) -> _Read:
    """What lies in the files and folders; one that cannot be read keeps nothing else from being handed over."""
    from auditkit.audit.candidates import find
    from auditkit.audit.submit import unread
    from auditkit.trust.keys import load_public

    found = find(files)
    read = _Read(passed_over=found.summaries + found.others)
    for batch in found.batches:
        contents = batch.read()
        read.failed += [unread(place, error) for place, error in contents.failed]
        read.envelopes += [(contents.where(number), data) for number, data in enumerate(contents.envelopes)]
    if not read.envelopes and not read.failed:
        raise UsageError("there is no attestation", hint="name files, or folders with *.json or *.jsonl")
    keys: dict[str, PublicKey] = {}
    for path in found.keys:
        try:
            key = load_public(path)
        except AuditkitError as error:
            read.failed.append(unread(str(path), error))
        else:
            keys[key.keyid] = key
    read.keys = list(keys.values())
    return read


def _counts(results: Sequence[Result]) -> dict[str, int]:
    from auditkit.audit.submit import Status

    return {status.value: sum(result.status is status for result in results) for status in Status}


def _lines(results: Sequence[Result], address: str, passed_over: int) -> Iterator[str]:
    from auditkit.audit.submit import Status

    counts = _counts(results)
    yield f"registry  {printable(address)}"
    yield ", ".join(f"{counts[status]} {words}" for status, words in WORDS.items())
    if passed_over:
        yield f"{passed_over} files that are no attestations were passed over"
    not_there = [result for result in results if result.status in (Status.REFUSED, Status.LATER)]
    for result in not_there[:SHOWN]:
        yield f"{result.status.value}  {printable(result.place)}: {printable(result.message)}"
        if result.hint:
            yield f"  hint: {printable(result.hint)}"
    if len(not_there) > SHOWN:
        yield f"and {len(not_there) - SHOWN} more (--json lists all)"
