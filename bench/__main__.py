"""`python -m bench [PART ...]`: measure, print the table, write build/bench.json, and with --write docs/benchmarks.md.

There, only the rows of the parts that were measured are replaced.

Exit code 1 when a bar was missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys

from bench import document
from bench.process import ROOT
from bench.rows import Row, machine, to_json, to_table

PARTS = ("command", "install", "replay", "state")
MORE = ("publishing", "ranks")  # when asked for: they need a quiet machine, and torch


def main() -> int:
    """Measure the parts asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS, *MORE], help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help="write the rows into docs/benchmarks.md")
    arguments = parser.parse_args()
    parts: dict[str, list[Row]] = {}
    for part in arguments.parts or PARTS:
        print(f"measures {part} ...", file=sys.stderr, flush=True)
        parts[part] = importlib.import_module(f"bench.{part}").rows()
    rows = [row for found in parts.values() for row in found]
    where, date = machine(), datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    print(to_table(rows, where, date))
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "bench.json").write_text(to_json(rows, where, date), encoding="utf-8", newline="\n")
    if arguments.write:
        new = document.measured(parts, where, date)
        document.write(ROOT / "docs" / "benchmarks.md", new, (*PARTS, *MORE))
    return 1 if any(row.passes is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
