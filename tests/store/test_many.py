"""Many processes and threads with one cache, one of them killed (case 24). There is no lock to rely on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from auditkit.store import STORE_LIMITS, SystemClock
from auditkit.store.cache import Cache
from auditkit.store.gc import sweep
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import honest, serve
from tests.store.tools import blob, cached, named, parts

DATA = blob(8_000_000)
SIZE, DIGEST = named(DATA)
FILES = {"run.json": b"{}", "x.bin": DATA}
ROOT = Path(__file__).resolve().parents[2]

FETCH = """
import os, sys
from auditkit.store import Store, locate
try:
    import fcntl
    fcntl.flock = fcntl.lockf = lambda *a: None
except ImportError:
    pass
url, cache, size, digest = sys.argv[1:]
store = Store(locate(url), cache_dir=cache)
print("ready", os.getpid(), flush=True)
sys.stdin.readline()
path = store.file("x.bin", int(size), digest)
print(path, path.stat().st_size, flush=True)
"""


def start(url: str, cache: Path) -> subprocess.Popen[str]:
    """A process that fetches as soon as it is told."""
    command = [sys.executable, "-c", FETCH, url, str(cache), str(SIZE), DIGEST]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ready(process: subprocess.Popen[str]) -> int:
    """Wait until a process is ready; its own id (on Windows the one that was started only starts the real one)."""
    assert process.stdout
    word, number = process.stdout.readline().split()
    assert word == "ready"
    return int(number)


def go(process: subprocess.Popen[str]) -> None:
    """Tell a process to fetch."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[str], number: int) -> None:
    """End a process without a warning (kill -9)."""
    os.kill(number, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()


def test_case_24_eight_processes_and_one_is_killed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serve(servers.slow(65536, 0.004), FILES) as server, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(start(server.url, cache)) for _ in range(8)]
        ids = [ready(process) for process in processes]
        for process in processes:
            go(process)
        victim = processes[3]
        wait_for(lambda: any(size > 500_000 for size in sizes(cache, ids[3])))
        kill(victim, ids[3])
        answers = [process.communicate() for process in processes if process is not victim]
    final = cache / "blake3" / DIGEST[:2] / DIGEST
    assert answers == [(f"{final} {SIZE}\n", "")] * 7
    assert [process.returncode for process in processes if process is not victim] == [0] * 7
    assert cached(cache) == [DIGEST] and final.read_bytes() == DATA
    assert sizes(cache, ids[3]) == [part.stat().st_size for part in parts(cache)]
    sweep(Cache.at(cache, STORE_LIMITS), SystemClock())
    if os.name != "nt":
        assert parts(cache) == []


def test_a_killed_fetch_is_resumed_by_the_next(shop: Shop) -> None:
    with serve(servers.slow(65536, 0.004), FILES) as server:
        with start(server.url, shop.cache) as process:
            number = ready(process)
            go(process)
            wait_for(lambda: any(size > 3_000_000 for size in sizes(shop.cache, number)))
            kill(process, number)
        assert cached(shop.cache) == []
        (left,) = sizes(shop.cache, number)
        server.behaviour = honest
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[-1].range == f"bytes={left}-{SIZE - 1}"
    assert parts(shop.cache) == []


def sizes(cache: Path, process: int) -> list[int]:
    """The sizes of the partial files of a process."""
    found = []
    for part in (cache / "blake3").glob(f"*/*-{process}-*.part"):
        with contextlib.suppress(FileNotFoundError):
            found.append(part.stat().st_size)
    return found


def wait_for(happened: object) -> None:
    """Wait until something happened, for at most 20 s."""
    assert callable(happened)
    for _ in range(4000):
        if happened():
            return
        time.sleep(0.005)
    pytest.fail("it did not happen")


def test_threads_share_a_store(shop: Shop) -> None:
    found: list[object] = []

    def work(number: int) -> None:
        if number % 2:
            found.append(store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA)
        else:
            found.append(store.range("x.bin", number * 1000, 5000, size=SIZE) == DATA[number * 1000 :][:5000])

    shop.story.advance = lambda n: None  # type: ignore[method-assign]  # one story cannot tell eight tasks apart
    with serve(honest, FILES) as server:
        store = shop.store(server.url)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 8
    assert cached(shop.cache) == [DIGEST] and parts(shop.cache) == []
