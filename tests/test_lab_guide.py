"""The commands of the lab's guide do what the page says, in their order, on a machine without a GPU."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "lab-guide.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    (block,) = re.findall(r"<!-- commands -->\n```sh\n(.*?)```", GUIDE, flags=re.DOTALL)
    return [line.partition("   #")[0].strip() for line in block.splitlines()]


def as_run_here(command: str) -> list[str]:
    """The same command with this Python; torchrun is a module of torch."""
    words = shlex.split(command)
    if words[0] == "auditkit":
        return [sys.executable, "-m", *words]
    if words[0] == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are tested on Linux")
@pytest.mark.optional("the jobs on Linux run the commands of the guide")
def test_the_commands_work_in_order(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    speech = "We the people of the United States, in order to form a more perfect union, establish justice. "
    for number in range(4):
        (texts / f"{number}.txt").write_text("".join(f"{n * n} {speech}" for n in range(number, 160)), "utf-8")
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    folders = {"AUDITKIT_CACHE": str(tmp_path / "cache"), "AUDITKIT_DATA": str(tmp_path / "data")}
    env = os.environ | folders | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    set_up, *rest = commands()
    assert set_up.startswith("sh tools/venv.sh dev")
    said = {}
    for command in rest:
        done = subprocess.run(
            as_run_here(command), capture_output=True, env=env, cwd=tmp_path, encoding="utf-8", timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said[command] = done.stdout
    shown = said[rest[-1]]
    assert re.search(r"auditkit-run/\w+\+[0-9a-f]{8}\+\S+", shown)
    assert re.search(r"\b6\b", shown)  # entries of the log: what resume trained is published as well
    assert any("MATCH" in text for text in said.values())
