"""Verify steps of a run, its signed log included: what `auditkit.verify` and the command call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from auditkit.audit.signed_log import Rule, SignedLog
from auditkit.audit.source import source_digest
from auditkit.errors import AuditkitError, UsageError
from auditkit.formats.note import ED25519, NoteKey, parse_key
from auditkit.formats.policy import Policy
from auditkit.replay import arguments
from auditkit.replay import verify as replay
from auditkit.replay.backend import Backend
from auditkit.replay.chosen import Asked
from auditkit.replay.interval import WorkKey
from auditkit.replay.report import Report
from auditkit.store.progress import Clock, Progress


class Options(TypedDict, total=False):
    """What replay.verify.verify takes besides the run and the log."""

    step: int | None
    steps: str | tuple[int, int] | range | None
    random: int | None
    seed: int | None
    part: str | tuple[int, int] | None
    artifacts: arguments.Place | None
    device: str
    threads: int | None
    offline: bool
    cache_dir: arguments.Place | None
    progress: Progress | None
    downloads: Progress | None
    backend: Backend | None
    work_key: WorkKey | None
    clock: Clock | None
    on_step: Callable[[Report], None] | None
    memory: int | str | None
    paranoid: str | None
    micro_batches: Asked | None
    replay_to: bool


def verify(
    run: arguments.Place | None = None,
    *,
    publisher: str | NoteKey | None = None,
    policy: Policy | None = None,
    data_dir: arguments.Place | None = None,
    **options: Unpack[Options],
) -> Report:
    """Verify steps of a run as replay.verify.verify does, and the signed log of a run whose manifest names a publisher.

    `publisher` is the vkey that must be the run's publisher; without it any key is taken, and the report says so.
    The [log] section of `policy` says whose signatures the log needs. `data_dir` is where the checkpoints of logs are
    remembered, by default the user's data folder. The other options are those of replay.verify.verify: `step`, `steps`,
    `random` and so on.

    Raises UsageError only, as replay.verify.verify, and for a `publisher` that is no vkey.
    """
    log = SignedLog(rule(publisher, policy), data=arguments.folder("data_dir", data_dir))
    return replay.verify(run, log=log, program=source_digest, **options)


def rule(publisher: str | NoteKey | None, policy: Policy | None) -> Rule:
    """What a pinned key and a policy ask of a log, both in one; UsageError: no vkey, or not the policy's."""
    found = Rule.of(policy) if policy is not None else Rule()
    key = _key(publisher)
    if key is None or found.publisher == key:
        return found
    if found.publisher is not None:
        raise UsageError(f"publisher {key.text} is not the policy's, {found.publisher.text}")
    return Rule(key, found.witnesses, found.threshold)


def _key(publisher: str | NoteKey | None) -> NoteKey | None:
    if publisher is None or isinstance(publisher, NoteKey):
        return publisher
    try:
        return parse_key(publisher, "publisher", ED25519)
    except AuditkitError as error:
        hint = "a vkey, NAME+HASH+BASE64, is what `auditkit log show` prints"
        raise UsageError(error.message, hint=error.hint or hint) from error
