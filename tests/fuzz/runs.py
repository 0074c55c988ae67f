"""Runs of a hostile publisher, and what every command makes of them: `python -m tests.fuzz.runs --seconds 600`.

A change is naive (bytes that some digest names) or sealed (every digest up to the manifest is computed anew, so that
the parser behind it is reached), or it concerns the folder itself: links, pipes, folders in place of files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auditkit.cli.interrupt import Signals
from auditkit.cli.main import run as run_main
from auditkit.formats.digest import content_digest
from auditkit.store.progress import SystemClock
from auditkit.verdict import Verdict
from tests.fuzz.mutate import mutated
from tests.fuzz.watch import Seen, watched

CODES = frozenset(verdict.code for verdict in Verdict) - {Verdict.INTERNAL.code, Verdict.INTERRUPTED.code}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("verify", "--step", "4"),
    ("verify", "--steps", "0:2"),
    ("fetch", "--step", "4"),
    ("show", "run"),
    ("show", "step", "4"),
    ("show", "log"),
    ("plan", "--step", "5"),
    ("data", "--step", "4"),
    ("coverage", "."),
    ("diff", "{run}:4", "{run}:5"),
    ("log", "show"),
    ("next", "--count", "2"),
)
_BOMB = bytes.fromhex("28b52ffde00000000000010000")  # a frame that claims 1 TiB
_WINDOW = bytes.fromhex("28b52ffd00f8") + b"\x01\0\0"  # a window of 2 GiB
_RLE = bytes.fromhex("28b52ffd0058") + b"\x02\0\x10\0" * 4096 + b"\x03\0\x10\0"  # half a GiB of zeros in 16 KiB


class Fault(AssertionError):
    """A command broke its promise on a hostile run"""


@dataclass(frozen=True)
class Place:
    """The folders of one trial: home, cache and data of the user, and the folder in which a command runs."""

    root: Path

    @property
    def cache(self) -> Path:
        """$AUDITKIT_CACHE."""
        return self.root / "cache"

    @property
    def data(self) -> Path:
        """$AUDITKIT_DATA."""
        return self.root / "data"


def hurt(rng: random.Random, run: Path, others: list[bytes]) -> str:
    """Change a run folder in one way; says how."""
    kind = rng.choice((_naive, _sealed, _sealed, _sealed, _manifest, _manifest, _bomb, _special))
    return f"{kind.__name__.strip('_')} {kind(rng, run, others)}"


def _files(run: Path) -> list[Path]:
    found = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if path.stat().st_size < 1 << 24]


def _naive(rng: random.Random, run: Path, others: list[bytes]) -> str:
    path = rng.choice(_files(run))
    path.write_bytes(mutated(rng, b"\0" + path.read_bytes(), others)[1:])
    return path.relative_to(run).as_posix()


def _sealed(rng: random.Random, run: Path, others: list[bytes]) -> str:
    path = rng.choice([path for path in _files(run) if path.name != "run.json"])
    path.write_bytes(mutated(rng, b"\0" + path.read_bytes(), others)[1:])
    seal(run, path)
    return path.relative_to(run).as_posix()


def _bomb(rng: random.Random, run: Path, others: list[bytes]) -> str:
    packed = [path for path in _files(run) if path.suffix == ".zst" or path.name == "stream.bin"]
    path = rng.choice(packed)
    data, bomb = path.read_bytes(), rng.choice((_BOMB, _WINDOW, _RLE))
    path.write_bytes((bomb + data[len(bomb) :])[: len(data)] if rng.random() < 0.5 else bomb)
    seal(run, path)
    return path.relative_to(run).as_posix()


def _manifest(rng: random.Random, run: Path, others: list[bytes]) -> str:
    path = run / "run.json"
    path.write_bytes(mutated(rng, b"\0" + path.read_bytes(), [path.read_bytes()])[1:])
    return "run.json"


def _special(rng: random.Random, run: Path, others: list[bytes]) -> str:
    """Another thing in place of a file."""
    path = rng.choice(_files(run))
    size = path.stat().st_size
    path.unlink()
    kind = rng.randrange(7 if hasattr(os, "mkfifo") else 5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(rng.choice(("/etc/passwd", "../../../../etc/passwd", "nowhere", path.name)))
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        with path.open("wb") as file:
            file.truncate(rng.choice((0, size, 1 << 40)))
    elif kind == 4:
        pass  # it is missing
    elif kind == 5:
        os.mkfifo(path)
    else:
        os.mkfifo(path)
        os.chmod(path, 0)
    return f"{kind} {path.relative_to(run).as_posix()}"


def seal(run: Path, path: Path) -> None:
    """Make the digests that lead to a file those of what it holds now; what is no JSON any more stays as it is."""
    name = path.relative_to(run).as_posix()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        if name.startswith("states/") and path.name not in ("index.json", "state.json"):
            index = path.parent / "index.json"
            _restated(index, "files", path.name, path)
            seal(run, index)
            return
        _restated(run / "run.json", "artifacts", name, path)


def _restated(listing: Path, key: str, name: str, path: Path) -> None:
    if not listing.is_file():
        return  # something else has been put there
    value: Any = json.loads(listing.read_bytes())
    for row in value[key]:
        if row["path"] == name:
            row["size"], row["digest"] = path.stat().st_size, content_digest(path.read_bytes())
    _renamed(value, path, name)
    listing.write_bytes(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8"))


def _renamed(value: Any, path: Path, name: str) -> None:
    """The data section names corpus, tokenizer and ids by their digest as well."""
    for part in ("corpus", "tokenizer"):
        named = value.get("data", {}).get(part, {})
        if named.get("path") == name:
            named["digest"] = content_digest(path.read_bytes())


def try_command(command: Sequence[str], run: str, place: Place, *, extra: Sequence[str] = ()) -> tuple[int, Seen, str]:
    """Exit code, what was done to the outside and what was said; raises `Fault` for a traceback or a strange code."""
    arguments = [part.format(run=run) for part in command]
    arguments += [*([] if command[0] == "diff" else ["--run", run]), *extra]
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    (place.root / "here").mkdir(parents=True, exist_ok=True)
    os.chdir(place.root / "here")
    try:
        with _environment(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), watched() as seen:
            code = run_main(arguments, Signals())
    finally:
        os.chdir(before)
    said = f"{out.getvalue()}\n{err.getvalue()}"
    if code not in CODES or "Traceback" in said or "internal error" in said:
        raise Fault(f"{' '.join(arguments)}: exit code {code}\n{said[-3000:]}")
    if "\x1b" in said:
        raise Fault(f"{' '.join(arguments)}: an escape character reaches the terminal\n{said[-1000:]!r}")
    outside = seen.outside(place.cache, place.data)
    if outside:
        raise Fault(f"{' '.join(arguments)}: wrote {sorted(map(str, outside))}")
    if seen.run:
        raise Fault(f"{' '.join(arguments)}: ran {sorted(seen.run)}")
    return code, seen, said


@contextlib.contextmanager
def _environment(place: Place) -> Iterator[None]:
    chosen = {
        "AUDITKIT_CACHE": str(place.cache),
        "AUDITKIT_DATA": str(place.data),
        "AUDITKIT_DEBUG": "1",
        "HOME": str(place.root / "home"),
        "NO_PROXY": "*",
    }
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def trial(seed: int, honest: Sequence[Path], work: Path, commands: int = 2) -> str:
    """One hostile run and some commands on it; says what was tried. Raises `Fault` naming the seed."""
    rng = random.Random(seed)
    root = work / f"trial-{seed}"
    run = shutil.copytree(rng.choice(honest), root / "run")
    try:
        what = "; ".join(hurt(rng, run, others(run)) for _ in range(rng.choice((1, 1, 1, 2))))
        tried = []
        for command in rng.sample(COMMANDS, commands):
            extra = ("--json",) if rng.random() < 0.3 else ()
            code, seen, _ = try_command(command, str(run), Place(root), extra=extra)
            if seen.reached:
                raise Fault(f"{' '.join(command)}: a local run, and {sorted(seen.reached)} was reached")
            tried.append(f"{' '.join(command)} {code}")
        return f"{what}: {', '.join(tried)}"
    except Fault as error:
        raise Fault(f"seed {seed}: {error}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def others(run: Path) -> list[bytes]:
    """The beginning of every file, for parts of one in another."""
    return [b"\0" + path.read_bytes()[:4096] for path in _files(run)]


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Waits between tries take no time; nothing else about them changes."""
    kept: Callable[[SystemClock, float], None] = SystemClock.sleep
    SystemClock.sleep = lambda self, seconds: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        SystemClock.sleep = kept  # type: ignore[method-assign]


def main() -> int:
    """Try hostile runs for some time."""
    from tests.fuzz import servers
    from tests.replay import make_compact, make_run, make_segments

    parser = argparse.ArgumentParser(description="Try commands on runs of a hostile publisher.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--remote", action="store_true", help="over HTTP, from servers that lie")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        parts = make_run.train()
        honest = [
            make_run.publish(parts, work / "tiny"),
            make_compact.publish(parts, work / "compact"),
            make_segments.publish(make_segments.train(), work / "segmented"),
        ]
        end, seed, faults = time.monotonic() + arguments.seconds, arguments.first, 0
        while time.monotonic() < end:
            try:
                (servers.trial if arguments.remote else trial)(seed, honest, work)
            except Fault as error:
                faults += 1
                print(error, flush=True)
            seed += 1
        print(f"{seed - arguments.first} hostile runs, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
