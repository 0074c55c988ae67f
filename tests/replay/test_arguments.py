"""The Python API: paths are taken as they are, wrong types refused in words, errors caught by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit import errors
from auditkit.replay.arguments import folder, place
from auditkit.verdict import Verdict

WRONG: list[tuple[str, Any, str]] = [
    ("run", 3, "run must be text or a path, not 3"),
    ("run", b"x", "run must be text or a path, not b'x'"),
    ("artifacts", 5, "artifacts must be text or a path, not 5"),
    ("device", None, "device must be text, not None"),
    ("threads", "x", "threads must be an integer, not 'x'"),
    ("threads", True, "threads must be an integer, not True"),
    ("offline", "no", "offline must be True or False, not 'no'"),
    ("cache_dir", 3, "cache_dir must be text or a path, not 3"),
    ("cache_dir", "a\0b", "cache_dir: an impossible name"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_types_are_usage_errors(name: str, value: Any, message: str) -> None:
    with pytest.raises(auditkit.UsageError) as caught:
        auditkit.verify(**{"run": "sotu-tiny", "step": 0, name: value})
    assert caught.value.message == message


@pytest.mark.parametrize("steps", [5, 1.5, b"1:2", (1,), (1, 2, 3), ["a", "b"], {1, 2}])
def test_steps_of_a_wrong_type_are_usage_errors(steps: Any) -> None:
    with pytest.raises(auditkit.UsageError, match="steps"):
        auditkit.verify("sotu-tiny", steps=steps)


def test_paths_are_accepted(honest: Path, tmp_path: Path) -> None:
    report = auditkit.verify(run=honest, artifacts=honest, cache_dir=str(tmp_path), step=0)
    assert report.verdict is Verdict.MATCH
    assert place("run", Path("a")) == "a" and place("run", None) is None
    assert folder("cache_dir", "a") == Path("a") and folder("cache_dir", None) is None


ATTESTING = "Attester keep load_private load_public open_run read_attestation recheck".split()


def test_every_error_is_exported_and_loads_no_numpy() -> None:
    names = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    for name in names:
        assert getattr(auditkit, name) is getattr(errors, name)
    assert set(auditkit.__all__) == {*names, "Report", "Verdict", "verify", *ATTESTING}
    program = "import sys, auditkit; auditkit.UsageError, auditkit.Verdict; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="nothing"):
        _ = auditkit.nothing
