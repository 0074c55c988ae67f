"""Whose attestations are taken: of the policy's auditors, or of anyone who brings a key along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from auditkit.errors import Untrusted
from auditkit.trust.keys import PublicKey


@dataclass(frozen=True)
class Admission:
    """`keys`: of the policy's auditors, by keyid; `refused`: keyids that are never taken, and why.

    `is_open`: whether any other key is taken when it comes along with what it signed. Whether it counts is the policy's
    business, of everybody who reads.
    """

    keys: Mapping[str, PublicKey]
    refused: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False

    def known(self, brought: Mapping[str, PublicKey]) -> Mapping[str, PublicKey]:
        """The keys whose signatures are taken of a request that brings some along. Untrusted: one is refused."""
        for keyid in brought:
            if keyid in self.refused:
                raise Untrusted(f"key {keyid[:8]} is refused here: {self.refused[keyid]}")
        return {**brought, **self.keys} if self.is_open and brought else self.keys

    def has_strangers(self, brought: Mapping[str, PublicKey]) -> bool:
        """Whether a request brings keys along that are taken, and that the policy does not list."""
        return self.is_open and any(keyid not in self.keys for keyid in brought)
