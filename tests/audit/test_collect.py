"""Attestations from files and folders: verified once, and none silently dropped."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from auditkit.audit import examine
from auditkit.audit.candidates import find
from auditkit.audit.collect import Collection
from auditkit.audit.examine import Refused
from auditkit.trust.rows import Rows
from tests.audit.collecting import (
    EXPECTED,
    MISMATCH,
    STEPS_BEYOND,
    collect,
    collector,
    count_verified,
    fill,
    first,
    said,
)
from tests.audit.envelopes import KEYS, PUBLIC, about, chain, envelope, put, summary
from tests.formats import attestations, samples


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every envelope that is verified in this process."""
    return count_verified(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Attestations in files, in deeper folders and in lines."""
    return fill(tmp_path / "in")


def test_files_folders_and_lines_become_rows(folder: Path) -> None:
    found = collect(folder)
    assert said(found) == EXPECTED
    assert (found.verified, found.remembered, found.repeats, found.refused) == (5, 0, 0, [])
    there = find([folder])
    assert [path.name for path in there.keys] == ["alice.pem"]
    assert (there.summaries, there.others) == (1, 1)
    assert found.rows.outcomes == (" ".join(dataclasses.astuple(attestations.WRONG)),)


def test_a_file_that_is_named_is_read_whatever_its_name(tmp_path: Path) -> None:
    found = collect(put(tmp_path, "one", envelope(0)), put(tmp_path, "two.txt", envelope(1)))
    assert [step for step, *_ in said(found)] == [0, 1]
    assert find([put(tmp_path, "key", KEYS[0].public.pem())]).keys == [tmp_path / "key"]


def test_everything_that_is_refused_is_listed_with_its_reason(tmp_path: Path) -> None:
    other_run = chain(run_id=samples.digest_of("another run"))[0]
    other_record = chain(salt="forged")[3]
    broken = bytearray(envelope(5))
    broken[-40] ^= 1
    cases = {
        "a-other-run.json": (about(other_run), "about run"),
        "b-other-record.json": (about(other_record), "about a record with SHA-256"),
        "c-beyond.json": (about(chain(STEPS_BEYOND)[-1]), "about step 24 of a run of 20 steps"),
        "d-signature.json": (bytes(broken), ""),
        "e-text.json": (b"hello", "envelope: not JSON"),
        "f-empty.json": (b"", "envelope: not JSON"),
        "g-large.json": (b"{" + b" " * 70_000, "70,001 bytes, at most 65,536 are allowed"),
        "h-future.json": (
            envelope(6, started="2099-01-01T00:00:00Z", finished="2099-01-01T00:00:00Z"),
            "more than a day",
        ),
        "i-unknown.json": (envelope(7, 4), "which is not known here"),
        "j-summary.json": (summary(0), None),
    }
    for name, (data, _) in cases.items():
        put(tmp_path, name, data)
    put(tmp_path, "k-good.json", envelope(8))
    put(tmp_path, "l.jsonl", b"x" * 200_000 + b"\n" + envelope(9))
    known = {keyid: key for keyid, key in PUBLIC.items() if keyid != KEYS[4].public.keyid}
    found = collect(tmp_path, keys=known)
    assert [step for step, *_ in said(found)] == [8, 9]
    assert found.summaries == 1
    reasons = {Path(refused.where).name: refused.reason for refused in found.refused}
    assert len(found.refused) == 10
    assert reasons.pop("l.jsonl, byte 0") == "a line of more than 65,536 bytes"
    (future,) = [reason for where, reason in reasons.items() if where.startswith("envelope ")]
    assert "more than an hour ahead" in future
    for name, (_, expected) in cases.items():
        if expected is not None and name != "h-future.json":
            assert expected in reasons[name]
    assert sum(count for _, count in found.reasons) == 10
    assert (reasons["a-other-run.json"], 1) in found.reasons


def test_reasons_of_one_kind_are_counted_together_and_told_as_they_are() -> None:
    times = ["2099-01-01T00:00:00Z", "2098-11-30T17:05:09Z", "2099-01-01T00:00:00Z"]
    said = [
        *(f"finished {time}, more than an hour ahead of the clock here" for time in times),
        *(f"signed by key {key}, which is not known here" for key in ("47dea58e", "fd110d30")),
        "a line of more than 65,536 bytes",
        "no SHA-256 of a record",
    ]
    found = Collection(Rows.of([]), [Refused("here", reason) for reason in said], len(said), 0, 0, 0, 0)
    assert found.reasons == [
        ("finished 2098-11-30T17:05:09Z, more than an hour ahead of the clock here, and the like", 3),
        ("signed by key 47dea58e, which is not known here, and the like", 2),
        ("a line of more than 65,536 bytes", 1),
        ("no SHA-256 of a record", 1),
    ]


def test_what_was_verified_is_not_verified_again(folder: Path, tmp_path: Path, counted: list[int]) -> None:
    memory = tmp_path / "memory"
    first_time = collect(folder, memory=memory)
    assert len(counted) == 5
    again = collect(folder, memory=memory)
    assert len(counted) == 5
    assert said(again) == said(first_time)
    assert (again.verified, again.remembered) == (0, 5)
    assert again.rows.outcomes == first_time.rows.outcomes
    assert again.rows.finished.tolist() == sorted(again.rows.finished.tolist())
    # the same bytes elsewhere, and one more
    put(folder, "elsewhere/copy.jsonl", envelope(0) + b"\n" + envelope(10) + b"\n" + envelope(10))
    more = collect(folder, memory=memory)
    assert len(counted) == 6
    assert (more.verified, more.remembered, more.repeats) == (1, 6, 2)
    assert len(more.rows) == 6


def test_a_changed_byte_is_another_attestation(folder: Path, tmp_path: Path, counted: list[int]) -> None:
    memory = tmp_path / "memory"
    collect(folder, memory=memory)
    data = (folder / "step-0.json").read_bytes()
    (folder / "step-0.json").write_bytes(data.replace(b'"sig":"', b'"sig":"A', 1))
    found = collect(folder, memory=memory)
    assert len(counted) == 6
    assert len(found.refused) == 1
    assert [step for step, *_ in said(found)] == [1, 2, 3, 4]


def test_what_another_run_or_record_or_key_made_of_it_is_not_believed(
    folder: Path, tmp_path: Path, counted: list[int]
) -> None:
    memory = tmp_path / "memory"
    collect(folder, memory=memory)
    # the same folder of the cache, opened for another run
    other = samples.digest_of("another run")
    found = collect(folder, memory=memory, run_id=other, records=chain(run_id=other))
    assert (found.remembered, len(found.rows), len(found.refused)) == (0, 0, 5)
    # the same run id with other records
    collect(folder, memory=memory)
    before = len(counted)
    found = collect(folder, memory=memory, records=chain(salt="forged"))
    assert (found.remembered, len(found.rows), len(found.refused)) == (0, 0, 5)
    assert len(counted) == before + 5
    # fewer keys known
    few = {KEYS[0].public.keyid: KEYS[0].public}
    found = collect(folder, memory=memory, keys=few)
    assert [key for _, key, _ in said(found)] == [first(0), first(0)]
    assert len(found.refused) == 3


def test_other_processes_find_the_same_and_end(tmp_path: Path) -> None:
    lines = b"\n".join(envelope(step, key) for step in range(20) for key in range(5))
    put(tmp_path, "in/a.jsonl", lines)
    put(tmp_path, "in/b.json", b"{}")
    for step in range(20):
        put(tmp_path, f"in/c/{step}.json", envelope(step, 0, MISMATCH))
    alone = collect(tmp_path / "in", processes=1)
    memory = tmp_path / "memory"
    together = collect(tmp_path / "in", processes=2, memory=memory)
    assert said(together) == said(alone)
    assert together.refused == alone.refused
    assert (together.verified, together.remembered) == (120, 0)
    again = collect(tmp_path / "in", processes=2, memory=memory)
    assert (again.verified, again.remembered) == (0, 120)
    assert said(again) == said(alone)
    assert multiprocessing.active_children() == []


def test_rubbish_without_end_is_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "REFUSED_LISTED", 3)
    put(tmp_path, "a.jsonl", b"rubbish\n" * 10 + envelope(0))
    put(tmp_path, "b.jsonl", b"rubbish\n" * 10)
    found = collect(tmp_path)
    assert len(found.rows) == 1
    assert (found.refused_count, len(found.refused)) == (20, 3)
    assert found.reasons == [("envelope: not JSON at character 0: expecting value", 3), ("not listed one by one", 17)]


def test_a_file_that_vanishes_or_is_none_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", envelope(0))
    batches = find([path]).batches
    path.unlink()
    found = collector().collect(batches, 1)
    assert found.refused[0].reason == "cannot be read: no such file or directory"
    path.mkdir()
    assert collector().collect(batches, 1).refused[0].reason in ("not a regular file", "cannot be read: is a directory")


def test_an_interrupted_collection_remembers_what_it_had(tmp_path: Path, counted: list[int]) -> None:
    memory = tmp_path / "memory"
    for step in range(4):
        put(tmp_path, f"in/{step}/a.json", envelope(step))
    found = find([tmp_path / "in"])

    def some() -> Any:
        yield from found.batches[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collector(memory).collect(some(), 4)
    assert collect(tmp_path / "in", memory=memory).remembered == 3
    assert len(counted) == 4
