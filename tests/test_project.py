"""What the project promises about itself: light dependencies, the same Pythons everywhere, one default step."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import auditkit

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

# What an installed verifier does not have.
ABSENT = (
    *("torch", "cupy", "tokenizers", "matplotlib", "safetensors", "trainer", "pytest", "hypothesis"),
    *("starlette", "uvicorn", "psycopg"),
)
# What only `auditkit registry serve` imports, and a database elsewhere: the extra `registry`.
_SERVICE = "answers app bodies guard leftover postgres protocol routes serve"
SERVICE = {f"auditkit.registry.{name}" for name in _SERVICE.split()}
# What `auditkit bench` runs in a process of its own where torch is installed.
WITH_TORCH = {"auditkit.measure.torch_model", "auditkit.measure.torch_side"}


def test_the_verifier_depends_on_nothing_heavy() -> None:
    names = {re.split(r"[<>=\[ ]", requirement)[0] for requirement in PROJECT["dependencies"]}
    light = {"blake3", "httpx", "numpy", "platformdirs", "rfc8785", "rich", "threadpoolctl", "typer", "zstandard"}
    assert names <= light | {"cryptography", "securesystemslib"}


def test_every_module_of_the_verifier_can_be_imported_without_the_extras() -> None:
    modules = [m.name for m in pkgutil.walk_packages(auditkit.__path__, "auditkit.") if "kernels" not in m.name]
    modules.remove("auditkit.__main__")
    assert set(modules) > SERVICE | WITH_TORCH
    modules = [name for name in modules if name not in SERVICE | WITH_TORCH]
    assert len(modules) > 80
    block = f"sys.modules.update(dict.fromkeys({ABSENT}))"
    code = f"import importlib, sys; {block}; [*map(importlib.import_module, {modules})]"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_ci_runs_every_python_that_is_promised() -> None:
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    matrix = re.search(r"python: \[(.*)\]", WORKFLOW)
    assert matrix
    assert [text.strip(' "') for text in matrix[1].split(",")] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"
    assert "[ubuntu-latest, macos-latest, windows-latest]" in WORKFLOW


def test_makefile_readme_and_ci_verify_the_same_step_of_the_same_run() -> None:
    run, step = re.findall(r"^(?:RUN|STEP) \?= (\S+)$", MAKEFILE, flags=re.MULTILINE)
    assert f"manifests/{run} --step {step}" in WORKFLOW
    assert f"verifies step {int(step):,} of the bundled run" in README
    assert (ROOT / "manifests" / run / "run.json").is_file()


def test_make_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    described = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert phony
    assert targets == described == set(phony[1].split())
