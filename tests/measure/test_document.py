"""The table of docs/benchmarks.md: a part that was not measured stays as it is, with its date and machine."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import document
from bench.document import Part
from bench.rows import Row
from tests.conftest import ROOT

OLD = {
    # Rows of two parts have the same name.
    "command": [Row("`auditkit --help`", 0.1, "s", bar="under 0.3 s", passes=True), Row("its peak memory", 98, "MB")],
    "state": [Row("digest", 417, "MB/s", "1.00 GB"), Row("its peak memory", 66, "MB", bar="under 300 MB", passes=True)],
}
PARTS = document.measured(OLD, {"processor": "old", "cores": "2"}, "2026-01-02")
ORDER = ("command", "install", "state")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A document with words around the table of two parts."""
    (tmp_path / "docs").mkdir()
    made = tmp_path / "docs" / "benchmarks.md"
    made.write_text(f"# Figures\n\n{document.BEGIN}{table(PARTS)}{document.END}\n\nMore.\n", encoding="utf-8")
    return made


def table(parts: dict[str, Part]) -> str:
    return "".join(document.lines(parts))


def test_only_the_parts_that_were_measured_are_replaced(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "machine", lambda: {"processor": "new"})
    for part in ("install", "state"):
        found = [Row(f"{part} anew", 3, "s"), Row("its peak memory", 70, "MB")]
        monkeypatch.setattr(importlib.import_module(f"bench.{part}"), "rows", lambda found=found: found)
    monkeypatch.setattr("sys.argv", ["bench", "state", "install", "--write"])
    before = page.read_text(encoding="utf-8")
    assert command.main() == 0
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| command ")] == list(PARTS["command"].lines)
    assert "* command: 2026-01-02; processor old, cores 2." in lines
    assert [line for line in lines if line.startswith("* install, state: ") and line.endswith("; processor new.")]
    assert [line.split(" | ")[:3] for line in lines if line.startswith(("| state ", "| install "))] == [
        ["| install", "install anew", "3 s"],
        ["| install", "its peak memory", "70 MB"],
        ["| state", "state anew", "3 s"],
        ["| state", "its peak memory", "70 MB"],
    ]
    assert lines[:3] == before.splitlines()[:3] and lines[-3:] == before.splitlines()[-3:]


def test_the_same_parts_again_change_nothing(page: Path) -> None:
    before = page.read_bytes()
    document.write(page, {"state": PARTS["state"]}, ORDER)
    assert page.read_bytes() == before


def test_the_table_of_this_project_is_read_and_printed_back() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    between = text.partition(document.BEGIN)[2].partition(document.END)[0]
    parts = document.parse(between)
    assert list(parts) == [part for part in (*command.PARTS, *command.MORE) if part in parts]
    assert table(parts) == between
    assert all(part.lines for part in parts.values())


@pytest.mark.parametrize(
    "text",
    ["", "words\n", "| command | a | 1 s |  |  |\n", table(PARTS) + "more\n", table(PARTS).replace("* ", "- ", 1)],
)
def test_what_is_no_table_of_parts_is_left_as_it_is(text: str, page: Path) -> None:
    page.write_text(f"{document.BEGIN}{text}{document.END}\n", encoding="utf-8")
    before = page.read_bytes()
    with pytest.raises(ValueError, match="no table of parts"):
        document.write(page, PARTS, ORDER)
    assert page.read_bytes() == before


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("words\n", encoding="utf-8")
    with pytest.raises(ValueError, match="markers"):
        document.write(tmp_path / "other.md", PARTS, ORDER)
