"""Verify any step of a published language-model training run, bit for bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from auditkit.replay.verify import verify as verify
    from auditkit.verdict import Verdict as Verdict

__all__ = [
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
    "verify",
]

_ELSEWHERE = {"Report": "replay.report", "Verdict": "verdict", "verify": "replay.verify"}  # the rest: errors


def __getattr__(name: str) -> object:
    """The exports, imported at their first use: `import auditkit` alone must not load NumPy (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"auditkit.{_ELSEWHERE.get(name, 'errors')}"), name)
