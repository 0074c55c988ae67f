"""Open a registry as its operator described it: policy, runs, database, log."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditkit.formats.policy import Policy
from auditkit.registry.admission import Admission
from auditkit.registry.folder import Folder, open_database
from auditkit.registry.limits import REGISTRY_LIMITS, RegistryLimits
from auditkit.registry.runs import KnownRun, Runs, load
from auditkit.registry.service import Registry, Setting
from auditkit.store.progress import Clock, Progress, SystemClock
from auditkit.trust.beacon import Beacon, of_date
from auditkit.trust.policy import Trust, load_policy


def _silent(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Choices:
    """What the operator chose. `addresses` are those by which clients call the registry, in the spelling of
    `registry_address`; `beacon` is the day's date where there is none, `database` the folder's.
    """

    folder: Path
    runs: Sequence[str]
    policy: Path
    addresses: tuple[str, ...]
    is_open: bool = False
    beacon: Beacon | None = None
    database: str | None = None
    cache_dir: Path | None = None
    limits: RegistryLimits = REGISTRY_LIMITS
    clock: Clock = field(default_factory=SystemClock)
    tell: Callable[[str], None] = _silent


def open_registry(choices: Choices, progress: Progress | None = None) -> Registry:
    """The registry, ready to serve. The errors of its parts; nothing stays open then."""
    folder, policy = Folder(choices.folder), load_policy(choices.policy)
    origin, private = folder.key()
    trust = Trust(policy)
    database = open_database(folder, choices.database)
    loaded: list[KnownRun] = []
    try:
        for name in choices.runs:
            loaded.append(load(name, cache_dir=choices.cache_dir, progress=progress))
        runs = Runs(loaded)
        setting = Setting(
            origin=origin,
            log_folder=folder.log,
            log_key=private,
            addresses=choices.addresses,
            admission=admission(trust, is_open=choices.is_open),
            voters={run.run_id: Trust(policy, run.publisher) for run in loaded},
            names=trust.names,
            policy=in_words(policy),
            beacon=lambda: (choices.beacon or of_date(_today(choices.clock))).value,
            limits=choices.limits,
            clock=choices.clock,
            tell=choices.tell,
        )
        return Registry(setting, database, runs)
    except BaseException:
        for run in loaded:
            run.close()
        database.close()
        raise


def admission(trust: Trust, *, is_open: bool) -> Admission:
    """Whose attestations are taken: of the policy's auditors, or anybody's if `is_open`; never an excluded key's."""
    refused = {excluded.keyid: excluded.reason for excluded in trust.policy.excluded}
    keys = {keyid: key for keyid, key in trust.keys.items() if keyid in trust.names and keyid not in refused}
    return Admission(keys, refused, is_open)


def in_words(policy: Policy) -> str:
    """A policy in one line."""
    families = f" on {policy.families} kinds of hardware" if policy.families > 1 else ""
    automation = "counts" if policy.automation else "does not count"
    return f"{policy.threshold} of {len(policy.auditors)} auditors{families}; automation {automation}"


def _today(clock: Clock) -> datetime.date:
    return datetime.datetime.fromtimestamp(clock.wall(), datetime.UTC).date()
