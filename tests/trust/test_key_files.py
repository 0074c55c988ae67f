"""Files of keys on a real disk: who may read them, and that none is overwritten or left half."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.trust import key_files

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
POSIX = pytest.mark.optional("Windows has access lists in place of modes, and links need a privilege there")
DATA = b"secret"


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Files are as open as their maker lets them be."""
    before = os.umask(0)
    yield
    os.umask(before)


def read_private(path: Path) -> bytes:
    """The bytes of a file that nobody else may read."""
    data, mode = key_files.read_with_mode(path, 10)
    key_files.require_private(path, mode)
    return data


def only(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@POSIX
@posix
def test_a_private_file_is_never_open_to_others(
    tmp_path: Path, no_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, open_file = [], os.open

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = open_file(path, flags, mode)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    key_files.write_new(tmp_path / "key", DATA, mode=0o600)
    monkeypatch.undo()
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_private(tmp_path / "key") == DATA
    assert only(tmp_path) == ["key"]


@POSIX
@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644, 0o777])
def test_a_private_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(DATA)
    path.chmod(mode)
    with pytest.raises(Untrusted, match=rf"others have access to this private key \(mode {mode:04o}\)") as caught:
        read_private(path)
    assert caught.value.hint.startswith(f"chmod 600 {path}")
    assert key_files.read(path, 10) == DATA


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    for target in (path, tmp_path):
        with pytest.raises(UsageError, match="exists and is never overwritten"):
            key_files.write_new(target, DATA, mode=0o600)
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["key"]


@POSIX
@posix
@pytest.mark.parametrize("target", ["old", "nowhere"])
def test_a_link_is_neither_followed_nor_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "key").symlink_to(tmp_path / target)
    with pytest.raises(UsageError, match="exists and is never overwritten"):
        key_files.write_new(tmp_path / "key", DATA, mode=0o600)
    assert (tmp_path / "key").is_symlink()
    assert only(tmp_path) == ["key", "old"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_a_name_that_somebody_takes_meanwhile_stays_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(UsageError, match="exists and is never overwritten"):
        key_files.write_new(path, DATA, mode=0o600)
    monkeypatch.setattr(os, "link", refuse, raising=False)
    with pytest.raises(UsageError, match="exists and is never overwritten"):
        key_files.write_new(path, DATA, mode=0o600)
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["key"]


def refuse(*_: object, **__: object) -> None:
    """A system call that this file system lacks."""
    raise PermissionError(1, "Operation not permitted")


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse, raising=False)
    key_files.write_new(tmp_path / "key", DATA, mode=0o600)
    assert read_private(tmp_path / "key") == DATA
    assert only(tmp_path) == ["key"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unsupported, match="cannot write .*key: the disk is full"):
        key_files.write_new(tmp_path / "key", DATA, mode=0o600)
    assert only(tmp_path) == []


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder .*nowhere"):
        key_files.write_new(tmp_path / "nowhere" / "key", DATA, mode=0o600)


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(BadArtifact, match="large: more than 10 bytes"):
        key_files.read(tmp_path / "large", 10)
    with pytest.raises(Unavailable):
        key_files.read(tmp_path, 10)
    with pytest.raises(Unavailable, match="cannot read .*nothing"):
        key_files.read(tmp_path / "nothing", 10)


@POSIX
@posix
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="pipe is not a regular file"):
        key_files.read(tmp_path / "pipe", 10)


def test_a_dash_makes_no_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names none"):
        key_files.write_new(Path("-"), b"x", mode=0o600)
    assert list(tmp_path.iterdir()) == []
