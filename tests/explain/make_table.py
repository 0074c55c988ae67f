"""Writes the table of planted faults into docs/explain.md: what each is, and what `explain` says of it.

    python -m tests.explain.make_table

tests/explain/test_faults.py compares every row with what is said now.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from auditkit.explain.findings import Explanation
from auditkit.replay.backend import choose
from tests.explain import planting
from tests.explain.faults import Fault
from tests.explain.planted import FAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explain.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEAD = "| planted fault | state after published | what `explain` says | right |\n|---|---|---|---|\n"


def row(fault: Fault, found: Explanation) -> str:
    """One line of the table."""
    said = found.message.replace("|", "\\|")
    yes = "yes" if planting.right(fault, found) else "no"
    return f"| {fault.name} | {'no' if fault.hidden else 'yes'} | {said} | {yes} |\n"


def main() -> None:
    """Explain every fault and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared, backend = planting.prepare(folder / "prepared"), choose("numpy", 1)
        for number, fault in enumerate(FAULTS):
            (folder / str(number)).mkdir()
            rows.append(row(fault, planting.explained(prepared, fault, folder / str(number), backend)))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text = f"{before}{BEGIN}\n{HEAD}{''.join(rows)}{END}{rest.partition(END)[2]}"
    PAGE.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
