"""The policy file `policy.toml`: whose word counts, how many of them it takes, and what the publisher's log must show.

People write it, so TOML, and any spelling of it; what it says is as strict as everywhere: unknown keys, other types and
rules that nothing could satisfy are errors that name the line or the field.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from auditkit.errors import BadArtifact
from auditkit.formats import pem
from auditkit.formats.canonical import shown, words
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import COSIGNATURE, ED25519, NoteKey, parse_key

FORMAT = "auditkit/policy/v1"
WHAT = "policy"
MAX_FAMILIES = 64


@dataclass(frozen=True, slots=True)
class Auditor:
    """A key (32 raw bytes) whose attestations may count, and what its owner is called."""

    name: str
    key: bytes

    @property
    def keyid(self) -> Digest:
        """SHA-256 of the key's DER SubjectPublicKeyInfo."""
        return hashlib.sha256(pem.spki(self.key)).hexdigest()


@dataclass(frozen=True, slots=True)
class Excluded:
    """A key that never counts, and why."""

    keyid: Digest
    reason: str


@dataclass(frozen=True, slots=True)
class LogRule:
    """Who signs the publisher's log, and how many of which witnesses must have cosigned its checkpoint."""

    publisher: NoteKey
    witnesses: tuple[NoteKey, ...] = ()
    witness_threshold: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """A step is covered when `threshold` different keys on `families` different hardware families say MATCH.

    `automation` tells whether attestations of continuous integrations and nightly jobs count.
    """

    threshold: int
    families: int = 1
    automation: bool = False
    log: LogRule | None = None
    auditors: tuple[Auditor, ...] = ()
    excluded: tuple[Excluded, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The policy of a TOML file; BadArtifact naming line or field, Unsupported for a newer version."""
        fields = Fields(_toml(data), WHAT)
        fields.format(FORMAT)
        policy = cls(
            threshold=fields.integer("threshold", 1, LIMITS.policy_auditors, "keys"),
            families=fields.integer("families", 1, MAX_FAMILIES) if fields.has("families") else 1,
            automation=fields.flag("automation") if fields.has("automation") else False,
            log=_log(fields.fields("log")) if fields.has("log") else None,
            auditors=tuple(map(_auditor, _rows(fields, "auditor"))),
            excluded=tuple(map(_excluded, _rows(fields, "excluded"))),
        )
        fields.done()
        _check(policy)
        return policy


def _toml(data: bytes) -> dict[str, Any]:
    if len(data) > LIMITS.policy_bytes:
        raise BadArtifact(f"{WHAT}: {len(data)} bytes, at most {LIMITS.policy_bytes} are allowed")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadArtifact(f"{WHAT}: not UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise BadArtifact(f"{WHAT}: nested too deep") from None
    except ValueError as error:  # of TOML, and of numbers with more digits than Python converts
        text = words(error)
        raise BadArtifact(f"{WHAT}: not TOML: {text[:1].lower()}{text[1:]}") from error


def _rows(fields: Fields, key: str) -> list[Fields]:
    return fields.rows(key, 0, LIMITS.policy_auditors) if fields.has(key) else []


def _auditor(fields: Fields) -> Auditor:
    what = fields.name("key")
    text = fields.raw("key")
    if type(text) is not str:
        raise BadArtifact(f"{what}: not text")
    _, der = pem.decode(text.encode("utf-8"), what, pem.PUBLIC)
    auditor = Auditor(fields.text("name"), pem.from_spki(der, what))
    fields.done()
    return auditor


def _excluded(fields: Fields) -> Excluded:
    excluded = Excluded(fields.digest("keyid"), fields.text("reason"))
    fields.done()
    return excluded


def _log(fields: Fields) -> LogRule:
    listed = fields.items("witnesses", 0, LIMITS.policy_witnesses) if fields.has("witnesses") else []
    needed = bool(listed) or fields.has("witness_threshold")
    rule = LogRule(
        publisher=parse_key(fields.raw("publisher"), fields.name("publisher"), ED25519),
        witnesses=tuple(parse_key(v, f"{fields.name('witnesses')}[{i}]", COSIGNATURE) for i, v in enumerate(listed)),
        witness_threshold=fields.integer("witness_threshold", 1, len(listed), "witnesses") if needed else 0,
    )
    fields.done()
    _distinct([key.name for key in rule.witnesses], f"{fields.name('witnesses')}: name")
    _distinct([key.public.hex() for key in rule.witnesses], f"{fields.name('witnesses')}: key")
    return rule


def _check(policy: Policy) -> None:
    _distinct([auditor.name for auditor in policy.auditors], f"{WHAT}.auditor: name")
    _distinct([auditor.keyid for auditor in policy.auditors], f"{WHAT}.auditor: key with keyid")
    _distinct([excluded.keyid for excluded in policy.excluded], f"{WHAT}.excluded: keyid")
    if not policy.auditors:
        if policy.log is None:  # with it the policy is about the log alone
            raise BadArtifact(f"{WHAT}: neither an auditor nor a log is listed, so nothing can satisfy it")
        return
    barred = {excluded.keyid for excluded in policy.excluded}
    if policy.log is not None:
        barred.add(Auditor("publisher", policy.log.publisher.public).keyid)
    able = sum(auditor.keyid not in barred for auditor in policy.auditors)
    if policy.threshold > able:
        raise BadArtifact(f"{WHAT}.threshold: {policy.threshold} keys are asked for, {able} of the auditors can count")
    if policy.families > able:  # of one step a key has one family, that of its latest attestation
        raise BadArtifact(f"{WHAT}.families: {policy.families} are asked for, {able} of the auditors can count")


def _distinct(texts: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            raise BadArtifact(f"{what} {shown(text)} is listed twice")
        seen.add(text)
