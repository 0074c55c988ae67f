"""What this machine says about itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault, Unsupported, UsageError
from auditkit.numerics import reference, self_test
from auditkit.numerics.arrays import F32
from auditkit.replay import machine
from auditkit.replay.backend import Backend, choose
from auditkit.replay.doctor import examine
from auditkit.verdict import Verdict


def test_processors_and_memory() -> None:
    assert 1 <= machine.processors() <= (os.cpu_count() or 1)
    memory = machine.total_memory()
    assert memory is None or memory > 2**27


def test_free_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free = machine.free_disk(tmp_path / "a" / "b")
    assert free is not None and free > 0


def test_device_and_threads() -> None:
    assert choose("auto", None).threads == machine.processors()
    assert (choose("cpu", 5).threads, choose("cpu", 5).device) == (5, "cpu")
    with pytest.raises(Unsupported, match="CUDA|CuPy"):
        choose("cuda", 1)
    for threads in (0, -1, 5000):
        with pytest.raises(UsageError):
            choose("cpu", threads)


def test_the_self_test_runs_in_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    seen: set[int] = set()
    monkeypatch.setattr(self_test, "run", lambda ops: seen.add(threading.get_ident()))
    Backend(reference, 5, "cpu").self_test()
    assert len(seen) == 6  # and in the thread that calls


def test_one_bad_worker_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def run(ops: object) -> None:
        if next(calls) == 2:
            raise MachineFault("subnormals are flushed to zero")

    monkeypatch.setattr(self_test, "run", run)
    with pytest.raises(MachineFault, match="flushed"):
        Backend(reference, 4, "cpu").self_test()


def test_products_of_the_shapes_of_models_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS that is wrong for large products alone."""
    dot = reference.dot

    def spoilt(a: Any, b: Any) -> F32:
        made = dot(a, b)
        return made if made.size < 1000 else np.nextafter(made, np.float32(9))

    monkeypatch.setattr(reference, "dot", spoilt)
    self_test.run(reference)
    with pytest.raises(MachineFault, match="wide answer of dot_14_320"):
        Backend(reference, 1, "numpy").self_test()


def test_doctor_of_a_sound_machine(tmp_path: Path) -> None:
    health = examine(cache_dir=tmp_path)
    assert health.verdict is Verdict.MATCH
    assert health.self_test == "passed"
    assert health.versions["numpy"]


def test_doctor_of_a_broken_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ops: object) -> None:
        raise MachineFault("1 + 1 is 3")

    monkeypatch.setattr(self_test, "run", fail)
    health = examine(cache_dir=tmp_path)
    assert health.verdict is Verdict.MACHINE_FAULT
    assert health.self_test == "1 + 1 is 3"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "writing is not allowed"),
        (errno.ENOSPC, "the disk is full"),
    ],
)
@pytest.mark.parametrize("made", [True, False], ids=["a cache", "no cache yet"])
def test_case_25_doctor_warns_of_a_cache_that_cannot_be_written(
    number: int, words: str, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> int:
        path.touch()  # a full disk still makes the file
        raise OSError(number, os.strerror(number), str(path))

    folder = tmp_path / "cache"
    for name in ("blake3", "names") if made else ():
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    health = examine(cache_dir=folder)
    ((message, hint),) = health.warnings
    assert str(folder) in message and words in message and "bytes free" in message
    assert "--cache-dir" in hint and "AUDITKIT_CACHE" in hint
    assert health.verdict is Verdict.MATCH  # local runs can be verified all the same
    assert health.to_dict()["warnings"] == [{"message": message, "hint": hint}]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_doctor_looks_into_the_folders_of_a_cache_and_leaves_nothing_there(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert examine(cache_dir=folder).warnings == ()
    assert not folder.exists()
    folder.mkdir()
    (folder / "names").write_bytes(b"")
    ((message, _),) = examine(cache_dir=folder).warnings
    assert message.startswith(f"cannot write {folder / 'names'}: part of the path is a file")
    assert [path.name for path in folder.iterdir()] == ["names"]
