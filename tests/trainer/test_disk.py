"""Writes that never show an unfinished file under its final name."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from auditkit.errors import Unavailable, Unsupported
from trainer import disk


def test_a_file_gets_its_name_only_when_complete(tmp_path: Path) -> None:
    with disk.atomic_file(tmp_path / "a") as file:
        file.write(b"half")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"half"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    disk.write_atomic(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), disk.atomic_file(tmp_path / "a") as file:
        file.write(b"new")
        raise RuntimeError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_leftovers_of_a_killed_process_go_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a-99").write_bytes(b"x")
    (tmp_path / ".tmp-00000003-99").mkdir()
    (tmp_path / ".tmp-00000003-99" / "shard").write_bytes(b"x")
    (tmp_path / "keep").write_bytes(b"x")
    disk.remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_removing_a_folder_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "00000003").mkdir()
    (tmp_path / "00000003" / "index.json").write_bytes(b"x")
    disk.remove(tmp_path / "00000003")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_where_and_how_much_is_free(tmp_path: Path) -> None:
    error = disk.explain(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "x")))
    assert isinstance(error, Unsupported)
    assert str(tmp_path / "x") in error.message
    assert "bytes are free" in error.hint


def test_other_errors_are_unavailable_and_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="missing: no such file"):
        disk.read_bytes(tmp_path / "missing")
