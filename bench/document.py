"""The table of docs/benchmarks.md, part by part: what was not measured stays, with its date and machine.

Between the markers stand the parts with when and where they were measured, parts measured together in one line, then a
table whose first column names a row's part:

    * command, install: 2026-01-02; processor ..., cores 2.

    | part | measurement | result | bar | |
    |---|---|---|---|---|
    | command | `auditkit --help` | 0.1 s | under 0.3 s | ok |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Row, head, line

BEGIN, END = "<!-- bench: begin -->\n", "<!-- bench: end -->"
_COLUMNS = ["| part | measurement | result | bar | |", "|---|---|---|---|---|"]


@dataclass(frozen=True)
class Part:
    """When and where a part was measured, in words, and its rows as lines of Markdown."""

    head: str
    lines: tuple[str, ...]


def measured(rows: Mapping[str, Sequence[Row]], where: Mapping[str, str], date: str) -> dict[str, Part]:
    """The parts of one measurement, by name."""
    return {part: Part(head(where, date), tuple(line(row, part) for row in found)) for part, found in rows.items()}


def parse(text: str) -> dict[str, Part]:
    """The parts of what stands between the markers; ValueError for anything else."""
    heads: dict[str, str] = {}
    rows: dict[str, list[str]] = {}
    for row in text.splitlines():
        if row.startswith("* "):
            names, _, words = row[2:].partition(": ")
            heads |= dict.fromkeys(names.split(", "), words)
            rows |= {name: [] for name in names.split(", ")}
        elif row and row not in _COLUMNS:
            rows.get(row[2:].partition(" | ")[0], []).append(row)
    found = {name: Part(heads[name], tuple(rows[name])) for name in heads}
    if "".join(lines(found)) != text:
        raise ValueError("what stands between the markers is no table of parts")
    return found


def write(document: Path, new: Mapping[str, Part], order: Sequence[str]) -> None:
    """Put new parts in place of those of their names between the markers, in this order. ValueError: no markers, or
    something else than parts between them.
    """
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document.name} lacks the markers {BEGIN.strip()} and {END}")
    parts = {**parse(table), **new}
    ordered = {name: parts[name] for name in (*order, *parts) if name in parts}
    document.write_text(f"{before}{begin}{''.join(lines(ordered))}{end}{after}", encoding="utf-8", newline="\n")


def lines(parts: Mapping[str, Part]) -> Iterator[str]:
    """The table of parts, as parse takes it."""
    for words in dict.fromkeys(part.head for part in parts.values()):
        yield f"* {', '.join(name for name, part in parts.items() if part.head == words)}: {words}\n"
    yield "\n"
    for row in (*_COLUMNS, *(row for part in parts.values() for row in part.lines)):
        yield f"{row}\n"
