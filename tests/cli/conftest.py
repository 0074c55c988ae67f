"""The command as users run it: in a process of its own, without a network, with a cache of its own.

Most of these processes are forked from one that has imported all (tests/forked.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from auditkit.audit.offline_proof import prove
from auditkit.audit.signed_log import SignedLog
from auditkit.cli.interrupt import Signals
from auditkit.cli.main import run as run_main
from auditkit.replay.run import open_run
from tests import forked
from tests.audit import signed_runs
from tests.conftest import ROOT
from tests.replay.conftest import honest, parts, segmented, stretches

__all__ = ["honest", "parts", "segmented", "stretches"]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


Cli = Callable[..., Done]


@dataclass(frozen=True)
class Signed:
    """A signed run: its folder, the publisher's vkey, and an offline proof of its step 5; or of a later segment."""

    run: Path
    vkey: str
    proof: Path


@pytest.fixture(scope="session")
def signed(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """The honest run with a signed log; do not write into it."""
    folder = tmp_path_factory.mktemp("signed")
    run, proof = signed_runs.sign(signed_runs.copy(honest, folder / "tiny")), folder / "step-5.tlog-proof"
    with open_run(str(run)) as opened:
        proof.write_bytes(prove(SignedLog(data=folder / "data").open(opened), 5).encode())
    return Signed(run, signed_runs.key_of(run).text, proof)


@pytest.fixture(scope="session")
def segments(segmented: Path, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """The run of several segments with a signed log, and a proof of its last one; do not write into it."""
    folder = tmp_path_factory.mktemp("segments")
    run, proof = signed_runs.sign(signed_runs.copy(segmented, folder / "tiny")), folder / "segment-9.tlog-proof"
    with open_run(str(run)) as opened:
        proof.write_bytes(prove(SignedLog(data=folder / "data").open(opened), 9, segment=True).encode())
    return Signed(run, signed_runs.key_of(run).text, proof)


def environment(cache: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command under test; the network guard comes with PYTHONPATH (tests/conftest.py)."""
    dropped = {"NO_COLOR", "FORCE_COLOR", "AUDITKIT_DEBUG", "COLUMNS", "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {
        **kept,
        "PYTHONPATH": path,
        "AUDITKIT_CACHE": str(cache),
        "AUDITKIT_DATA": str(cache.parent / "data"),
        "COLUMNS": "100",
        "PYTHONUTF8": "1",
        **(extra or {}),
    }


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `auditkit ARGUMENTS` in a process of its own; `alone` or with `env` in one that had imported nothing."""

    def command(*arguments: object, env: Mapping[str, str] | None = None, alone: bool = False) -> Done:
        if not alone and env is None:
            words, own = list(map(str, arguments)), environment(tmp_path / "cache")
            done = forked.run(forked.AUDITKIT, words, cwd=tmp_path, env=own)
            return Done(done.returncode, done.stdout, done.stderr)
        found = subprocess.run(
            [sys.executable, "-m", "auditkit", *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            env=environment(tmp_path / "cache", env),
            cwd=tmp_path,
            timeout=120,
            check=False,
        )
        return Done(found.returncode, found.stdout, found.stderr)

    return command


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `auditkit ARGUMENTS` in this process, which saves the start of an interpreter."""
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))

    def command(*arguments: object) -> Done:
        capsys.readouterr()
        code = run_main([str(argument) for argument in arguments], Signals())
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return command
