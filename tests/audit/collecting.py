"""Collect the attestations of envelopes.py, and look at what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from auditkit.audit import checked, examine
from auditkit.audit.candidates import find
from auditkit.audit.collect import Collection, Collector
from auditkit.audit.record_table import RecordTable
from auditkit.formats.record import StepRecord
from auditkit.trust.keys import PublicKey
from auditkit.verdict import Verdict
from tests.audit.envelopes import KEYS, PUBLIC, chain, envelope, put, summary
from tests.formats import samples

NOW = 1_800_000_000.0
STEPS_BEYOND = 25
MISMATCH, UNAVAILABLE = Verdict.MISMATCH, Verdict.UNAVAILABLE


def collector(
    memory: Path | None = None,
    *,
    keys: dict[str, PublicKey] = PUBLIC,
    records: Sequence[StepRecord] = chain(),
    run_id: str = samples.RUN_ID,
    **options: Any,
) -> Collector:
    """A collector for the run of envelopes.py."""
    return Collector(run_id, RecordTable(records), keys, NOW, memory, **options)


def collect(*paths: Path, memory: Path | None = None, **options: Any) -> Collection:
    """What lies in some paths."""
    found = find(paths)
    return collector(memory, **options).collect(found.batches, found.count)


def said(found: Collection) -> list[tuple[int, str, int]]:
    """Step, first digits of the key, verdict code of each row, sorted."""
    rows = found.rows
    return sorted(zip(rows.step.tolist(), [rows.keys[k][:4] for k in rows.key], rows.verdict.tolist(), strict=True))


def first(key: int) -> str:
    """The first digits of a key's id."""
    return KEYS[key].public.keyid[:4]


def files(memory: Path) -> list[Path]:
    """The files of a memory."""
    return sorted(memory.glob("*" + checked.SUFFIX))


def count_verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with every envelope that is verified in this process."""
    calls: list[int] = []
    real = examine.read_attestation

    def count(data: bytes, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return real(data, *args, **options)

    monkeypatch.setattr(examine, "read_attestation", count)
    return calls


def fill(folder: Path) -> Path:
    """Attestations in files, in deeper folders and in lines; EXPECTED is what they say."""
    put(folder, "step-0.json", envelope(0))
    put(folder, "deep/er/step-1.json", envelope(1, 1) + b"\n")
    lines = envelope(2) + b"\n" + envelope(3, 2, MISMATCH) + b"\n\n" + envelope(4, 3, UNAVAILABLE)
    put(folder, "deep/lines.jsonl", lines)
    put(folder, "deep/step-0.svr.json", summary(0))
    put(folder, "alice.pem", KEYS[0].public.pem())
    put(folder, "README.md", b"# attestations\n")
    return folder


EXPECTED = sorted([(0, first(0), 0), (1, first(1), 0), (2, first(0), 0), (3, first(2), 3), (4, first(3), 5)])
