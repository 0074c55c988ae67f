"""`python -m bench.registry`: valid submissions a second to a registry over loopback, on both databases.

Server, database and load generator share the machine's cores, as a registry's users do not; what each of them costs in
processor time is told beside the rate. Exit code 1 when a bar was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from auditkit.registry.folder import init
from auditkit.registry.runs import load
from bench.rows import Row, machine, to_table
from tests.registry import cluster
from tests.registry.makers import Maker, key
from tests.registry.server import RUN, running

BAR = 200.0  # submissions a second
COUNT = 6000
CONNECTIONS = 32
BATCH = 128
FAST = ("--address-rate", "1000000", "--key-rate", "1000000")


@dataclass(frozen=True)
class Load:
    """How a load went: submissions a second, seconds of processor time of each side, times of single answers."""

    rate: float
    server: float
    database: float
    generator: float
    median_ms: float
    high_ms: float  # 99 of 100 are faster


class Client:
    """One connection that does no more for a request than it must: the generator shares the cores with the server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._place = (parts.hostname or "", parts.port or 80)

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)

    async def post(self, path: str, kind: str, body: bytes) -> bytes:
        """The body of an answer 200 or 201; RuntimeError for any other."""
        head = f"POST {path} HTTP/1.1\r\nHost: registry\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode("ascii") + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        at = answer.index(b"content-length: ") + 16
        found = await self._reader.readexactly(int(answer[at : answer.index(b"\r\n", at)]))
        if answer[9:12] not in (b"200", b"201"):
            raise RuntimeError(f"{answer!r}{found!r}")
        return found

    def close(self) -> None:
        """Close it."""
        self._writer.close()


async def single(url: str, envelopes: list[bytes], connections: int) -> tuple[float, list[float]]:
    """Submit one by one over several connections; seconds in all, and of each answer."""
    todo, times = iter(envelopes), []

    async def work() -> None:
        client = Client(url)
        await client.open()
        for envelope in todo:
            began = time.perf_counter()
            if b'"taken"' not in await client.post("/v1/attestations", "application/json", envelope):
                raise RuntimeError("not taken")
            times.append(time.perf_counter() - began)
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return time.perf_counter() - began, times


async def batches(url: str, envelopes: list[bytes]) -> tuple[float, list[float]]:
    """Submit in batches over one connection; seconds in all, and of each answer."""
    client, times = Client(url), []
    await client.open()
    began = time.perf_counter()
    for first in range(0, len(envelopes), BATCH):
        part = envelopes[first : first + BATCH]
        before = time.perf_counter()
        found = await client.post("/v1/attestations/batch", "application/x-ndjson", b"\n".join(part))
        if found.count(b'"taken"') != len(part):
            raise RuntimeError("not all were taken")
        times.append(time.perf_counter() - before)
    client.close()
    return time.perf_counter() - began, times


def measured(url: str, envelopes: list[bytes], server: int, database: int | None, connections: int) -> Load:
    """One load; `connections` is 0 for batches. `server` and `database` are process ids."""
    before = cpu(server), cpu_of_children(database), own_cpu()
    work = single(url, envelopes, connections) if connections else batches(url, envelopes)
    seconds, times = asyncio.run(work)
    after = cpu(server), cpu_of_children(database), own_cpu()
    times.sort()
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return Load(len(envelopes) / seconds, *spent, times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3)


def own_cpu() -> float:
    """Seconds of processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu(process: int) -> float:
    """Seconds of processor time of a process; 0 where the system does not tell (no /proc)."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def cpu_of_children(process: int | None) -> float:
    """The same for all processes of a database server, those included that ended."""
    if process is None:
        return 0.0
    total = cpu(process)
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
        total += sum(cpu(int(child)) for child in children)
    return total


@contextlib.contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The address of an empty database, and the process id of its server if it has one."""
    if kind == "SQLite":
        yield str(folder / "registry.db"), None
        return
    programs = cluster.programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed")
    with cluster.started(programs) as running_cluster:
        yield running_cluster.new_database(), running_cluster.process.pid


def rows(count: int = COUNT) -> list[Row]:
    """Measure both databases."""
    known = load(RUN)
    maker = Maker(known)
    print(f"signs {2 * count} attestations ...", file=sys.stderr, flush=True)
    envelopes = [maker.signed(n % 1000, key(1 + n // 1000 % 4), milliseconds=n) for n in range(2 * count)]
    found: list[Row] = []
    for kind in ("SQLite", "PostgreSQL"):
        with tempfile.TemporaryDirectory() as name, database(kind, Path(name)) as (address, process):
            init(Path(name) / "registry", "registry.bench/log", address=address)
            with running(Path(name) / "registry", "--database", address, *FAST) as server:
                for label, part, connections in (
                    (f"{CONNECTIONS} connections", envelopes[:count], CONNECTIONS),
                    (f"batches of {BATCH}, one connection", envelopes[count:], 0),
                ):
                    print(f"measures {kind}, {label} ...", file=sys.stderr, flush=True)
                    load_found = measured(server.url, part, server.process.pid, process, connections)
                    found.append(row(kind, label, load_found, count, is_barred=connections > 0))
    known.close()
    return found


def row(kind: str, label: str, found: Load, count: int, *, is_barred: bool) -> Row:
    """One line of the table."""
    parts = {"server": found.server, "database": found.database, "load generator": found.generator}
    costs = ", ".join(f"{name} {seconds / count * 1e3:.2f} ms" for name, seconds in parts.items() if seconds)
    note = f"answers {found.median_ms:.1f} ms, 99 % within {found.high_ms:.0f} ms; processor time each: {costs}"
    bar = f"at least {BAR:.0f}/s" if is_barred else ""
    passes = found.rate >= BAR if is_barred else None
    return Row(f"{kind}, {label}", found.rate, "submissions/s", note, bar, passes)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.registry", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"submissions of each load (default {COUNT})")
    found = rows(parser.parse_args().count)
    print(to_table(found, machine(), datetime.datetime.now(tz=datetime.UTC).date().isoformat()))
    return 1 if any(item.passes is False for item in found) else 0


if __name__ == "__main__":
    sys.exit(main())
