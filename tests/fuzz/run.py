"""Fuzz one target: `python -m tests.fuzz.run TARGET --seconds 600`; `--keep` adds what was found to the kept corpus.

With atheris (`pip install atheris`, Linux) the inputs follow coverage; without it they are changed examples. A broken
promise does not stop the run: each kind, by where it was raised, is written down once with its input, and the exit
status is 1 in the end. Work lies in build/fuzz, which may be removed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
GRACE_SECONDS = 120  # what a run may take beyond its time: to start, and to instrument
REPORT_SECONDS = 5.0

Input = Callable[[bytes], None]


class Found:
    """What a run saw, written to a file as it goes on: the process may be ended from outside by its own limits."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.executions = self.accepted = 0
        self.kinds: dict[str, str] = {}
        self._begin = self._told = time.monotonic()

    def feed(self, run: Callable[[str, bytes], bool], data: bytes) -> None:
        """One input."""
        self.executions += 1
        try:
            self.accepted += run(self.target, data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - what must not happen is what is looked for
            self._note(error, data)
        if time.monotonic() - self._told > REPORT_SECONDS:
            self.write()

    def write(self) -> None:
        """The report so far."""
        self._told = time.monotonic()
        report = {
            "target": self.target,
            "seconds": round(self._told - self._begin),
            "executions": self.executions,
            "accepted": self.accepted,
            "broken": self.kinds,
        }
        path = self.folder / "report.json"
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    def _note(self, error: BaseException, data: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "/auditkit/" in f.filename or "/trainer/" in f.filename] or frames
        last = own[-1]
        kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if type(error).__name__ == "Broken":
            kind = ": ".join(str(error).split(": ")[:2])[:60]
        if kind in self.kinds:
            return
        self.kinds[kind] = f"{data.hex()[:4000]} {str(error)[:300]}"
        (self.folder / f"broken-{len(self.kinds)}.bin").write_bytes(data)
        self.write()


def limit_memory(more: int) -> None:
    """An allocation beyond `more` bytes than are mapped now fails, as MemoryError."""
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + more,) * 2)


def by_coverage(found: Found, seconds: int) -> None:
    """libFuzzer's search, with changes of our own between its own."""
    import atheris

    with atheris.instrument_imports(include=["auditkit", "trainer"], enable_loader_override=False):
        from tests.fuzz import mutate, targets

    inputs = found.folder / "inputs"
    examples = write_examples(targets.examples(found.target), kept(found.target), inputs)

    def change(data: bytes, size: int, seed: int) -> bytes:
        if seed % 3 == 0:
            return bytes(atheris.Mutate(data, size))
        return mutate.mutated(random.Random(seed), data, examples)[:size]

    options = [f"-max_total_time={seconds}", f"-max_len={targets.INPUT_BYTES}", "-rss_limit_mb=0", "-timeout=60"]
    quiet = ["-verbosity=0", "-print_final_stats=0", f"-artifact_prefix={found.folder}/"]
    arguments = [sys.argv[0], *options, *quiet, str(inputs)]
    atheris.Setup(arguments, lambda data: found.feed(targets.run, data), custom_mutator=change)
    for example in examples:
        found.feed(targets.run, example)  # what is loaded on first use is loaded before the limit
    limit_memory(targets.MEMORY_BYTES)
    atheris.Fuzz()


def by_chance(found: Found, seconds: int) -> None:
    """Changed examples, for systems without atheris."""
    from tests.fuzz import mutate, targets

    examples = targets.examples(found.target) + kept(found.target)
    rng = random.Random(time.time_ns())
    for example in examples:
        found.feed(targets.run, example)
    with contextlib.suppress(ImportError, OSError):
        limit_memory(targets.MEMORY_BYTES)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.feed(targets.run, mutate.mutated(rng, rng.choice(examples), examples)[: targets.INPUT_BYTES])
    found.write()


def kept(target: str) -> list[bytes]:
    """The kept corpus of a target."""
    from tests.fuzz.corpus_file import read

    return read(target)


def write_examples(examples: list[bytes], more: list[bytes], folder: Path) -> list[bytes]:
    """All as files of libFuzzer's corpus, and returned."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*examples, *more]):
        (folder / f"example-{number:05d}").write_bytes(data)
    return [*examples, *more]


def smallest(target: str) -> list[bytes]:
    """Of all inputs that were found, and kept before, those that together reach what any of them reaches."""
    from tests.fuzz import arcs, targets

    inputs = {path.read_bytes() for path in (WORK / target / "inputs").iterdir()}
    return arcs.smallest({*inputs, *kept(target)}, lambda data: targets.run(target, data))


def main() -> int:
    """Run the search in a process of its own, so that its death is a finding and not the end of the report."""
    arguments = _arguments()
    folder = WORK / arguments.target
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.inside:
        found = Found(arguments.target, folder)
        (by_coverage if importlib.util.find_spec("atheris") else by_chance)(found, arguments.seconds)
        return 0
    (folder / "report.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.run", arguments.target, "--seconds", str(arguments.seconds)]
    with open(folder / "output.txt", "wb") as output:
        done = subprocess.run(
            [*command, "--inside"], cwd=ROOT, stdout=output, stderr=output, timeout=arguments.seconds + GRACE_SECONDS
        )
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    print(json.dumps({**report, "status": done.returncode}, indent=1))
    if arguments.keep and not report["broken"]:
        from tests.fuzz.corpus_file import write

        write(arguments.target, smallest(arguments.target))
    return 1 if done.returncode or report["broken"] else 0


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description="Fuzz one target.")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--keep", action="store_true", help="keep the short inputs that reach everything")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
