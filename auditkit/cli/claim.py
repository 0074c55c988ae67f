"""`auditkit claim`: ask a registry which steps to verify next."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.cli.submit import RegistryUrl
from auditkit.errors import UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.audit.submit import Served

FORMAT = "auditkit/claim/v1"
MOST = 4096

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="Your private key, which signs the request.")]
Count = Annotated[
    int | None, typer.Option("--count", parser=options.number, metavar="K", help="How many steps. Default: 1.")
]
Named = Annotated[
    str | None, typer.Option("--run", metavar="NAME|ID", help="Of which run. Default: the only one that it serves.")
]


def claim(
    registry: RegistryUrl, key: Key, count: Count = None, run: Named = None, json: options.Json = False
) -> Outcome:
    """Ask a registry for steps that need an auditor, and have others kept off them for a while.

    A lease is advice: any step can be verified and submitted without one. Ends with 9 if there are none left for you.
    """
    from auditkit.audit.submit import Registry
    from auditkit.cli.progress import Board
    from auditkit.formats.times import time_text
    from auditkit.trust.keys import load_private

    wanted = 1 if count is None else count
    if not 1 <= wanted <= MOST:
        raise UsageError(f"--count {wanted} is outside 1 to {MOST}")
    private = load_private(key)
    with Board() as board, Registry(registry, progress=board.handle()) as client:
        served = client.find(run)
        leases = client.claim(private, served.run_id, wanted)
        address = client.address
    verdict = Verdict.MATCH if leases.leases else Verdict.INCOMPLETE
    steps = [lease.step for lease in leases.leases]
    if json:
        value = {
            "format": FORMAT,
            "verdict": verdict.name,
            "code": verdict.code,
            "registry": address,
            "run": served.name,
            "run_id": served.run_id,
            "keyid": private.public.keyid,
            "held": leases.held,
            "leases": [{"step": lease.step, "expires": time_text(lease.expires)} for lease in leases.leases],
        }
        return Outcome(verdict, to_json(value))
    if not steps:
        return Outcome(verdict, f"{printable(served.name)} has no step left for key {private.public.keyid8}")
    lines = [f"run    {printable(served.name)}", f"run id {served.run_id}"]
    lines += [f"step {lease.step}, yours until {time_text(lease.expires)}" for lease in leases.leases]
    lines += _next(served, sorted(steps), key, address)
    return Outcome(verdict, "\n".join(lines))


def _next(served: Served, steps: list[int], key: Path, address: str) -> Iterator[str]:
    """The commands that verify the steps and hand over what was found."""
    from auditkit.replay.run import open_run
    from auditkit.replay.selection import in_words
    from auditkit.store.locate import known

    place = "RUN"
    if served.name in known():
        with open_run(served.name) as run:  # a name alone could mean another run than the registry's
            place = served.name if run.run_id == served.run_id else place
    if place == "RUN":
        yield "RUN    the folder or URL of that run, wherever it is published"
    which = f"--step {steps[0]}" if len(steps) == 1 else f"--steps {in_words(_ranges(steps))}"
    yield f"auditkit verify --run {place} {which} --attest {_word(str(key))} --attest-dir attestations"
    yield f"auditkit submit attestations --registry {_word(address)}"


def _ranges(steps: list[int]) -> list[tuple[int, int]]:
    """Half-open ranges of ascending steps."""
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and found[-1][1] == step:
            found[-1] = found[-1][0], step + 1
        else:
            found.append((step, step + 1))
    return found


def _word(text: str) -> str:
    """One word of a command line, as a shell of this system reads it."""
    return printable(subprocess.list2cmdline([text]) if os.name == "nt" else shlex.quote(text))
