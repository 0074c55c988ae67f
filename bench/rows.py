"""A measurement, and how measurements are written: JSON for machines, a Markdown table for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measurement; `bar` says in words what it must reach and `passes` whether it did (None: only reported)."""

    name: str
    value: float
    unit: str
    note: str = ""
    bar: str = ""
    passes: bool | None = None


def machine() -> dict[str, str]:
    """What the figures depend on: processor, cores, memory, system, Python, NumPy and its BLAS."""
    import numpy as np
    from threadpoolctl import threadpool_info

    blas = [f"{lib['internal_api']} {lib['version']} ({lib.get('architecture', '')})" for lib in threadpool_info()]
    load = f"{os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else "unknown"  # Windows has none
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load of the last 5 minutes": load,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": ", ".join(sorted(set(blas))) or "unknown",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def to_json(rows: list[Row], where: dict[str, str], date: str) -> str:
    """All measurements as one JSON document."""
    return json.dumps({"date": date, "machine": where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def to_table(rows: Sequence[Row], where: Mapping[str, str], date: str) -> str:
    """All measurements as a Markdown table with the machine above it."""
    lines = [head(where, date), "", "| measurement | result | bar | |", "|---|---|---|---|", *map(line, rows)]
    return "\n".join(lines) + "\n"


def head(where: Mapping[str, str], date: str) -> str:
    """When and where something was measured, in words."""
    return f"{date}; {', '.join(f'{name} {value}' for name, value in where.items())}."


def line(row: Row, part: str = "") -> str:
    """A measurement as a line of a Markdown table, the name of its part first where one is given."""
    state = {True: "ok", False: "**missed**", None: ""}[row.passes]
    note = f" ({row.note})" if row.note else ""
    first = f"| {part} " if part else ""
    return f"{first}| {row.name} | {shown(row.value)} {row.unit}{note} | {row.bar} | {state} |"


def shown(value: float) -> str:
    """Three significant digits, or the whole number if it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
