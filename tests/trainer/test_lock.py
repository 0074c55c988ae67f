"""One trainer in a work folder, also after the one before was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.errors import Unavailable, UsageError
from tests.trainer.tiny import ROOT
from trainer.lock import hold

HOLD = """
import sys, time
from pathlib import Path
from trainer.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    child = _holder(tmp_path)
    try:
        with pytest.raises(UsageError, match="another trainer is at work"), hold(tmp_path):
            pass
    finally:
        child.kill()  # SIGKILL: it cannot clean up
        child.communicate()
    assert child.returncode in (-getattr(signal, "SIGKILL", 9), 1)
    with hold(tmp_path):
        pass


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path):
        raise RuntimeError
    with hold(tmp_path):
        pass


def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="missing"), hold(tmp_path / "missing"):
        pass
