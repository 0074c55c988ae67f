"""kill -9 under load: what was answered is stored and comes into the log, once, in one history."""

from __future__ import annotations

import hashlib
import http.client
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditkit.errors import Unavailable
from auditkit.formats.note import NoteKey
from auditkit.registry.folder import Folder, init, open_database
from auditkit.registry.runs import KnownRun
from auditkit.trust.keys import new_key
from auditkit.trust.log_reader import LogReader
from tests.registry.inprocess import ORIGIN
from tests.registry.makers import Maker, key
from tests.registry.server import Connection, Server, running, write_policy

THREADS = 6
ROUNDS = 3
ENVELOPES = 2400
FAST = ("--address-rate", "100000", "--key-rate", "100000")


@dataclass
class Load:
    """Envelopes handed over by several threads until the server dies; `positions` is what was promised."""

    envelopes: Sequence[bytes]
    next: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, url: str) -> None:
        """One thread."""
        connection = Connection(url)
        while True:
            with self.lock:
                if self.next == len(self.envelopes):
                    return
                envelope, self.next = self.envelopes[self.next], self.next + 1
            try:
                status, said = connection.submit(envelope)
            except (OSError, http.client.HTTPException, ValueError):
                return  # what was not answered may be stored or not
            assert status in (200, 201), said
            with self.lock:
                self.positions[said["envelope"]] = said["position"]

    def until_killed(self, server: Server, answered: int) -> None:
        """Run the threads, and kill the server when so many more were answered."""
        before = len(self.positions)
        threads = [threading.Thread(target=self.work, args=(server.url,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 120
        while len(self.positions) < before + answered and time.monotonic() < until:
            assert any(thread.is_alive() for thread in threads)
            time.sleep(0.001)
        server.kill()
        for thread in threads:
            thread.join(60)
        assert len(self.positions) >= before + answered


def log_of(server: Server) -> LogReader:
    """The log over HTTP."""
    connection = Connection(server.url)

    def fetch(path: str, limit: int) -> bytes:
        status, body = connection.ask("GET", f"/log/{path}")
        if status != 200:
            raise Unavailable(path)
        return body

    import json

    return LogReader(fetch, NoteKey.parse(json.loads(connection.get("/v1/runs"))["log_key"]))


def settled(server: Server, size: int) -> LogReader:
    """The log once it has so many entries."""
    until = time.monotonic() + 120
    while True:
        log = log_of(server)
        try:
            if log.checkpoint().size >= size:
                return log
        except Unavailable:
            pass  # no checkpoint yet
        assert time.monotonic() < until, "the log did not catch up"
        time.sleep(0.05)


def test_kill_9_under_load_loses_nothing(run: KnownRun, address: str, tmp_path: Path) -> None:
    keys, maker = [key(1), key(2), key(3), key(4)], Maker(run)
    envelopes = [maker.signed(n % 1000, keys[n // 1000 % 4]) for n in range(ENVELOPES)]
    folder, load, rng = tmp_path / "registry", Load(envelopes), random.Random(7)
    init(folder, ORIGIN, address=address, private=new_key())
    policy = write_policy(tmp_path / "policy.toml")
    seen = []
    for _ in range(ROUNDS):
        with running(folder, "--database", address, *FAST, policy=policy) as server:
            load.until_killed(server, rng.randint(100, 400))
            seen.append(checkpoint_of(folder))
    with running(folder, "--database", address, *FAST, policy=policy) as server:
        database = open_database(Folder(folder), address)
        bodies = database.bodies(0, most=ENVELOPES)
        database.close()
        names = [hashlib.sha256(body).hexdigest() for body in bodies]
        lost = {name for name, position in load.positions.items() if names[position : position + 1] != [name]}
        assert not lost
        assert len(set(names)) == len(names)  # each once
        log = settled(server, len(names))
        assert log.entries(0, len(names)) == bodies
        # every checkpoint that anybody may have seen is one of this history
        for checkpoint in filter(None, seen):
            assert log.root_at(checkpoint.size) == checkpoint.root
        # and what was promised is still what is said
        connection = Connection(server.url)
        for name, position in rng.sample(sorted(load.positions.items()), 50):
            status, said = connection.submit(bodies[position])
            assert (status, said["envelope"], said["position"]) == (200, name, position)
        connection.close()
        assert server.stop() == 0
    assert any(seen)
    assert not any("Traceback" in line for line in server.told)


def checkpoint_of(folder: Path) -> object:
    """The checkpoint on the disk, if there is one."""
    from auditkit.trust.log_writer import LogWriter

    origin, private = Folder(folder).key()
    return LogWriter(Folder(folder).log, origin, private).checkpoint()
