"""`python -m bench.coverage`: coverage of a run of 100,000 steps from 1,000 auditors and a million attestations.

Everything is what a user has: a run folder, a policy with 1,000 keys, and real envelopes with real Ed25519 signatures,
made here by several processes (bench/simulated.py); only the replays are made up. Measured is the whole command,
`auditkit coverage --json --html`, its start and the reading of the run included: cold, when every attestation is
verified, and warm, when all were verified before. Memory is the sum over all its processes of the proportional set size
(PSS), sampled, and the peak of the largest alone.

Needs 3 GB of disk. Exit code 1 when a bar was missed or a status is not the one that was simulated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench import simulated
from bench.process import ROOT
from bench.rows import Row, machine, to_table

WARM_SECONDS, WARM_BYTES, PAGE_BYTES = 20.0, 1 << 30, 10_000_000
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Run:
    """One run of the command: exit code, its JSON, wall-clock and processor seconds, memory in bytes (0: unknown)."""

    code: int
    said: dict[str, object]
    seconds: float
    processor: float
    together: int
    largest: int


def main() -> int:
    """Simulate, measure, print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.coverage", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--auditors", type=int, default=1_000)
    parser.add_argument("--attestations", type=int, default=1_000_000)
    parser.add_argument("--layout", choices=["lines", "files"], default="lines", help="a file an auditor, or one each")
    parser.add_argument("--folder", type=Path, help="where to simulate; kept, and used again if it is complete")
    arguments = parser.parse_args()
    shape = simulated.Shape(arguments.steps, arguments.auditors, arguments.attestations, arguments.layout)
    if arguments.folder is not None:
        return measure(arguments.folder, shape)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), shape)


def measure(folder: Path, shape: simulated.Shape) -> int:
    """Simulate into a folder, run the command twice, and print what was measured."""
    start = time.perf_counter()
    expected = simulated.simulate(folder, shape)
    print(f"simulated in {time.perf_counter() - start:.0f} s: {expected}", file=sys.stderr, flush=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    cold, warm = (command(folder) for _ in range(2))
    problems = [*check(cold, expected, shape.attestations - expected["refused"]), *check(warm, expected, 0)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    table = rows(cold, warm, (folder / "page.html").stat().st_size, shape)
    print(to_table(table, machine(), datetime.datetime.now(tz=datetime.UTC).date().isoformat()))
    return 1 if problems or any(row.passes is False for row in table) else 0


def rows(cold: Run, warm: Run, page: int, shape: simulated.Shape) -> list[Row]:
    """The table."""
    what = f"{shape.steps:,} steps, {shape.auditors:,} auditors, {shape.attestations:,} attestations in {shape.layout}"
    rate = shape.attestations / cold.seconds
    limits = f"under {WARM_SECONDS:.0f} s", f"under {WARM_BYTES >> 20} MiB"
    return [
        Row(
            "coverage and page, nothing verified before",
            cold.seconds,
            "s",
            f"{what}; {rate:,.0f} a second, {cold.processor:.0f} s of processor time",
        ),
        Row("its memory, all processes", cold.together / 2**20, "MiB", f"largest alone {cold.largest / 2**20:,.0f}"),
        Row(
            "coverage and page, all verified before",
            warm.seconds,
            "s",
            f"{warm.processor:.1f} s of processor time",
            limits[0],
            warm.seconds < WARM_SECONDS,
        ),
        Row(
            "its memory, all processes",
            warm.together / 2**20,
            "MiB",
            f"largest alone {warm.largest / 2**20:,.0f}",
            limits[1],
            warm.together < WARM_BYTES,
        ),
        Row("the page", page / 1e6, "MB", "", "under 10 MB", page < PAGE_BYTES),
    ]


def check(run: Run, expected: dict[str, int], verified: int) -> list[str]:
    """What is not as simulated."""
    totals, attestations = run.said.get("totals"), run.said.get("attestations")
    refused = run.said.get("refused")
    if not (isinstance(totals, dict) and isinstance(attestations, dict) and isinstance(refused, dict)):
        return [f"exit code {run.code}, no result"]
    found = {**totals, "refused": refused["count"]}
    wrong = [
        f"{name}: {found.get(name)}, simulated {count}" for name, count in expected.items() if found[name] != count
    ]
    if attestations["verified_now"] != verified:
        wrong.append(f"{attestations['verified_now']} verified, {verified} expected")
    return wrong


def command(folder: Path) -> Run:
    """Run `auditkit coverage` on what was simulated."""
    arguments = ["coverage", folder / "attestations", "--policy", folder / "policy.toml", "--run", folder / "run"]
    arguments += ["--html", folder / "page.html", "--json", "--cache-dir", folder / "cache"]
    start = time.perf_counter()
    with (folder / "said.json").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "auditkit", *map(str, arguments)], stdout=out, cwd=ROOT)
        watch = Watch(process.pid)
        code = process.wait()
        seconds = time.perf_counter() - start
        watch.stop()
    text = (folder / "said.json").read_text(encoding="utf-8")
    return Run(code, json.loads(text) if text else {}, seconds, watch.processor, watch.together, watch.largest)


class Watch:
    """Samples what a process and all that it starts hold and use; Linux only, elsewhere zeros.

    `together` and `largest` are the highest PSS of all and of one, in bytes; `processor` the seconds that all took, as
    far as the last sample of each saw them.
    """

    def __init__(self, pid: int) -> None:
        self.together = self.largest = 0
        self._pid, self._used = pid, {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def processor(self) -> float:
        """Seconds of processor time."""
        return sum(self._used.values())

    def stop(self) -> None:
        """The process has ended."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            pids = family(self._pid)
            held = [pss(pid) for pid in pids]
            self.together = max(self.together, sum(held))
            self.largest = max(self.largest, *held, 0)
            self._used |= {pid: max(used(pid), self._used.get(pid, 0.0)) for pid in pids}


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text(encoding="ascii").split())
            except OSError:
                continue  # it ended meanwhile
    return found


def pss(pid: int) -> int:
    """The proportional set size of a process in bytes; 0 if it ended, or where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def used(pid: int) -> float:
    """The processor seconds of a process; 0 if it ended, or where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
