"""tools/venv.sh: an install by hand into .venv that shadows this checkout is noticed and repaired."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer import tiny

# All but the download is real: an install leaves the file that pip leaves for an editable one, and a line in a log.
PYTHON = """#!/bin/sh
case "$2 $3" in
    "pip install")
        echo "$*" >>pip.log
        rm -rf .venv/lib/python3.0/site-packages/auditkit
        printf '%s' "$PWD" >.venv/lib/python3.0/site-packages/_editable_impl_auditkit_verifier.pth ;;
    *) exec '{python}' "$@" ;;
esac
"""


@pytest.mark.optional("a POSIX shell script, for make")
@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell script, for make")
@pytest.mark.parametrize("wanted", ["verify", "dev"])
def test_a_copy_in_place_of_the_checkout_is_replaced_once(wanted: str, tmp_path: Path) -> None:
    packages = tmp_path / ".venv" / "lib" / "python3.0" / "site-packages"
    for folder in (packages, tmp_path / "tools", tmp_path / ".venv" / "bin"):
        folder.mkdir(parents=True)
    shutil.copy(tiny.ROOT / "tools" / "venv.sh", tmp_path / "tools")
    shutil.copy(tiny.ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON.format(python=sys.executable), encoding="utf-8", newline="\n")
    python.chmod(0o755)

    def installs() -> int:
        subprocess.run(["sh", "tools/venv.sh", wanted], cwd=tmp_path, check=True, capture_output=True, timeout=60)
        return (tmp_path / "pip.log").read_text(encoding="utf-8").count("--editable")

    assert [installs(), installs()] == [1, 1]
    (packages / "_editable_impl_auditkit_verifier.pth").unlink()
    (packages / "auditkit").mkdir()
    (packages / "auditkit" / "__init__.py").touch()
    assert [installs(), installs()] == [2, 2]
    (packages / "_editable_impl_auditkit_verifier.pth").write_text("/another/clone", encoding="utf-8")
    assert [installs(), installs()] == [3, 3]
