"""The log is a function of the database: its entries are the envelopes in the order of their positions.

So nothing but the database has to be right: a log that lags behind after a crash is appended to, and as positions never
change, no two checkpoints can be of different histories, whoever wrote them and when.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, Untrusted
from auditkit.formats import merkle
from auditkit.registry.database import Database
from auditkit.registry.key_files import KeyFiles
from auditkit.store.files import read_range, regular_size
from auditkit.trust.log_reader import LogReader
from auditkit.trust.log_writer import LogWriter

Restore = Callable[[list[bytes]], None]


class Log:
    """The attestation log of a registry in `folder`; one process writes at a time, which LogWriter sees to."""

    def __init__(self, database: Database, writer: LogWriter, folder: Path, *, entries: int) -> None:
        self._database, self._writer, self.folder, self._entries = database, writer, folder, entries
        self.keys = KeyFiles(folder)
        self.size = 0  # of the last checkpoint seen here
        self._keys_written = 0  # numbers below have their files
        self._lock = threading.Lock()

    def catch_up(self) -> bool:
        """Append at most some entries that the database has and the log has not; whether more are left.

        Unavailable: another process writes the log, or the database is away; Unsupported: the disk refuses. The errors
        of LogWriter.append otherwise. An interruption at any moment is made up for by the next call.
        """
        with self._lock:
            checkpoint = self._writer.checkpoint()
            size = checkpoint.size if checkpoint else 0
            bodies = self._database.bodies(size, most=self._entries)
            self._write_keys()  # read after the bodies, so that nobody who signed one is missing
            if bodies:
                size = self._writer.append(bodies, at=size).size
            self.size = size
            return len(bodies) == self._entries

    def _write_keys(self) -> None:
        found = self._database.keys(self._keys_written)
        if found:
            self.keys.write(public for _, public in found.values())
            self._keys_written = max(found) + 1

    def reconcile(self, restore: Restore) -> None:
        """Make sure that the database and the log tell one history; to be called before anything is answered.

        A log that is not there yet begins: readers find a checkpoint from the first moment on. The log may be behind.
        If it is ahead, the database was restored from an older backup: `restore` is given the entries that it lacks,
        and stores them again. Untrusted: the two differ, and nothing was changed; BadArtifact, Unavailable: the log is
        damaged.
        """
        checkpoint = self._writer.checkpoint()
        if checkpoint is None:
            with contextlib.suppress(Unavailable):  # another process is just writing it
                self._writer.append([])
            return
        reader = LogReader(self.read, self._writer.key)
        stored = self._database.size()
        common, tree = min(stored, checkpoint.size), merkle.Frontier()
        for leaf in self._database.leaves(common):
            tree.append(leaf)
        if tree.root() != reader.root_at(common):
            raise Untrusted(
                f"{self.folder}: the first {common} entries are not the attestations of the database",
                hint="the log of another registry, or a damaged database: docs/registry.md, recovery",
            )
        if stored < checkpoint.size:
            restore(reader.entries(stored, checkpoint.size))
            if self._database.size() != checkpoint.size:
                raise Untrusted(f"{self.folder}: not all of its {checkpoint.size} entries could be stored again")
        self.size = checkpoint.size

    def read(self, path: str, limit: int) -> bytes:
        """A file of the log. Unavailable: there is none; BadArtifact: more than `limit` bytes."""
        place = self.folder / path
        size = regular_size(place)
        if size is None:
            raise Unavailable(f"there is no {place}")
        if size > limit:
            raise BadArtifact(f"{place}: {size} bytes, at most {limit} are allowed")
        return read_range(place, 0, size)
