"""Check 3 against the publisher's signed log: signature, witnesses, history, and that the manifest's records are in it.

The log's files are read from one place of the run after another; one whose log is wrong is passed over while another is
right. Two histories that one key signed are proof against the publisher wherever they are found, and end it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from auditkit.errors import BadArtifact, Incomplete, Unavailable, Unsupported, Untrusted
from auditkit.formats.chain import log_entries, segment_record
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.digest import Digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import HASH_BYTES
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.formats.policy import Policy
from auditkit.formats.record import StepRecord, log_root
from auditkit.formats.run import RECORDS
from auditkit.formats.segment import LogEntry, SegmentRecord, parse_entry
from auditkit.formats.tiles import WIDTH
from auditkit.formats.timeline import Segment, Timeline
from auditkit.replay.log_check import LogFound, records_for
from auditkit.replay.plan import Interval
from auditkit.replay.run import Run
from auditkit.store.loose import Fetch
from auditkit.trust.log_reader import LogReader
from auditkit.trust.remembered import Remembered, Split, data_dir
from auditkit.trust.witness import Cosignature, verify_witnesses

FOLDER = "log"
RECORD_BYTES = 1024  # what a record takes in a bundle, rounded up: to weigh bundles against records.bin


def origin_of(run_id: str) -> str:
    """The origin of a run's log unless its publisher chooses another."""
    return f"auditkit-run/{run_id}"


@dataclass(frozen=True)
class Rule:
    """What is asked of a log: the key that must have signed it, if one is known, and how many of which witnesses."""

    publisher: NoteKey | None = None
    witnesses: tuple[NoteKey, ...] = ()
    threshold: int = 0

    @classmethod
    def of(cls, policy: Policy) -> Rule:
        """What a policy asks of the publisher's log."""
        if policy.log is None:
            return cls()
        return cls(policy.log.publisher, policy.log.witnesses, policy.log.witness_threshold)


@dataclass(frozen=True)
class Opened:
    """A log that passed: its reader, its checkpoint, how it stands to what was seen before, and its witnesses.

    `timeline` tells which entry is whose.
    """

    reader: LogReader
    timeline: Timeline
    note: SignedNote
    checkpoint: Checkpoint
    history: str
    cosignatures: tuple[Cosignature, ...]
    records: Mapping[int, StepRecord] | None = None

    def describe(self) -> str:
        """All of it in words, for a report."""
        by = "".join(f"; cosigned by {cosignature.describe()}" for cosignature in self.cosignatures)
        found = self.checkpoint
        return f"signed by {self.reader.key.text}: {found.describe()}; {self.history}{by}"


class SignedLog:
    """The checker of signed logs that a verification takes (replay.log_check.LogCheck).

    `data` is the user's data folder, by default that of the system or AUDITKIT_DATA. `whole` says whether records.bin
    is read in any case (True) or never (False); by default the file is, unless the log's bundles are less to fetch.
    """

    def __init__(self, rule: Rule | None = None, *, data: Path | None = None, whole: bool | None = None) -> None:
        self._rule, self._data, self._whole = rule or Rule(), data, whole

    def needed(self, run: Run, plan: Sequence[Interval]) -> tuple[int, ...] | None:
        """See LogCheck. A run of kind windows derives its records from files that are read whole."""
        if run.manifest.publisher is None or run.manifest.data.ids is not None or self._whole:
            return None
        steps, records = records_for(run, plan), run.manifest.artifact(RECORDS)
        cost = len({run.timeline.entry(step) // WIDTH for step in steps}) * WIDTH * (RECORD_BYTES + HASH_BYTES)
        at_hand = run.store.is_cached(RECORDS, records.digest, records.size)
        if self._whole is None and (at_hand or records.size <= cost):
            return None
        return steps

    def check(self, run: Run, needed: Sequence[int] | None) -> LogFound:
        """See LogCheck."""
        # 3 record against the log root
        if run.manifest.publisher is None:
            self._require(None)
            return LogFound()
        opened = self.open(run, needed)
        return LogFound(opened.describe(), opened.records, tuple(self._left_open(opened)))

    def open(self, run: Run, needed: Sequence[int] | None = None) -> Opened:
        """The run's log, checked, with the records of the steps `needed`. Incomplete: the run has none."""
        key = run.manifest.publisher
        self._require(key)
        if key is None:
            raise Incomplete("the run has no signed log: its manifest names no publisher")
        memory = self._memory(run, key)

        def read(fetch: Fetch) -> Opened | Split:
            try:
                return self._read(run, key, fetch, memory, needed)
            except Split as error:
                return error  # found, whatever other places show

        found = run.store.loose("signed log", read)
        if isinstance(found, Split):
            raise found
        return found

    def _require(self, key: NoteKey | None) -> None:
        wanted = self._rule.publisher
        if wanted is not None and wanted != key:
            named = "names no publisher" if key is None else f"names the publisher {key.text}"
            raise Untrusted(f"the run {named}, not {wanted.text}", hint="the run may be somebody else's copy")

    def _read(
        self, run: Run, key: NoteKey, fetch: Fetch, memory: Remembered | None, needed: Sequence[int] | None
    ) -> Opened:
        reader = LogReader(lambda path, limit: fetch(f"{FOLDER}/{path}", limit), key, entry_bytes=LIMITS.record_bytes)
        checkpoint = reader.checkpoint()
        witnesses = verify_witnesses(reader.note, self._rule.witnesses, self._rule.threshold, log=key)
        history = memory.check(reader) if memory else "nothing can be remembered here"
        _check_begin(run, reader, needed is None)
        records = None if needed is None else {step: _record(run, reader, step) for step in needed}
        _check_segments(run, reader, records)
        return Opened(reader, run.timeline, reader.note, checkpoint, history, witnesses, records)

    def _memory(self, run: Run, key: NoteKey) -> Remembered | None:
        try:
            folder = self._data or data_dir()
        except Unsupported as error:
            run.progress.note(f"the log's checkpoint is not remembered: {error.message}")
            return None
        return Remembered(key, key.name, folder, run.progress.note)

    def _left_open(self, opened: Opened) -> Iterator[str]:
        if self._rule.publisher is None:
            yield (
                f"whose key {opened.reader.key.text} is: compare it with one from a second channel, and name it with"
                " --publisher"
            )
        if not opened.cosignatures:
            yield "whether others are shown the same log: no witness was asked; its checkpoint is compared from now on"


def _check_begin(run: Run, reader: LogReader, whole: bool) -> None:
    """Untrusted unless the log begins with the records that the manifest commits to; Unavailable where it ends before
    the last of them, for an old checkpoint contradicts nothing. `whole` says whether records.bin is read.
    """
    size, signed = run.timeline.entries, reader.checkpoint().size
    if signed < size:
        if whole:
            _check_root(signed, reader.checkpoint().root.hex(), log_root(islice(_entries(run), signed)))
        raise Unavailable(
            f"the publisher signed a log of {signed} records, the manifest has {size}",
            hint="this copy of the log may be an old one: take another place, with --artifacts or --run; or the last "
            "records are not signed yet",
        )
    _check_root(size, reader.root_at(size).hex(), run.manifest.log.root)


def _check_root(size: int, signed: Digest, listed: Digest) -> None:
    if signed != listed:
        raise Untrusted(
            f"the publisher signed {size} records with root {signed}, the manifest says {listed}",
            hint="run.json was replaced after the publisher signed, or the log was",
        )


def _entries(run: Run) -> Iterator[LogEntry]:
    return log_entries(run.records, run.timeline)


def _record(run: Run, reader: LogReader, step: int) -> StepRecord:
    what = f"record {step} of the signed log"
    try:
        found = parse_entry(reader.entry(run.timeline.entry(step)))
    except BadArtifact as error:
        raise BadArtifact(f"{what}: {error.message}", hint=error.hint) from error
    if isinstance(found, SegmentRecord):
        raise BadArtifact(f"{what}: the entry there is the record of a segment from step {found.step} on", hint=_OTHER)
    return found


_OTHER = "the segments in run.json are not those that the publisher signed"


def _check_segments(run: Run, reader: LogReader, records: Mapping[int, StepRecord] | None) -> None:
    """Compare the records of segments in the log with what follows from the manifest and the records of steps.

    Those that lie between `records`; without them all of them, where the log's root shows that something differs.
    BadArtifact naming segment and field.
    """
    if records is None:
        if not run.timeline.later or run.log_root == run.manifest.log.root:
            return
        records = dict(enumerate(run.records))
    for segment in run.timeline.later:
        if segment.start in records and segment.start - 1 in records:
            _check_segment(run, reader, segment, segment_record(segment, records[segment.start - 1]))


def _check_segment(run: Run, reader: LogReader, segment: Segment, expected: SegmentRecord) -> None:
    index = run.timeline.entry(segment.start) - 1
    what = f"segment record of step {segment.start}, entry {index}"
    try:
        found = parse_entry(reader.entry(index))
    except BadArtifact as error:
        raise BadArtifact(f"{what}: {error.message}", hint=error.hint) from error
    if not isinstance(found, SegmentRecord):
        raise BadArtifact(f"{what}: the entry there is the record of step {found.step}", hint=_OTHER)
    for name in ("step", "recipe", "data", "sequence", "state_after", "run", "state_before", "previous"):
        signed, right = getattr(found, name), getattr(expected, name)
        if signed != right:
            raise BadArtifact(f"{what}: {name} is {signed}, {right} is expected", hint=_OTHER)
