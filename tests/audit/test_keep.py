"""Files of attestations: whole or not there, and never replaced."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.audit.attest import Signed
from auditkit.audit.keep import keep, prepare
from auditkit.errors import Unsupported
from auditkit.trust import key_files
from auditkit.verdict import Verdict

LINKS = pytest.mark.optional("not every user of Windows may make links")
SIGNED = Signed(7, Verdict.MATCH, "step-7.1a2b3c4d", b"envelope", b"summary")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_both_files_are_written(tmp_path: Path) -> None:
    paths = keep(SIGNED, tmp_path)
    assert [path.name for path in paths] == ["step-7.1a2b3c4d.json", "step-7.1a2b3c4d.svr.json"]
    assert [path.read_bytes() for path in paths] == [b"envelope", b"summary"]
    assert names(tmp_path) == [path.name for path in paths]


def test_the_same_attestation_is_not_written_twice(tmp_path: Path) -> None:
    first = keep(SIGNED, tmp_path)
    first[1].unlink()  # as after a crash between the two
    assert keep(SIGNED, tmp_path) == first == keep(SIGNED, tmp_path)
    assert len(names(tmp_path)) == 2


def test_another_attestation_of_the_step_gets_the_next_number(tmp_path: Path) -> None:
    keep(SIGNED, tmp_path)
    second = keep(replace(SIGNED, envelope=b"later"), tmp_path)
    assert [path.name for path in second] == ["step-7.1a2b3c4d.2.json", "step-7.1a2b3c4d.2.svr.json"]
    third = keep(Signed(7, Verdict.MISMATCH, SIGNED.name, b"wrong"), tmp_path)
    assert [path.name for path in third] == ["step-7.1a2b3c4d.3.json"]
    assert (tmp_path / "step-7.1a2b3c4d.json").read_bytes() == b"envelope"
    assert keep(replace(SIGNED, envelope=b"later"), tmp_path) == second


@pytest.mark.parametrize("name", ["step-7.1a2b3c4d.json", "step-7.1a2b3c4d.svr.json"])
@pytest.mark.parametrize(
    "kind", ["file", "folder", pytest.param("link", marks=LINKS), pytest.param("dangling link", marks=LINKS)]
)
def test_whatever_has_the_name_stays(tmp_path: Path, name: str, kind: str) -> None:
    place, elsewhere = tmp_path / name, tmp_path / "elsewhere"
    if kind == "file":
        place.write_bytes(b"mine")
    elif kind == "folder":
        place.mkdir()
    else:
        if kind == "link":
            elsewhere.write_bytes(b"envelope")
        try:
            place.symlink_to(elsewhere)
        except OSError:
            pytest.skip("no links here")
    before = place.read_bytes() if kind == "file" else None
    assert [path.name for path in keep(SIGNED, tmp_path)][0] == "step-7.1a2b3c4d.2.json"
    assert (place.read_bytes() if kind == "file" else None) == before
    assert elsewhere.exists() is (kind == "link")


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    made = [replace(SIGNED, envelope=b"%d" % i) for i in range(12)]
    start = threading.Barrier(len(made))
    found: list[list[Path]] = [[] for _ in made]

    def one(i: int) -> None:
        start.wait()
        found[i] = keep(made[i], tmp_path)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({paths[0] for paths in found}) == len(made)
    assert [paths[0].read_bytes() for paths in found] == [signed.envelope for signed in made]
    assert not [name for name in names(tmp_path) if name.startswith(".tmp-")]


def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, mode: int) -> None:
        path.write_bytes(data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_files, "_write", full)
    with pytest.raises(Unsupported, match=r"cannot write .*step-7.*the disk is full"):
        keep(SIGNED, tmp_path)
    assert names(tmp_path) == []


def test_a_folder_that_is_gone_is_no_usage_error(tmp_path: Path) -> None:
    """A usage error would outrank a mismatch that was found."""
    with pytest.raises(Unsupported, match="the folder is gone"):
        keep(SIGNED, tmp_path / "gone")


def test_a_folder_is_made_and_tried(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []
    prepare(tmp_path / "a" / "b")


def test_a_folder_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Unsupported, match="cannot write into"):
            prepare(folder)


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
@pytest.mark.optional("modes bind neither root nor Windows; the job on Linux runs as a user")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(Unsupported, match="writing is not allowed"):
            prepare(tmp_path)
    finally:
        tmp_path.chmod(0o700)
