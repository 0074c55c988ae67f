"""What earlier nights found: how long it is since one verified all that it was to verify."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import AuditkitError
from auditkit.formats import canonical
from auditkit.formats.fields import Fields
from auditkit.formats.times import check_time, seconds
from auditkit.store.disk import reading
from auditkit.trust.disk import writing
from auditkit.verdict import Verdict

FORMAT = "auditkit/nights/v1"
KEPT_NIGHTS = 400
DOCUMENT_BYTES = 256 * 1024
WAIT_SECONDS = 10.0  # for another night, which has the file for milliseconds
_VERDICTS = tuple(verdict.name for verdict in Verdict)


@dataclass(frozen=True)
class Night:
    """One night: when it ended ("2026-01-02T03:04:05Z") and with what."""

    finished: str
    verdict: Verdict


@dataclass(frozen=True)
class History:
    """The nights so far, the latest last."""

    nights: tuple[Night, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> History:
        """The history of a file; BadArtifact."""
        found = Fields(canonical.loads(data, what="history", limit=DOCUMENT_BYTES), "history")
        found.format(FORMAT)
        nights = []
        for row in found.rows("nights", 0, KEPT_NIGHTS):
            finished = check_time(row.raw("finished"), row.name("finished"))
            nights.append(Night(finished, Verdict[row.choice("verdict", *_VERDICTS)]))
            row.done()
        found.done()
        return cls(tuple(nights))

    def encode(self) -> bytes:
        """The bytes of the file, canonical JSON."""
        nights = [{"finished": night.finished, "verdict": night.verdict.name} for night in self.nights]
        return canonical.dumps({"format": FORMAT, "nights": nights})

    def add(self, night: Night) -> History:
        """The history with one more night; the oldest goes when there are too many."""
        return History((*self.nights, night)[-KEPT_NIGHTS:])

    @property
    def last_match(self) -> str:
        """When a night last verified everything; "" if none is known."""
        return next((night.finished for night in reversed(self.nights) if night.verdict is Verdict.MATCH), "")

    @property
    def without_match(self) -> int:
        """How many nights have passed since, this history's last included."""
        verdicts = [night.verdict for night in reversed(self.nights)]
        return verdicts.index(Verdict.MATCH) if Verdict.MATCH in verdicts else len(verdicts)

    def is_overdue(self, now: float, days: float) -> bool:
        """Whether at `now` (Unix time) the last good night lies more than `days` back, or none is known at all.

        By date and not by the count of nights, so that a schedule that no longer runs, or a history that was lost,
        cannot keep a job quiet.
        """
        last = self.last_match
        return not last or not 0 <= now - seconds(last) <= days * 86400


def read(path: Path) -> tuple[History, str]:
    """The history of a file, and why there is none where there is not; a file that is not there is no reason."""
    if not path.exists():
        return History(), ""
    try:
        with reading(path), path.open("rb") as file:
            return History.parse(file.read(DOCUMENT_BYTES + 1)), ""
    except AuditkitError as error:
        return History(), f"the history of earlier nights cannot be used: {error.message}"


def write(path: Path, history: History) -> None:
    """Put the file in place of the one before; what is no history keeps its bytes under another name.

    Unsupported: the disk refuses.
    """
    draft = path.with_name(f".tmp-{path.name}-{secrets.token_hex(6)}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(history.encode())
            if path.is_symlink() or read(path)[1]:
                os.replace(path, path.with_name(f"{path.name}.{secrets.token_hex(6)}.kept"))
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
