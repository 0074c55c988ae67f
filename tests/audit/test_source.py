"""The digest of the verifier's source: one for a checkout and for an installation, another for any change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from auditkit.audit.source import SUFFIXES, source_files
from tests.conftest import ROOT

ASK = "from auditkit.audit.source import source_digest; print(source_digest())"


def digest_at(folder: Path) -> str:
    """What the package in `folder` says of itself, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", f"import auditkit; print(auditkit.__file__); {ASK}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, cwd=folder, check=True)
    place, digest = done.stdout.split("\n")[:2]
    assert Path(place).resolve().is_relative_to(folder.resolve())
    return digest


def copied(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as they lie in the repository, copied once: nobody edits them while a test runs."""
    folder = tmp_path_factory.mktemp("original")
    for name in ("auditkit", "cuda"):
        copied(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def digest(original: Path) -> str:
    return digest_at(original)


@pytest.fixture
def checkout(original: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    copied(original, tmp_path / "checkout")
    return tmp_path / "checkout"


@pytest.fixture
def installed(original: Path, tmp_path: Path) -> Path:
    """The same as a wheel installs them (pyproject.toml, force-include); tools/check_wheel.py asks a real wheel."""
    copied(original / "auditkit", tmp_path / "site" / "auditkit")
    copied(original / "cuda", tmp_path / "site" / "auditkit" / "kernels" / "cuda_source")
    return tmp_path / "site"


def test_a_checkout_and_an_installation_have_the_same(checkout: Path, installed: Path, digest: str) -> None:
    assert digest_at(checkout) == digest_at(installed) == digest


def test_the_digest_is_that_of_the_written_rule(original: Path, digest: str) -> None:
    """Made again by the rule in words, with the package `blake3` and `json` alone."""
    found = {}
    for folder in ("auditkit", "cuda"):
        for path in (original / folder).rglob("*"):
            parts = path.relative_to(original).parts
            if path.suffix in SUFFIXES and path.is_file() and not any(part.startswith(".") for part in parts):
                found["/".join(parts)] = blake3(path.read_bytes()).hexdigest()
    files = [{"digest": found[path], "path": path} for path in sorted(found)]
    text = json.dumps({"files": files, "format": "auditkit/source/v1"}, separators=(",", ":"), sort_keys=True)
    assert digest == blake3(text.encode(), derive_key_context="auditkit source root v1").hexdigest()


def test_it_covers_program_specification_answers_and_kernels() -> None:
    files = set(source_files())
    assert {
        "auditkit/cli/main.py",
        "auditkit/numerics/SPEC.md",
        "auditkit/numerics/known_answers.json",
        "cuda/common.cuh",
        "cuda/blake3.cu",
    } <= files
    assert not [path for path in files if "__pycache__" in path or "cuda_source" in path]


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "a byte of a module": lambda folder: append(folder / "auditkit" / "model" / "step.py"),
    "a byte of a kernel": lambda folder: append(folder / "cuda" / "adamw.cu"),
    "a byte of the specification": lambda folder: append(folder / "auditkit" / "numerics" / "SPEC.md"),
    "a byte of the known answers": lambda folder: append(folder / "auditkit" / "numerics" / "known_answers.json"),
    "a new module": lambda folder: append(folder / "auditkit" / "numerics" / "extra.py"),
    "a lost module": lambda folder: (folder / "auditkit" / "replay" / "diff.py").unlink(),
    "a lost header": lambda folder: (folder / "cuda" / "quad.cuh").unlink(),
    "another name": lambda folder: (folder / "cuda" / "exp.cu").rename(folder / "cuda" / "exq.cu"),
}


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_changes_it(checkout: Path, digest: str, change: Change) -> None:
    change(checkout)
    assert digest_at(checkout) != digest


def test_line_ends_and_other_files_do_not(checkout: Path, digest: str) -> None:
    for path in (checkout / "auditkit" / "model" / "step.py", checkout / "cuda" / "adamw.cu"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (checkout / "auditkit" / "__pycache__").mkdir()
    (checkout / "auditkit" / "__pycache__" / "step.cpython-311.pyc").write_bytes(b"x")
    (checkout / "auditkit" / "._step.py").write_bytes(b"a file manager's")
    (checkout / "auditkit" / ".cache").mkdir()
    (checkout / "auditkit" / ".cache" / "x.py").write_bytes(b"x")
    (checkout / "cuda" / "notes.txt~").write_bytes(b"an editor's")
    assert digest_at(checkout) == digest


def test_an_installation_that_lost_its_kernels_says_so(installed: Path) -> None:
    shutil.rmtree(installed / "auditkit" / "kernels" / "cuda_source")
    code = (
        "from auditkit.audit.source import source_digest\n"
        "from auditkit.errors import Unsupported\n"
        "try:\n    source_digest()\n"
        "except Unsupported as error:\n    print(error.message, '|', error.hint)"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
    assert "the CUDA sources are missing from this installation | reinstall" in done.stdout
