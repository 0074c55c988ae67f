"""All the places that attestations of a run come from: files, folders, logs, and the public keys beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from auditkit.audit.candidates import Batch, Found, find, is_log
from auditkit.audit.collect import Collector
from auditkit.audit.coverage_report import CoverageReport
from auditkit.audit.examine import Refused
from auditkit.audit.log_source import AttestationLog, is_url, open_log, rolled_back
from auditkit.audit.record_table import RecordTable
from auditkit.errors import AuditkitError, UsageError
from auditkit.formats.canonical import shown
from auditkit.formats.note import NoteKey
from auditkit.replay.report import utc_text
from auditkit.store import Clock, Progress, SystemClock
from auditkit.store.progress import moment
from auditkit.trust.coverage import cover
from auditkit.trust.keys import PublicKey, load_public
from auditkit.trust.policy import Trust

if TYPE_CHECKING:
    from auditkit.replay.log_check import LogFound
    from auditkit.replay.run import Run

MAX_KEYS = 20_000  # in files below the places: each costs some milliseconds


class Sources:
    """Some places, looked through but not read; a context, for a log at a URL has connections.

    `keys` are the public keys found, with the names of their files; a file that holds none is among `refused`.
    """

    def __init__(self, found: Found, logs: Sequence[AttestationLog], stack: ExitStack, progress: Progress) -> None:
        self.found, self._logs = found, logs
        self._stack, self._progress = stack, progress
        self.refused: list[Refused] = []
        self.keys = self._read_keys()

    @classmethod
    def of(
        cls,
        places: Sequence[str],
        log_key: NoteKey | None,
        *,
        offline: bool = False,
        progress: Progress,
        clock: Clock | None = None,
    ) -> Self:
        """The places named by paths and URLs. Unavailable: no such path. UsageError: a log without `log_key`."""
        logs = [place for place in places if is_url(place) or is_log(Path(place))]
        found = find(Path(place) for place in places if place not in logs)
        with ExitStack() as stack:
            opened = []
            for place in logs:
                if log_key is None:
                    raise UsageError(f"{shown(place)} is an attestation log: who signs it?", hint="--log-key VKEY")
                log = open_log(place, log_key, offline=offline, progress=progress, clock=clock or SystemClock())
                opened.append(stack.enter_context(log))
            return cls(found, opened, stack.pop_all(), progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def count(self) -> int:
        """How many attestations there are, about."""
        return self.found.count + sum(log.size for log in self._logs)

    def batches(self) -> Iterator[Batch]:
        """Everything, files first."""
        yield from self.found.batches
        for log in self._logs:
            yield from log.batches()

    def report(
        self,
        run: Run,
        trust: Trust,
        names: Mapping[str, str],
        *,
        policy: str,
        log: LogFound,
        memory: Path | None,
        clock: Clock | None = None,
    ) -> CoverageReport:
        """Collect and cover `run`, whose records were checked; `policy` is `trust` in words.

        `log` is what its signed log gave, `memory` the folder that remembers what was verified. Errors of logs, and
        Unsupported.
        """
        made = moment(clock or SystemClock())
        now = made.timestamp()
        records = RecordTable(run.records)
        collector = Collector(run.run_id, records, trust.keys, now, memory, self._progress)
        collection = collector.collect(self.batches(), self.count)
        refused = [*collection.refused, *self.refused]
        count = collection.refused_count + len(self.refused)
        collection = dataclasses.replace(collection, refused=refused, refused_count=count)
        return CoverageReport(
            run=run.name,
            run_id=run.run_id,
            manifest=run.manifest_digest,
            policy=policy,
            log=log.detail,
            log_not_checked=log.not_checked,
            made=utc_text(made),
            coverage=cover(collection.rows, trust, run.size),
            collection=collection,
            names=names,
            passed_over=self.found.others,
            summaries=self.found.summaries,
            logs=tuple(map(str, self.found.logs)),
            warnings=rolled_back(self._logs),
        )

    def _read_keys(self) -> dict[PublicKey, str]:
        if len(self.found.keys) > MAX_KEYS:
            raise UsageError(f"{len(self.found.keys):,} files *.pem, at most {MAX_KEYS:,} are read")
        keys = {}
        for path in self.found.keys:
            try:
                keys[load_public(path)] = path.stem
            except AuditkitError as error:
                self.refused.append(Refused(str(path), error.message.removeprefix(f"{path}: ")))
        return keys
