"""When a long step keeps what it has found: not before it pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.model.plan import Plan
from auditkit.model.shelf import InMemory, Moved
from auditkit.numerics import reference
from auditkit.replay import keeper as keeping
from auditkit.replay import planned
from auditkit.replay.keeper import FIRST_SECONDS, SHARE, Keeper
from auditkit.replay.memory import piece_bytes
from auditkit.replay.predict import PROCESSOR
from auditkit.store.progress import Silent, SystemClock
from auditkit.store.spill import Spill
from auditkit.verdict import Verdict
from tests.replay import make_run
from tests.replay.make_run import publish
from tests.replay.test_planned import RESUMED, Notes, follow, spilled


class Hand(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, FIRST_SECONDS), (1_000_000, FIRST_SECONDS), (13_000_000_000, SHARE * 13_000_000_000 / PROCESSOR.disk)],
)
def test_the_first_time_is_as_rare_as_its_size_asks_for(tmp_path: Path, size: int, seconds: float) -> None:
    clock: Any = Hand()
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    keeper = Keeper(spill, Moved(spill, reference), Silent(), clock, in_place=False, size=size)
    clock.at += seconds - 1
    assert not keeper.due()
    clock.at += 1
    assert keeper.due()


def test_what_lies_on_the_disk_anyway_is_kept_at_once(tmp_path: Path) -> None:
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    assert Keeper(spill, Moved(spill, reference), Silent(), Hand(), in_place=True, size=1 << 40).due()


class Few(InMemory):
    """A shelf whose second array cannot be copied."""

    def get(self, key: str) -> list[Any] | None:
        if key == "b":
            raise MemoryError
        return super().get(key)


def shelf_of(shelf: InMemory) -> InMemory:
    for key in "abc":
        shelf.put(key, [np.full(9, ord(key), np.int64)])
    return shelf


def test_too_little_memory_for_a_copy_ends_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    notes = Notes()
    keeper = Keeper(spill, Moved(spill, reference), notes, Hand(), in_place=False)
    keeper.save([], "abc", shelf_of(Few()))
    assert notes.texts == ["nothing more is kept to go on from: too little memory for a copy"]
    assert not keeper.due() and not spill.keys() and not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_lies_on_the_disk_is_not_written_again(tmp_path: Path) -> None:
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    moved, shelf = Moved(spill, reference), shelf_of(InMemory())
    spill.put("a", [np.zeros(2, np.int64)])
    there = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    keeper = Keeper(spill, moved, Silent(), Hand(), in_place=False, apart=lambda key: key != "a")
    keeper.save([MicroBatchLeaf(1, content_digest(b"leaf"))], "abc", shelf)
    assert there.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}.items()
    assert sorted(spill.keys()) == ["a", "b", "c"]
    found = InMemory()
    assert len(keeper.load("abc", found)) == 1
    assert found.get("a") is None and found.get("b") and found.get("c")


def test_what_is_kept_of_tables_beside_sums_on_the_disk_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = tmp_path / "cache", publish(replace(make_run.train(1, RESUMED), published=(0, 1)), tmp_path / "run")
    plan, put, disk = Plan(True, sums="disk", tables="memory"), Spill.put, [0]
    need = piece_bytes(RESUMED, plan, False)

    def putting(self: Spill, key: str, arrays: Any) -> None:
        put(self, key, arrays)
        disk.append(sum(path.stat().st_size for path in spilled(cache) if path.suffix == ".bin"))

    follow(monkeypatch, plan)
    monkeypatch.setattr(Spill, "put", putting)
    monkeypatch.setattr(planned, "LONG", 0.0)
    monkeypatch.setattr(keeping, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 0.0)
    report = auditkit.verify(str(run), step=0, device="numpy", threads=1, cache_dir=cache)
    assert report.verdict is Verdict.MATCH
    assert 0.9 * need.disk <= max(disk) <= need.disk
