"""Examine a batch of attestations: those that were verified before are looked up, the others verified now.

Runs in a process of its own as well as in this one; what it needs and what it gives are values without open files.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

import numpy as np

from auditkit.audit.candidates import Batch
from auditkit.audit.checked import Bytes, Checked, Memory
from auditkit.audit.record_table import RecordTable
from auditkit.errors import AuditkitError
from auditkit.formats.digest import Digest
from auditkit.trust.attested import read_attestation, read_summary
from auditkit.trust.keys import PublicKey
from auditkit.trust.rows import Entry, Rows

REFUSED_LISTED = 100_000  # rubbish is made faster than memory


@dataclass(frozen=True)
class Refused:
    """An attestation that changes nothing: where it was found, and why it was refused."""

    where: str
    reason: str


@dataclass(frozen=True, eq=False)
class Examined:
    """One batch: rows that were remembered and rows that were verified now, what was refused.

    Of what was refused at most REFUSED_LISTED are listed, `refused_count` is all. `repeats` are further copies of what
    was verified now; `summaries` Simple Verification Results, which carry nothing that counts.
    """

    remembered: Checked
    verified: Checked
    refused: list[Refused]
    refused_count: int
    repeats: int
    summaries: int


@dataclass(frozen=True, eq=False)
class Examiner:
    """What attestations are compared with: one run with its records, the keys known, and what was verified before."""

    run_id: Digest
    records: RecordTable
    keys: Mapping[str, PublicKey]
    memory: Memory

    def examine(self, batch: Batch) -> Examined:
        """Read and examine a batch."""
        found = batch.read()
        refused = [Refused(where, error.message) for where, error in found.failed]
        count = len(refused)
        digests = _array([hashlib.sha256(data).digest() for data in found.envelopes])
        known = self.memory.find(digests)
        entries: dict[bytes, tuple[Entry, bytes]] = {}
        repeats = summaries = 0
        for index in np.flatnonzero(known < 0).tolist():
            digest = digests[index].tobytes()
            if digest in entries:
                repeats += 1
                continue
            try:
                entries[digest] = self._verify(found.envelopes[index])
            except AuditkitError as error:
                if self._is_summary(found.envelopes[index]):
                    summaries += 1
                    continue
                count += 1
                if len(refused) < REFUSED_LISTED:
                    refused.append(Refused(found.where(index), error.message))
        rows = Rows.of(entry for entry, _ in entries.values())
        verified = Checked(rows, _array(list(entries)), _array([record for _, record in entries.values()]))
        remembered = self.memory.checked.take(known[known >= 0]).compact()
        return Examined(remembered, verified, refused, count, repeats, summaries)

    def _verify(self, data: bytes) -> tuple[Entry, bytes]:
        attested = read_attestation(data, self.keys, run_id=self.run_id, records=self.records)
        return attested.entry(), bytes.fromhex(attested.record_sha256)

    def _is_summary(self, data: bytes) -> bool:
        try:
            read_summary(data, self.keys)
        except AuditkitError:
            return False
        return True


def _array(digests: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


_own: Examiner | None = None  # of a process that does nothing else


def start(
    run_id: Digest, records: RecordTable, keys: Mapping[str, PublicKey], folder: Path | None, scope: Digest
) -> None:
    """Make this process an examiner; `folder` and `scope` lead to what was verified before (checked.py)."""
    global _own
    # Ctrl-C reaches the whole group; the parent decides. Should it die without a word, nobody would end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _own = Examiner(run_id, records, keys, Memory.load(folder, scope, records, list(keys)))


def examine(batch: Batch) -> Examined:
    """Examine a batch in a process that was started with `start`."""
    assert _own is not None
    return _own.examine(batch)


def _follow_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
