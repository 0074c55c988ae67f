"""docs/cases.md: every case has a reason or tests, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
NAMED = sorted(set(re.findall(r"`((?:tests|tools)/[a-z0-9_/]+\.(?:py|txt))(?:::(\w+))?`", PAGE)))


def test_every_case_has_one_row() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 72))
    for number, _, holds, shown in ROWS:
        assert holds.strip(" -"), number
        assert "`tests/" in shown or shown.startswith("no test:"), number


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_is_named_is_there(path: str, name: str) -> None:
    file = ROOT / path
    assert file.is_file()
    if name:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
