"""`auditkit next`: which steps an auditor should verify, by need and by a public random value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.audit.assigned import Assigned
    from auditkit.trust.keys import PublicKey

KEYID_DIGITS = 64
MOST_STEPS = 10_000_000

Key = Annotated[str, typer.Option("--key", metavar="KEYID|PEM", help="Whose steps: a key id, or the file of a key.")]
Count = Annotated[
    int | None, typer.Option("--count", parser=options.number, metavar="C", help="How many steps. Default: 1.")
]
BeaconText = Annotated[
    str | None,
    typer.Option(
        "--beacon", metavar="HEX", help="A public random value newer than the run. Default: drawn here and named."
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH|URL", help="What was said so far: attestations, folders of them, attestation logs."),
]
Policy = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="Whose word counts, and how many it takes.")
]
LogKey = Annotated[str | None, typer.Option("--log-key", metavar="VKEY", help="Who signs the attestation logs.")]


def next_steps(
    key: Key,
    places: Places = None,
    count: Count = None,
    beacon: BeaconText = None,
    policy: Policy = None,
    log_key: LogKey = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Print the steps that an auditor should verify next, one a line: the neediest first, and equals by chance.

    Who has the same run, key, beacon, policy and attestations gets the same steps; docs/assignment.md has the rule.
    Ends with 9 if no step is left for this key.
    """
    from auditkit.audit.assigned import Subject, assigned
    from auditkit.audit.said import what_was_said
    from auditkit.cli.progress import Board
    from auditkit.replay.run import open_run
    from auditkit.trust import beacon as beacons

    wanted = 1 if count is None else count
    if not 1 <= wanted <= MOST_STEPS:
        raise UsageError(f"--count {wanted} is outside 1 to {MOST_STEPS}")
    keyid, own = _key(key)
    value = beacons.draw() if beacon is None else beacons.parse(beacon)
    with Board() as board:
        told = board.handle()
        opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=told)
        with opened:
            coverage, digest = what_was_said(
                opened, places or (), policy, log_key, own=own, cache_dir=cache_dir, offline=offline, progress=told
            )
            subject = Subject(opened.name, opened.run_id, opened.size, keyid)
        found = assigned(subject, value, wanted, coverage=coverage, policy=digest)
        if value.caveat:
            told.note(f"beacon {value.text}")
            told.note(value.caveat)
        if len(found.steps) < wanted:
            told.note(f"{len(found.steps)} steps are left for this key; it has spoken on {found.totals['spoken']}")
    return _outcome(found, json)


def _outcome(found: Assigned, json: bool) -> Outcome:
    verdict = Verdict.MATCH if found.steps else Verdict.INCOMPLETE
    if json:
        return Outcome(verdict, to_json({**found.to_dict(), "verdict": verdict.name, "code": verdict.code}))
    return Outcome(verdict, "\n".join(map(str, found.steps)))


def _key(text: str) -> tuple[str, PublicKey | None]:
    """The key id that is meant, and the key if its file is named. UsageError: neither; errors of the key's file."""
    if len(text) == KEYID_DIGITS and all(digit in "0123456789abcdef" for digit in text):
        return text, None
    from auditkit.trust.keys import load_public_half

    if not Path(text).exists():
        raise UsageError(
            f"--key {text!r} is neither a key id of {KEYID_DIGITS} hexadecimal digits nor a file",
            hint="`auditkit key show FILE` names the id of a key",
        )
    public = load_public_half(Path(text))
    return public.keyid, public
