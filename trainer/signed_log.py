"""Sign what is published: the records once more as a transparency log, under the publisher's key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from auditkit.audit.signed_log import FOLDER, origin_of
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.note import NoteKey, check_name
from auditkit.formats.segment import LogEntry
from auditkit.trust.keys import PrivateKey, load_private
from auditkit.trust.log_writer import LogWriter


def load_key(path: Path | None, origin: str | None) -> PrivateKey | None:
    """The publisher's key, if there is to be a log. UsageError: an origin that cannot be one, or has no key."""
    if origin is not None:
        if path is None:
            raise UsageError("--origin names the log that --log-key signs", hint="give both, or none")
        try:
            check_name(origin, "--origin")
        except BadArtifact as error:
            raise UsageError(error.message) from error
    return None if path is None else load_private(path)


def write(run: Path, records: Sequence[LogEntry], key: PrivateKey, origin: str | None) -> NoteKey:
    """Write the log of a run's records, at least one, into the run's folder; returns the key for the manifest.

    `records` are those of steps and segments, in the order of the log.

    Its origin is made of the run id unless another is given. A key signs one history under one origin, ever: whoever
    saw one and is shown another has proof against the publisher.
    """
    writer = LogWriter(run / FOLDER, origin or origin_of(records[0].run), key)
    writer.append(record.encode() for record in records)
    return writer.key
