"""Verify any step of a published language-model training run, bit for bit.

Verify, and compare the verdict (a report has no truth value):

    report = auditkit.verify("open-nano", step=7)
    assert report.verdict is auditkit.Verdict.MATCH

Attest: each step that was asked for is signed, whatever was found, unless this machine is at fault. The key is a file
that `auditkit key new` makes; the proof of work needs it during the replay.

    attester = auditkit.Attester(auditkit.load_private(Path("auditor.pem")))
    report = auditkit.verify("open-nano", step=7, work_key=attester.work_key)
    for signed in attester.attest(report).signed:
        auditkit.keep(signed, Path("attestations"))

Read an attestation as evidence about a run, and replay its step to see whether the digests and the proof of work are
those of a replay here:

    keys = {key.keyid: key for key in [auditkit.load_public(Path("auditor.pub"))]}
    with auditkit.open_run("open-nano") as run:
        attested = auditkit.read_attestation(data, keys, records=run.records)
    (found,) = auditkit.recheck([attested], keys, "open-nano")
    assert found.verdict is auditkit.Verdict.MATCH
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditkit.audit.attest import Attester as Attester
    from auditkit.audit.keep import keep as keep
    from auditkit.audit.recheck import recheck as recheck
    from auditkit.audit.verify import verify as verify
    from auditkit.errors import AuditkitError as AuditkitError
    from auditkit.errors import BadArtifact as BadArtifact
    from auditkit.errors import Incomplete as Incomplete
    from auditkit.errors import MachineFault as MachineFault
    from auditkit.errors import MismatchError as MismatchError
    from auditkit.errors import Unavailable as Unavailable
    from auditkit.errors import Unsupported as Unsupported
    from auditkit.errors import Untrusted as Untrusted
    from auditkit.errors import UsageError as UsageError
    from auditkit.replay.report import Report as Report
    from auditkit.replay.run import open_run as open_run
    from auditkit.trust.attested import read_attestation as read_attestation
    from auditkit.trust.keys import load_private as load_private
    from auditkit.trust.keys import load_public as load_public
    from auditkit.verdict import Verdict as Verdict

__all__ = [
    "Attester",
    "AuditkitError",
    "BadArtifact",
    "Incomplete",
    "MachineFault",
    "MismatchError",
    "Report",
    "Unavailable",
    "Unsupported",
    "Untrusted",
    "UsageError",
    "Verdict",
    "keep",
    "load_private",
    "load_public",
    "open_run",
    "read_attestation",
    "recheck",
    "verify",
]

_ELSEWHERE = {
    "Attester": "audit.attest",
    "Report": "replay.report",
    "Verdict": "verdict",
    "keep": "audit.keep",
    "load_private": "trust.keys",
    "load_public": "trust.keys",
    "open_run": "replay.run",
    "read_attestation": "trust.attested",
    "recheck": "audit.recheck",
    "verify": "audit.verify",
}  # the rest: errors


def __getattr__(name: str) -> object:
    """The exports, imported at their first use: `import auditkit` alone must not load NumPy (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"auditkit.{_ELSEWHERE.get(name, 'errors')}"), name)
