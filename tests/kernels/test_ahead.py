"""Kernels compiled ahead: by real processes, whose CuPy is a stand-in with an NVRTC that makes up what it compiles."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from auditkit.kernels import ahead
from auditkit.kernels.ahead import OPS, OPS_SM90, compile_ahead
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.compile import cubin
from auditkit.replay.backend import CudaBackend
from auditkit.replay.verify import verify
from auditkit.store.lock import only_writer
from auditkit.store.progress import Silent
from auditkit.verdict import Verdict
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS

NVRTC = """
import os, time

class NVRTCError(RuntimeError):
    status = 6

def getVersion():
    return 13, 0

def createProgram(text, name, headers, names):
    with open(os.environ["STARTED"], "a") as file:
        file.write(f"{os.getpid()} {name}\\n")
    if name == os.environ.get("REFUSED"):
        raise NVRTCError("no")
    time.sleep(float(os.environ.get("SECONDS", "0")))
    return len(text), name

def compileProgram(program, options):
    pass

def getCUBIN(program):
    return repr(program).encode()

def getProgramLog(program):
    return ""

def destroyProgram(program):
    pass
"""


WAITS = "another process compiles the kernels; waiting for it"


@dataclass
class Told(Silent):
    """Progress that is remembered."""

    said: list[Any] = field(default_factory=list)

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        self.said.append((label, total, unit))

    def advance(self, n: int) -> None:
        self.said.append(n)

    def finish(self) -> None:
        self.said.append("finish")

    def note(self, text: str) -> None:
        self.said.append(text)


def stand_in(text: bytes, name: str, options: tuple[str, ...]) -> bytes:
    return repr((len(text.decode()), name)).encode()


stand_in.version = "13.0"  # type: ignore[attr-defined]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each compilation that has begun: process and source."""
    package = tmp_path / "path" / "cupy" / "cuda"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("", encoding="utf-8")
    (package / "nvrtc.py").write_text(NVRTC, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent.parent), os.environ.get("PYTHONPATH", "")]))
    log = tmp_path / "started"
    log.write_text("", encoding="utf-8")
    monkeypatch.setenv("STARTED", str(log))
    return log


def compilations(started: Path) -> list[list[str]]:
    return [line.split() for line in started.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("architecture", "ops"), [("80", OPS), ("90", OPS_SM90 + OPS)])
def test_what_is_missing_is_compiled_once_by_several_processes(
    architecture: str, ops: tuple[str, ...], tmp_path: Path, started: Path
) -> None:
    cache, told = tmp_path / "not" / "there", Told()
    compile_ahead(architecture, "13.0", cache, 3, told)
    found = compilations(started)
    assert sorted(name for _, name in found) == sorted(f"{op}.cu" for op in ops)
    assert 1 <= len({process for process, _ in found}) <= 3
    label = f"compiling kernels for sm_{architecture}, kept in {cache}"
    assert told.said == [(label, len(ops), "sources"), *[1] * len(ops), "finish"]
    for op in ops:
        cubin(op, architecture, stand_in, cache)  # type: ignore[arg-type]
    assert len(list(cache.iterdir())) == len(ops)  # all of them were there
    compile_ahead(architecture, "13.0", cache, 3, told)
    assert len(compilations(started)) == len(ops) and told.said[-1] == "finish" and told.said.count("finish") == 1


def test_several_that_find_the_cache_empty_compile_once(
    tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the ranks of a training do, or the tests on a card; the others wait, and say that."""
    monkeypatch.setenv("SECONDS", "0.05")  # a source
    told = [Told() for _ in range(3)]
    threads = [threading.Thread(target=compile_ahead, args=("80", "13.0", tmp_path / "c", 2, one)) for one in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for _, name in compilations(started)) == sorted(f"{op}.cu" for op in OPS)
    assert sorted(len([word for word in one.said if word != WAITS]) for one in told) == [0, 0, len(OPS) + 2]
    assert sum(WAITS in one.said for one in told) >= 1, "who waits says so"


def test_who_waits_too_long_compiles(tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "WAIT", 0.2)
    with only_writer(tmp_path):
        compile_ahead("80", "13.0", tmp_path, 2, Silent())
    assert len(compilations(started)) == len(OPS)


def test_a_source_that_is_refused_does_not_keep_the_others(
    tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "quantise.cu")
    compile_ahead("80", "13.0", tmp_path / "cache", 2, Silent())
    assert len(list((tmp_path / "cache").glob("*.cubin"))) == len(OPS) - 1


def test_without_a_compiler_nothing_happens(tmp_path: Path) -> None:
    told = Told()
    compile_ahead("80", "13.0", tmp_path / "cache", 2, told)
    assert not list((tmp_path / "cache").iterdir()) and told.said[-1] == "finish"


def test_a_cache_that_cannot_be_used_starts_nothing(tmp_path: Path, started: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    told = Told()
    compile_ahead("80", "13.0", tmp_path / "file", 2, told)
    compile_ahead("80", "13.0", tmp_path / "file" / "below", 2, told)
    assert not compilations(started) and not told.said


def test_a_cache_that_may_not_be_searched_starts_nothing(
    tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is root may do everything, so the system's answers are given here."""
    stat, cache = os.stat, tmp_path / "cache"
    cache.mkdir()

    def refused(path: Any, *more: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(cache) + os.sep):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *more, **options)

    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.X_OK)
    compile_ahead("80", "13.0", cache, 2, Silent())
    assert not compilations(started)


def test_nobody_compiles_on_when_it_is_ended(tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDS", "600")

    def join(_thread: threading.Thread) -> None:
        while len(compilations(started)) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead.threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        compile_ahead("80", "13.0", tmp_path / "cache", 2, Silent())
    for process, _ in compilations(started):
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


class TestEmulated:
    pytestmark = EMULATOR_MARKS

    def test_a_verification_tells_its_progress(self, tmp_path: Path) -> None:
        asked = []

        class Nameless(CudaBackend):
            def describe(self) -> dict[str, str]:
                return {}  # no driver

        class Preparing(EmulatedDevice):
            def prepare(self, processors: int, progress: Any) -> None:
                asked.append((processors >= 1, progress))

        device: Any = Preparing()
        progress = Silent()
        report = verify(str(tmp_path), step=3, backend=Nameless(CudaOps(device), 1, "emulated"), progress=progress)
        assert asked[0] == (True, progress)
        assert report.verdict is Verdict.UNAVAILABLE  # there is no run to go on with


def test_workers_run_the_package_that_started_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was found: a checkout that is the current folder of a command is not installed."""
    package, marker = tmp_path / "auditkit" / "kernels", tmp_path / "ran"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    lines = f"import sys\nopen({str(marker)!r}, 'w').close()\nfor line in sys.stdin:\n    print(end=line, flush=True)\n"
    (package / "ahead.py").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(ahead, "_ROOT", tmp_path)
    compile_ahead("80", "13.0", tmp_path / "cache", 2, Silent())
    assert marker.exists()
