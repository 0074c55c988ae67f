"""Spilled arrays: what comes back is what was put there, or Damaged; what is left after a kill can be gone on with."""

from __future__ import annotations

import errno
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import BadArtifact, MachineFault, Unsupported
from auditkit.formats.digest import content_digest
from auditkit.store import STORE_LIMITS, owner, spill
from auditkit.store.cache import Cache
from auditkit.store.gc import sweep
from auditkit.store.progress import SystemClock
from auditkit.store.spill import Damaged, Spill
from tests.same_bits import assert_same_bits

KEY = content_digest(b"some work")
ARRAYS = [np.arange(12, dtype=np.int64).reshape(3, 4) - 5, np.array([-0.0, np.nan, 1], np.float32)]


def opened(folder: Path) -> Spill:
    return Spill.open(folder, KEY)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def abandon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process that wrote here be gone."""
    monkeypatch.setattr(owner, "_gone", lambda process: True)


def test_arrays_come_back_with_their_bits(tmp_path: Path) -> None:
    held = opened(tmp_path)
    held.put("a", ARRAYS)
    held.put("b", [])
    for want, got in zip(ARRAYS, held.get("a") or [], strict=True):
        assert_same_bits(got, want)
    assert held.get("b") == [] and held.get("c") is None
    held.put("a", ARRAYS[:1])
    assert len(held.get("a") or []) == 1
    held.drop("a")
    held.drop("a")
    assert held.get("a") is None and held.keys() == ["b"]


def test_what_the_disk_does_not_take_whole_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = opened(tmp_path)
    held.put("a", ARRAYS)
    before = files(tmp_path)

    def full(file: Any, raw: Any) -> None:
        file.write(raw.tobytes()[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spill, "_write", full)
        with pytest.raises(Unsupported, match="the disk is full"):
            held.put("a", ARRAYS[:1])
    assert files(tmp_path) == before and len(held.get("a") or []) == 2


def test_the_folder_goes_with_the_object(tmp_path: Path) -> None:
    held = opened(tmp_path)
    held.put("a", ARRAYS)
    assert files(tmp_path)
    del held
    gc.collect()
    assert not files(tmp_path)


@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_damage_is_found_when_it_is_read(tmp_path: Path, change: str) -> None:
    held = opened(tmp_path)
    held.put("a", ARRAYS)
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(data if change == "flip" else data[:-1])
    with pytest.raises(Damaged) as caught:
        held.get("a")
    assert isinstance(caught.value, MachineFault) and caught.value.hint == "check this machine's disk"


def test_another_process_goes_on_with_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(tmp_path)
    first.put("a", ARRAYS)
    first.commit("one")
    first.put("a", ARRAYS[:1])  # killed before the next commit
    first.put("b", ARRAYS)
    assert opened(tmp_path).note == ""  # the first one still lives
    abandon(tmp_path, monkeypatch)
    second = opened(tmp_path)
    assert second.note == "one" and second.keys() == ["a"]
    assert len(second.get("a") or []) == 2
    assert len(files(tmp_path)) == 2  # one file and the manifest
    second.put("a", ARRAYS[:1])
    second.commit("two")
    third = opened(tmp_path)
    assert third.note == "two" and len(third.get("a") or []) == 1
    third.finish()
    del third, second, first
    gc.collect()
    assert not files(tmp_path)


def test_what_is_finished_or_asked_to_begin_anew_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tmp_path)
    first.put("a", ARRAYS)
    first.commit("one")
    abandon(tmp_path, monkeypatch)
    assert Spill.open(tmp_path, KEY, resume=False).note == ""
    assert Spill.open(tmp_path, content_digest(b"other work")).note == ""
    first.finish()
    assert opened(tmp_path).note == ""


@pytest.mark.parametrize("at", [0, 30, -1])
def test_a_damaged_manifest_is_as_if_there_was_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    first = opened(tmp_path)
    first.put("a", ARRAYS)
    first.commit("one")
    (manifest,) = tmp_path.rglob("manifest")
    data = bytearray(manifest.read_bytes())
    data[at] ^= 1
    manifest.write_bytes(data)
    abandon(tmp_path, monkeypatch)
    assert opened(tmp_path).note == ""


def test_a_manifest_that_names_other_files_is_refused() -> None:
    entries = {"a": spill._Entry("../x.bin", ())}
    body = spill._encode(entries, "one")
    with pytest.raises(BadArtifact, match="a file of another name"):
        spill._parse(body + bytes.fromhex(content_digest(body)))


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="more bytes are needed"):
        Spill.open(tmp_path, KEY, need=1 << 60)
    assert not files(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "spill").write_bytes(b"")
    with pytest.raises(Unsupported, match="cannot write"):
        opened(tmp_path)


def test_cleaning_up_leaves_live_processes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, other = opened(tmp_path), opened(tmp_path)
    committed.put("a", ARRAYS)
    committed.commit("one")
    other.put("a", ARRAYS)
    store = Cache.at(tmp_path, STORE_LIMITS)
    assert sweep(store, SystemClock()).files == 0
    abandon(tmp_path, monkeypatch)
    spill.sweep(tmp_path, committed=False)  # what the next audit does
    assert len(files(tmp_path)) == 2
    assert sweep(store, SystemClock()).files == 2
    assert not files(tmp_path)
