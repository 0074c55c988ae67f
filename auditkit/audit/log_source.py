"""An attestation log by its place: a folder of this machine or the URL of a static host (C2SP tlog-tiles)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from auditkit.audit.candidates import EntryBatch, log_batches
from auditkit.errors import Unavailable
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import NoteKey
from auditkit.store import STORE_LIMITS, Clock, Folder, Progress, Remote
from auditkit.store.http import Http
from auditkit.store.source import parse_remote
from auditkit.store.transfer import Transfer
from auditkit.trust import key_files
from auditkit.trust.log_reader import Fetch, LogReader
from auditkit.trust.remembered import Remembered, data_dir

Place = Folder | Remote


class AttestationLog:
    """A log whose checkpoint is signed by its key and fits those that this user has seen before.

    `size` is the number of entries here, `seen` how many it is known to have: an older state is the log's begin, and
    may keep back what was said later. Each `batches()` reads them once. Errors of LogReader and Remembered.
    """

    def __init__(self, name: str, fetch: Fetch, key: NoteKey, progress: Progress) -> None:
        self.name = name
        self._reader = LogReader(fetch, key, entry_bytes=LIMITS.envelope_bytes)
        self.size = self._reader.checkpoint().size
        self._reader.check()
        remembered = Remembered(key, key.name, data_dir(), progress.note)
        try:
            remembered.check(self._reader)
        except Unavailable as error:
            raise Unavailable(
                f"{name}: {error.message}", hint="take another place of this log: this one is old"
            ) from error
        self.seen = max(self.size, remembered.largest())

    def batches(self) -> Iterator[EntryBatch]:
        """All entries."""
        return log_batches(self._reader, self.name, self.size)


def rolled_back(logs: Sequence[AttestationLog]) -> tuple[str, ...]:
    """What to warn of where places of one log together show fewer entries of it than were seen before."""
    shown = max((log.size for log in logs), default=0)
    return tuple(
        f"{log.seen:,} entries of this log were seen before, this place shows {log.size:,}: {log.name}"
        for log in logs
        if shown < log.seen
    )


def is_url(place: str) -> bool:
    """Whether a place is named by an address rather than by a path."""
    return "://" in place


@contextmanager
def open_log(place: str, key: NoteKey, *, offline: bool, progress: Progress, clock: Clock) -> Iterator[AttestationLog]:
    """The log at a path or a URL. UsageError: no such address; Unavailable: offline, or nobody answers."""
    if not is_url(place):
        folder = Folder(Path(place))
        yield AttestationLog(place, lambda path, limit: key_files.read(folder.file(path), limit), key, progress)
        return
    base, _ = parse_remote(place if place.endswith("/") else place + "/")
    if offline:
        raise Unavailable(f"{base.url}: a log is read over the network, and this is offline")
    http = Http(STORE_LIMITS)
    try:
        transfer = Transfer(http, STORE_LIMITS, progress, clock)
        yield AttestationLog(base.url, lambda path, limit: transfer.document(base, path, limit), key, progress)
    finally:
        http.close()
