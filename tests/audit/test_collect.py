"""Attestations from files and folders: verified once, remembered for their run, record and key only, none dropped."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.audit import candidates, checked, examine
from auditkit.audit import collect as collect_module
from auditkit.audit.candidates import find
from auditkit.audit.checked import Checked, Memory
from auditkit.audit.collect import Collection, Collector
from auditkit.audit.record_table import RecordTable
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.digest import root
from auditkit.formats.record import StepRecord
from auditkit.formats.step_audit import sha256_of
from auditkit.store.owner import machine
from auditkit.trust.keys import PublicKey
from auditkit.verdict import Verdict
from tests.audit.envelopes import KEYS, PUBLIC, about, chain, envelope, put, summary
from tests.formats import attestations, samples

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


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every envelope that is verified in this process."""
    calls: list[int] = []
    real = examine.read_attestation

    def count(data: bytes, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return real(data, *args, **options)

    monkeypatch.setattr(examine, "read_attestation", count)
    return calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Attestations in files, in deeper folders and in lines."""
    put(tmp_path, "in/step-0.json", envelope(0))
    put(tmp_path, "in/deep/er/step-1.json", envelope(1, 1) + b"\n")
    put(
        tmp_path,
        "in/deep/lines.jsonl",
        envelope(2) + b"\n" + envelope(3, 2, MISMATCH) + b"\n\n" + envelope(4, 3, UNAVAILABLE),
    )
    put(tmp_path, "in/deep/step-0.svr.json", summary(0))
    put(tmp_path, "in/alice.pem", KEYS[0].public.pem())
    put(tmp_path, "in/README.md", b"# attestations\n")
    return tmp_path / "in"


EXPECTED = [(0, first(0), 0), (1, first(1), 0), (2, first(0), 0), (3, first(2), 3), (4, first(3), 5)]


def test_files_folders_and_lines_become_rows(folder: Path) -> None:
    found = collect(folder)
    assert said(found) == sorted(EXPECTED)
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
    assert "more than a day ahead" in future
    for name, (_, expected) in cases.items():
        if expected is not None and name != "h-future.json":
            assert expected in reasons[name]
    assert sum(count for _, count in found.reasons) == 10
    assert ("about run .., not about run ..", 1) in found.reasons


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


def files(memory: Path) -> list[Path]:
    """The files of a memory."""
    return sorted(memory.glob("*" + checked.SUFFIX))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: data[:20],
        lambda data: b"X" + data[1:],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
)
def test_a_damaged_memory_is_verified_again(
    folder: Path, tmp_path: Path, counted: list[int], damage: Callable[[bytes], bytes]
) -> None:
    memory = tmp_path / "memory"
    expected = said(collect(folder, memory=memory))
    (path,) = files(memory)
    path.write_bytes(damage(path.read_bytes()))
    found = collect(folder, memory=memory)
    assert said(found) == expected
    assert (found.verified, found.remembered, len(counted)) == (5, 0, 10)
    assert collect(folder, memory=memory).remembered == 5


def test_other_rules_verify_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    collect(folder, memory=memory)
    monkeypatch.setattr(collect_module, "scope", lambda run_id: samples.digest_of(f"stricter {run_id}"))
    assert collect(folder, memory=memory).verified == 5


def test_the_scope_is_the_run_and_every_source_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"auditkit/trust/attested.py": "1" * 64, "auditkit/cli/main.py": "2" * 64}
    monkeypatch.setattr(checked, "source_files", lambda: files)
    before = checked.scope(samples.RUN_ID)
    assert checked.scope("3" * 64) != before
    monkeypatch.setitem(files, "auditkit/cli/main.py", "4" * 64)
    assert checked.scope(samples.RUN_ID) == before
    monkeypatch.setitem(files, "auditkit/trust/attested.py", "4" * 64)
    assert checked.scope(samples.RUN_ID) != before


def test_rows_with_a_sound_digest_and_senseless_contents_are_passed_over(folder: Path) -> None:
    rows = collect(folder).rows
    good = Checked(rows, *(checked_digests(5) for _ in range(2))).encode(samples.RUN_ID)
    assert len(Checked.parse(good, samples.RUN_ID)) == 5
    for at in (-34, -33, -35, -40):  # automation, verdict and indices of the last row
        body = bytearray(good[:-32])
        body[at + 32] = 250
        with pytest.raises(BadArtifact):
            Checked.parse(bytes(body) + bytes.fromhex(root(checked.CONTEXT, bytes(body))), samples.RUN_ID)


def checked_digests(count: int) -> checked.Bytes:
    """Different digests."""
    return np.arange(count * 32, dtype=np.uint8).reshape(count, 32)


def test_many_files_of_a_memory_are_joined(tmp_path: Path, counted: list[int]) -> None:
    memory = tmp_path / "memory"
    for step in range(12):
        collect(put(tmp_path, f"in/{step}.json", envelope(step)), memory=memory)
        assert len(files(memory)) <= checked.MAX_FILES
    found = collect(tmp_path / "in", memory=memory)
    assert (found.remembered, len(counted)) == (12, 12)


def test_what_a_killed_process_left_is_removed(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    left = put(memory, f"rows.{machine()}-{2**30}-{'0' * 12}.part", b"half of a file")
    own = put(memory, f"rows.{machine()}-{os.getpid()}-{'0' * 12}.part", b"being written")
    collect(folder, memory=memory)
    assert not left.exists()
    assert own.exists()
    assert len(files(memory)) == 1


def test_a_memory_that_cannot_be_written_is_no_failure(folder: Path, tmp_path: Path) -> None:
    blocked = put(tmp_path, "blocked", b"a file where a folder belongs")
    notes: list[str] = []

    class Noted(collect_module.Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    found = collect(folder, memory=blocked / "memory", progress=Noted())
    assert len(found.rows) == 5
    assert "not remembered" in notes[0]


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


@pytest.mark.parametrize("size", [1, 700, 5000])
def test_a_file_of_lines_may_be_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    path = put(tmp_path, "lines.jsonl", b"a\n" + b"bb\n" * 3 + b"\n\n" + b"c" * 999 + b"\n" + b"d" * 70_000 + b"\ne")
    whole = read(path)
    assert len(whole) == 7
    assert [where.rpartition(" ")[2] for where, _ in whole] == ["0", "2", "5", "8", "13", "1,013", "71,014"]
    monkeypatch.setattr(candidates, "BATCH_BYTES", size)
    assert read(path) == whole


def read(path: Path) -> list[tuple[str, str]]:
    """Where each line of a file is found, and what it is, in order."""
    found = []
    for batch in find([path]).batches:
        contents = batch.read()
        found += [(contents.where(index), data.decode()) for index, data in enumerate(contents.envelopes)]
        found += [(where, error.message) for where, error in contents.failed]
    return sorted(found, key=lambda item: int(item[0].rpartition(" ")[2].replace(",", "")))


def test_rubbish_without_end_is_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "REFUSED_LISTED", 3)
    put(tmp_path, "a.jsonl", b"rubbish\n" * 10 + envelope(0))
    put(tmp_path, "b.jsonl", b"rubbish\n" * 10)
    found = collect(tmp_path)
    assert len(found.rows) == 1
    assert (found.refused_count, len(found.refused)) == (20, 3)
    assert found.reasons == [("envelope: not JSON at character ..: expecting value", 3), ("not listed one by one", 17)]


def test_links_are_not_followed_and_depth_is_bounded(tmp_path: Path) -> None:
    put(tmp_path, "in/a.json", envelope(0))
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "b.json").symlink_to(tmp_path / "in" / "a.json")
    found = find([tmp_path / "in"])
    assert (found.count, found.others) == (1, 2)
    put(tmp_path, "deep/" + "d/" * 40 + "a.json", envelope(0))
    with pytest.raises(UsageError, match="more than 32 deep"):
        find([tmp_path / "deep"])
    with pytest.raises(UsageError, match="there is no file or folder"):
        find([tmp_path / "nothing"])


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


def test_a_table_of_records_gives_them_back() -> None:
    records = chain()
    table = RecordTable(records)
    assert list(table) == list(records)
    assert table[1:3] == list(records[1:3])
    assert [row.tobytes().hex() for row in table.sha256] == [sha256_of(record) for record in records]
    with pytest.raises(IndexError):
        table[len(records)]
    assert len(RecordTable([])) == 0


def test_an_empty_memory_finds_nothing(tmp_path: Path) -> None:
    memory = Memory.load(tmp_path / "none", samples.RUN_ID, RecordTable(chain()), list(PUBLIC))
    assert memory.find(checked_digests(3)).tolist() == [-1, -1, -1]
