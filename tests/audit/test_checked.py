"""What was verified is remembered for its run, record and key only, and verified again when it looks damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from auditkit.audit import checked
from auditkit.audit import collect as collect_module
from auditkit.audit.checked import Checked, Memory
from auditkit.audit.record_table import RecordTable
from auditkit.errors import BadArtifact
from auditkit.formats.digest import root
from auditkit.store.owner import machine
from tests.audit.collecting import (
    collect,
    count_verified,
    files,
    fill,
    said,
)
from tests.audit.envelopes import PUBLIC, chain, envelope, put
from tests.formats import samples


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every envelope that is verified in this process."""
    return count_verified(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Attestations in files, in deeper folders and in lines."""
    return fill(tmp_path / "in")


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


def test_an_empty_memory_finds_nothing(tmp_path: Path) -> None:
    memory = Memory.load(tmp_path / "none", samples.RUN_ID, RecordTable(chain()), list(PUBLIC))
    assert memory.find(checked_digests(3)).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("change", [lambda rows: rows + b"x", lambda rows: rows[:-1], lambda rows: rows + rows])
def test_rows_of_another_length_are_refused_under_a_digest_that_fits(change: Callable[[bytes], bytes]) -> None:
    scope = samples.digest_of("scope")
    whole = Checked.none().encode(scope)[:-32]
    body = change(whole + bytes(checked._ROW.itemsize))
    with pytest.raises(BadArtifact, match="another number of rows"):
        Checked.parse(body + bytes.fromhex(root(checked.CONTEXT, body)), scope)
