"""Verify any step of a published language-model training run, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditkit.replay.report import Report as Report
    from auditkit.replay.verify import verify as verify

__all__ = ["Report", "verify"]


def __getattr__(name: str) -> object:
    """The exports, imported at their first use: `import auditkit` alone must not load NumPy (PEP 562)."""
    if name == "verify":
        from auditkit.replay.verify import verify

        return verify
    if name == "Report":
        from auditkit.replay.report import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
