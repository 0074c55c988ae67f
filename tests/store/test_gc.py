"""Cleaning up after killed processes, and telling them from live ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditkit.store import STORE_LIMITS, SystemClock
from auditkit.store.cache import Cache
from auditkit.store.gc import Swept, Usage, sweep, usage
from auditkit.store.owner import abandoned, machine, unique_suffix
from tests.store.conftest import Shop
from tests.store.servers import honest, serve
from tests.store.tools import blob, cached, leave_part, named, parts

DATA = blob(50_000)
SIZE, DIGEST = named(DATA)


def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_what_nobody_writes_is_removed(tmp_path: Path) -> None:
    cache = Cache.at(tmp_path, STORE_LIMITS)
    cache.put(DATA, DIGEST)
    cache.remember("key", DIGEST)
    dead = leave_part(tmp_path, DIGEST, b"12345", f"{machine()}-{gone()}-000000000000")
    foreign = leave_part(tmp_path, DIGEST, b"1", "0badc0de-1-000000000000")
    old = leave_part(tmp_path, DIGEST, b"12", "0badc0de-2-000000000000")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    with cache.new_part(DIGEST).open("xb") as mine:
        assert usage(cache) == Usage(objects=1, object_bytes=SIZE, parts=4, part_bytes=8)
        assert sweep(cache, SystemClock()) == Swept(files=2, bytes=7)
    assert Path(mine.name).exists() and foreign.exists() and not dead.exists() and not old.exists()
    assert cached(tmp_path) == [DIGEST] and cache.recall("key") == DIGEST


def test_an_empty_cache(tmp_path: Path) -> None:
    cache = Cache.at(tmp_path / "none", STORE_LIMITS)
    assert sweep(cache, SystemClock()) == Swept(0, 0)
    assert usage(cache) == Usage(0, 0, 0, 0)


@pytest.mark.parametrize(
    "name", ["x.part", "x.0badc0de--1-000000000000.part", "x.0badc0de-9999999999-000000000000.part"]
)
def test_names_of_others_count_by_age(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    assert not abandoned(path, now=time.time(), after_seconds=3600)
    assert abandoned(path, now=time.time() + 4000, after_seconds=3600)
    assert not abandoned(tmp_path / "nothing.part", now=time.time() + 4000, after_seconds=3600)


def test_suffixes_do_not_repeat() -> None:
    assert len({unique_suffix() for _ in range(1000)}) == 1000
    assert f"-{os.getpid()}-" in unique_suffix()


def test_a_leftover_of_a_dead_process_is_used_and_removed(shop: Shop) -> None:
    leave_part(shop.cache, DIGEST, DATA[:1234], f"{machine()}-{gone()}-000000000000")
    longer = leave_part(shop.cache, DIGEST, DATA + b"!", f"{machine()}-{gone()}-000000000001")
    live = leave_part(shop.cache, DIGEST, DATA[:10], "0badc0de-1-000000000000")
    with serve(honest, {"run.json": b"{}", "x.bin": DATA}) as server:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert server.asked[0].range == f"bytes=1234-{SIZE - 1}"
    assert parts(shop.cache) == [live] and not longer.exists()


def test_where_there_is_no_room_for_a_copy_a_leftover_gives_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = leave_part(shop.cache, DIGEST, DATA[:1234], f"{machine()}-{gone()}-000000000000")
    free = iter([SIZE])
    real = shop.limits.spare_disk_bytes
    monkeypatch.setattr("auditkit.store.part.free_bytes", lambda path: next(free) + real - 1)
    with serve(honest, {"run.json": b"{}", "x.bin": DATA}) as server:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert server.asked[0].range == "" and not dead.exists()


def test_the_store_cleans_up(shop: Shop) -> None:
    leave_part(shop.cache, DIGEST, b"12345", f"{machine()}-{gone()}-000000000000")
    assert shop.store("https://example.org/").gc() == Swept(1, 5)
