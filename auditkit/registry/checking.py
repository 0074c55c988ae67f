"""What is checked of an envelope before anything of it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from auditkit.errors import BadArtifact, Untrusted, UsageError
from auditkit.formats import canonical
from auditkit.formats.dsse import Envelope
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import leaf_hash
from auditkit.formats.record import StepRecord
from auditkit.registry.database import New
from auditkit.registry.runs import KnownRun, Runs
from auditkit.trust.attested import Attested, read_attestation
from auditkit.trust.clock import check_finished
from auditkit.trust.keys import PublicKey


def check(data: bytes, keys: Mapping[str, PublicKey], runs: Runs, *, now: float) -> New:
    """The attestation of an envelope, ready to be stored. BadArtifact, Unsupported, Untrusted: why it is not taken."""
    if len(data) > LIMITS.log_entry_bytes:
        raise BadArtifact(f"envelope: {len(data)} bytes, at most {LIMITS.log_entry_bytes} are allowed")
    served = runs.all()
    # To look for the run first means to parse twice, which only those pay who serve several.
    run = served[0] if len(served) == 1 else runs.get(named_run(data))
    if run is None:
        raise Untrusted("about a run that this registry does not serve", hint="GET /v1/runs lists its runs")
    attested = read_attestation(data, keys, run_id=run.run_id, records=Records(run))
    return stored_form(data, attested, keys[attested.keyid], run.number, now=now)


def stored_form(data: bytes, attested: Attested, key: PublicKey, run: int, *, now: float) -> New:
    """A verified attestation as the database keeps it. Untrusted: finished in the future."""
    entry = attested.entry()
    check_finished(entry.finished, now)
    return New(
        envelope=hashlib.sha256(data).digest(),
        leaf=leaf_hash(data),
        run=run,
        step=entry.step,
        keyid=bytes.fromhex(key.keyid),
        public=key.raw,
        verdict=entry.verdict.code,
        family=entry.family,
        automation=entry.automation,
        outcome=entry.outcome,
        finished=entry.finished,
        received=int(now),
        body=data,
        part=entry.part,
    )


def named_run(data: bytes) -> str:
    """The run that an envelope says it is about, nothing verified yet. BadArtifact: no envelope; Untrusted: no run."""
    payload = canonical.loads_relaxed(Envelope.parse(data).payload, what="statement", limit=LIMITS.envelope_bytes)
    predicate = payload.get("predicate") if isinstance(payload, dict) else None
    run_id = predicate.get("run_id") if isinstance(predicate, dict) else None
    if not isinstance(run_id, str):
        raise Untrusted("not an attestation of a step: its predicate names no run")
    try:
        return canonical_run_id(run_id)
    except UsageError as error:
        raise Untrusted(f"not an attestation of a step: {error.message}") from None


def canonical_run_id(text: str) -> str:
    """`text` itself when it can be a run id; UsageError otherwise."""
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise UsageError("a run id has 64 lower-case hexadecimal digits")
    return text


class Records(Sequence[StepRecord]):
    """The records of a run as a sequence, each read when it is asked for."""

    def __init__(self, run: KnownRun) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.size

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self[step] for step in range(*index.indices(len(self)))]
        return StepRecord.parse(self._run.record(index))

    def __iter__(self) -> Iterator[StepRecord]:
        return (self[step] for step in range(len(self)))
