"""What a night works with on this machine: the real run, replays, beacon and key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.audit import drand
from auditkit.audit.assigned import Subject
from auditkit.audit.attest import Attester
from auditkit.audit.nightly import Tools
from auditkit.audit.said import what_was_said
from auditkit.audit.submit import Registry, Result
from auditkit.audit.verify import verify
from auditkit.errors import AuditkitError
from auditkit.formats.digest import Digest
from auditkit.formats.lease import registry_address
from auditkit.replay.report import Report
from auditkit.replay.run import Run, default_run, open_run
from auditkit.store.disk import reading
from auditkit.store.progress import Clock, Progress, SystemClock, moment
from auditkit.trust import beacon
from auditkit.trust.beacon import Beacon
from auditkit.trust.coverage import Coverage
from auditkit.trust.keys import PrivateKey, load_private
from auditkit.trust.policy import load_policy
from auditkit.trust.remembered import data_dir

KEY_VARIABLE = "AUDITKIT_KEY"
AUTOMATION = "nightly"


@dataclass(frozen=True)
class Setting:
    """What an operator named: the options of a verification, the beacon in hexadecimal digits (None: drand's latest
    round) and the relays to ask for it; places of attestations that tell which steps are needy, under a policy, which
    also says what the run's log must show; the folder where checkpoints of logs are remembered from night to night
    (None: the user's); the address of a registry."""

    run: str | None = None
    artifacts: str | None = None
    device: str = "auto"
    threads: int | None = None
    cache_dir: Path | None = None
    beacon: str | None = None
    relays: Sequence[str] = drand.RELAYS
    places: Sequence[str] = ()
    policy: Path | None = None
    log_key: str | None = None
    data: Path | None = None
    registry: str | None = None


def find_key(path: Path | None) -> PrivateKey | None:
    """The key of a file, else of the environment variable AUDITKIT_KEY (a PEM text), else none.

    A hoster of jobs hands out a secret as a variable, and an empty one to whoever may not have it. Errors as of
    `load_private` and `PrivateKey.from_pem`.
    """
    if path is not None:
        return load_private(path)
    text = os.environ.get(KEY_VARIABLE, "")
    return PrivateKey.from_pem(text.encode("utf-8", "surrogateescape"), KEY_VARIABLE) if text.strip() else None


def make_tools(
    setting: Setting, key: PrivateKey | None, progress: Progress, downloads: Progress, *, clock: Clock | None = None
) -> Tools:
    """The tools of a night. UsageError: the beacon is none, or no registry has that address; errors of the policy."""
    attester = Attester(key, AUTOMATION) if key else None
    own = _Own(setting, attester, progress, downloads, clock or SystemClock())
    return Tools(
        clock=own.clock,
        progress=downloads,
        subject=own.subject,
        beacon=own.beacon,
        verify=own.verify,
        said=own.said,
        evidence=own.evidence,
        attester=attester,
        submit=own.submit if setting.registry is not None else None,
    )


class _Own:
    """What the tools of this machine do."""

    def __init__(
        self, setting: Setting, attester: Attester | None, progress: Progress, downloads: Progress, clock: Clock
    ) -> None:
        self.clock = clock
        self._setting, self._attester = setting, attester
        self._progress, self._downloads = progress, downloads
        self._given = beacon.parse(setting.beacon) if setting.beacon is not None else None
        self._name = setting.run if setting.run is not None else default_run()
        self._policy = load_policy(setting.policy) if setting.policy else None
        if setting.registry is not None:
            registry_address(setting.registry)

    def subject(self) -> Subject:
        with self._open() as run:
            return Subject(run.name, run.run_id, run.size)

    def beacon(self) -> tuple[Beacon, dict[str, object]]:
        return (self._given, {}) if self._given else _latest(self._setting.relays, self._downloads, self.clock)

    def said(self, _: Subject) -> tuple[Coverage | None, Digest]:
        setting = self._setting
        if not setting.places:
            return None, ""
        with self._open() as run:
            return what_was_said(
                run,
                setting.places,
                setting.policy,
                setting.log_key,
                own=self._attester.key.public if self._attester else None,
                cache_dir=setting.cache_dir,
                data_dir=setting.data,
                offline=False,
                progress=self._downloads,
                clock=self.clock,
            )

    def verify(self, steps: str) -> Report:
        setting = self._setting
        return verify(
            self._name,
            policy=self._policy,
            data_dir=setting.data,
            steps=steps,
            artifacts=setting.artifacts,
            device=setting.device,
            threads=setting.threads,
            cache_dir=setting.cache_dir,
            progress=self._progress,
            downloads=self._downloads,
            work_key=self._attester.work_key if self._attester else None,
            clock=self.clock,
        )

    def evidence(self) -> dict[str, bytes]:
        """The checkpoints remembered of this and of earlier nights, and what proves that two cannot both be true."""
        folder = self._setting.data or data_dir()
        with reading(folder):
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def submit(self, envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        keys = [self._attester.key.public] if self._attester else []
        with Registry(self._setting.registry or "", progress=self._downloads, clock=self.clock) as registry:
            return registry.submit(envelopes, keys)

    def _open(self) -> Run:
        setting = self._setting
        return open_run(
            self._name,
            artifacts=setting.artifacts,
            cache_dir=setting.cache_dir,
            progress=self._downloads,
            clock=self.clock,
        )


def _latest(relays: Sequence[str], progress: Progress, clock: Clock) -> tuple[Beacon, dict[str, object]]:
    """drand's latest round; where no relay has one, the date, which the result then says."""
    try:
        found = drand.latest(progress, clock, relays=relays)
        return found.beacon, found.to_dict()
    except AuditkitError as error:
        progress.note(f"{error.message}; the date is the beacon of this night")
        today = moment(clock).date()
        return beacon.of_date(today), {"failed": error.message}
