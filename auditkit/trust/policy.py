"""Whose attestations count: a policy, for one run and its publisher."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from auditkit.errors import AuditkitError, BadArtifact, Untrusted
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS
from auditkit.formats.policy import Auditor, Policy
from auditkit.trust import key_files
from auditkit.trust.keys import PublicKey

if TYPE_CHECKING:
    from auditkit.trust.attested import Attested

PUBLISHER = "the publisher's key"
UNLISTED = "not an auditor of the policy"


def load_policy(path: Path) -> Policy:
    """The policy of a file; the errors of `Policy.parse` with the path, and Unavailable."""
    data = key_files.read(path, LIMITS.policy_bytes)
    try:
        return Policy.parse(data)
    except AuditkitError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


class Trust:
    """A policy for a run whose manifest names `publisher` as the key of its publisher.

    policy     as it was read
    keys       {keyid: key} of everyone whose signature can be checked; not all of them count
    names      {keyid: name} of the auditors
    excluded   {keyid: reason} of the keys that never count, the publisher's among them

    `others` are further keys whose signatures can be checked and that do not count. Untrusted: a key of the policy is
    not sound. BadArtifact: the policy is about a log alone.
    """

    def __init__(self, policy: Policy, publisher: PublicKey | None = None, *, others: Iterable[PublicKey] = ()) -> None:
        if policy.log and not policy.auditors:
            raise BadArtifact("policy: no auditor is listed, so nothing can count by it", hint="[[auditor]] lists one")
        self.policy = policy
        auditors = [_key(auditor) for auditor in policy.auditors]
        self.names = {key.keyid: auditor.name for key, auditor in zip(auditors, policy.auditors, strict=True)}
        self.excluded = {excluded.keyid: excluded.reason for excluded in policy.excluded}
        publishers = [PublicKey(policy.log.publisher.public)] if policy.log else []
        publishers += [publisher] if publisher else []
        self.excluded |= {key.keyid: PUBLISHER for key in publishers}
        self.keys = {key.keyid: key for key in (*others, *publishers, *auditors)}

    @classmethod
    def of(cls, keys: Iterable[PublicKey], publisher: PublicKey | None = None) -> Self:
        """The rule without a policy: one attestation by any of these keys is enough, automation does not count."""
        unique = {key.keyid: key for key in keys}
        return cls(Policy(1, auditors=tuple(Auditor(keyid, key.raw) for keyid, key in unique.items())), publisher)

    @property
    def threshold(self) -> int:
        """How many different keys must say MATCH."""
        return self.policy.threshold

    @property
    def families(self) -> int:
        """How many different hardware families must be among them."""
        return self.policy.families

    def why_not(self, keyid: str, automation: str) -> str:
        """Why an attestation by this key does not count, "" if it does; `automation` is "" if a person started it."""
        if keyid in self.excluded:
            reason = self.excluded[keyid]
            return reason if reason == PUBLISHER else f"excluded: {reason}"
        if keyid not in self.names:
            return UNLISTED
        return f"automation ({automation})" if automation and not self.policy.automation else ""

    def counts(self, attested: Attested) -> bool:
        """Whether an attestation counts."""
        return not self.why_not(attested.keyid, attested.automation)


def _key(auditor: Auditor) -> PublicKey:
    try:
        return PublicKey(auditor.key)
    except Untrusted as error:
        raise Untrusted(f"policy.auditor {shown(auditor.name)}: {error.message}") from error
