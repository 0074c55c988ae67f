"""What a night works with on this machine: the real run, replays, beacon and key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from auditkit.audit import drand
from auditkit.audit.assigned import Subject
from auditkit.audit.attest import Attester
from auditkit.audit.nightly import Tools
from auditkit.errors import AuditkitError
from auditkit.replay.report import Report
from auditkit.replay.run import default_run, open_run
from auditkit.replay.verify import verify
from auditkit.store.progress import Clock, Progress, SystemClock
from auditkit.trust import beacon
from auditkit.trust.beacon import Beacon
from auditkit.trust.keys import PrivateKey, load_private

KEY_VARIABLE = "AUDITKIT_KEY"
AUTOMATION = "nightly"


@dataclass(frozen=True)
class Setting:
    """What an operator named: the options of a verification, the beacon in hexadecimal digits (None: drand's latest
    round), and the relays to ask for it."""

    run: str | None = None
    artifacts: str | None = None
    device: str = "auto"
    threads: int | None = None
    cache_dir: Path | None = None
    beacon: str | None = None
    relays: Sequence[str] = drand.RELAYS


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
    """The tools of a night. UsageError: the beacon is none."""
    time = clock or SystemClock()
    attester = Attester(key, AUTOMATION) if key else None
    given = beacon.parse(setting.beacon) if setting.beacon is not None else None
    name = setting.run if setting.run is not None else default_run()

    def subject() -> Subject:
        artifacts, cache = setting.artifacts, setting.cache_dir
        with open_run(name, artifacts=artifacts, cache_dir=cache, progress=downloads, clock=time) as run:
            return Subject(run.name, run.run_id, run.size)

    def replay(steps: str) -> Report:
        return verify(
            name,
            steps=steps,
            artifacts=setting.artifacts,
            device=setting.device,
            threads=setting.threads,
            cache_dir=setting.cache_dir,
            progress=progress,
            downloads=downloads,
            work_key=attester.work_key if attester else None,
            clock=time,
        )

    def value() -> tuple[Beacon, dict[str, object]]:
        return (given, {}) if given else _latest(setting.relays, downloads, time)

    return Tools(time, downloads, subject, value, replay, attester=attester)


def _latest(relays: Sequence[str], progress: Progress, clock: Clock) -> tuple[Beacon, dict[str, object]]:
    """drand's latest round; where no relay has one, the date, which the result then says."""
    try:
        found = drand.latest(progress, clock, relays=relays)
        return found.beacon, found.to_dict()
    except AuditkitError as error:
        progress.note(f"{error.message}; the date is the beacon of this night")
        today = datetime.fromtimestamp(clock.wall(), UTC).date()
        return beacon.of_date(today), {"failed": error.message}
