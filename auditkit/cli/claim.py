"""`auditkit claim`: ask a registry which steps to verify next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.cli.submit import RegistryUrl
from auditkit.errors import UsageError
from auditkit.verdict import Verdict

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
    lines.append(f"auditkit verify --steps {','.join(map(str, sorted(steps)))}")
    return Outcome(verdict, "\n".join(lines))
