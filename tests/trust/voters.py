"""The simplest rule that `cover` can be given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Anyone:
    """Each key counts but the publisher's; automation does not."""

    threshold: int = 1
    families: int = 1
    publisher: str = ""  # key id that the run's manifest names

    def why_not(self, keyid: str, automation: str) -> str:
        """Why an attestation by this key does not count, or nothing."""
        if keyid == self.publisher:
            return "the publisher's key"
        return f"automation ({automation})" if automation else ""
