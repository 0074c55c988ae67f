"""The README says what the program says: help texts, exit codes, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = r"<!-- {}: auditkit ?(.*?) -->\n```text\n(.*?)```"
HELP = re.findall(BLOCK.format("help"), README, flags=re.DOTALL)
OUTPUT = re.findall(BLOCK.format("output"), README, flags=re.DOTALL)
DEVICE = re.compile(r"^device .*$", flags=re.MULTILINE)  # the one line that depends on the machine
WIDTH = 100  # columns


def shown(arguments: str) -> str:
    """What the program prints on stdout, without colour."""
    env = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    env.pop("FORCE_COLOR", None)
    command = [sys.executable, "-m", "auditkit", *arguments.split()]
    done = subprocess.run(command, capture_output=True, env=env, cwd=ROOT, encoding="utf-8", check=True)
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def test_help_blocks_were_found() -> None:
    assert [arguments for arguments, _ in HELP] == ["--help", "verify --help"]


@pytest.mark.parametrize(("arguments", "block"), HELP, ids=[arguments for arguments, _ in HELP])
def test_help_is_what_the_program_prints(arguments: str, block: str) -> None:
    assert block.strip() == shown(arguments).strip(), f"put the output of `auditkit {arguments}` into README.md"


@pytest.mark.parametrize(("arguments", "block"), OUTPUT, ids=[arguments for arguments, _ in OUTPUT])
def test_output_is_what_the_program_prints(arguments: str, block: str) -> None:
    got, wanted = (DEVICE.sub("device", text).strip() for text in (shown(arguments), block))
    assert got == wanted, f"put the output of `auditkit {arguments}` into README.md"


def test_an_output_was_found() -> None:
    assert [arguments for arguments, _ in OUTPUT] == ["verify --step 48213"]


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, encoding="utf-8", check=True)
    assert json.loads(done.stdout)["verdict"] == "MATCH"


def test_the_commands_of_verify_together_work_in_order(tmp_path: Path) -> None:
    section = README.partition("## Verify together")[2]
    (block,) = re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == ["key", "next", "verify", "attest", "coverage"]
    folders = {"AUDITKIT_CACHE": str(tmp_path / "cache"), "AUDITKIT_DATA": str(tmp_path / "data")}
    env = os.environ | folders | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    desk = tmp_path / "desk"
    desk.mkdir()
    said = {}
    for command in commands:
        _, name, *words = command.split()
        found = [sorted(path.name for path in desk.glob(word)) if "*" in word else [word] for word in words]
        run = [] if name == "key" else ["--run", "sotu-tiny"]  # the bundled run that a test can afford
        line = [sys.executable, "-m", "auditkit", name, *(word for each in found for word in each), *run]
        done = subprocess.run(line, capture_output=True, env=env, cwd=desk, encoding="utf-8", check=False)
        # `coverage` of a few steps says that the rest of the run is open
        assert done.returncode == (9 if name == "coverage" else 0), f"{command}\n{done.stdout}\n{done.stderr}"
        said[name] = done.stdout
    assert len(said["next"].split()) == 5
    assert said["attest"].count("rechecked: MATCH") == 3
    assert (desk / "map.html").stat().st_size > 0


def test_exit_codes_are_all_explained() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", README, flags=re.MULTILINE))
    assert rows == {str(v.code): v.name for v in Verdict if v not in (Verdict.INTERNAL, Verdict.INTERRUPTED)}
    assert f"| {Verdict.INTERNAL.code}, {Verdict.INTERRUPTED.code}, " in README


@pytest.mark.parametrize("document", sorted(path.name for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]))
def test_links_lead_to_files(document: str) -> None:
    path = ROOT / document if (ROOT / document).exists() else ROOT / "docs" / document
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]
