"""A measurement, and how measurements are written: JSON for machines, a Markdown table for people."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


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


def to_table(rows: list[Row], where: dict[str, str], date: str) -> str:
    """All measurements as a Markdown table with the machine above it."""
    head = ", ".join(f"{name} {value}" for name, value in where.items())
    lines = [f"{date}; {head}.", "", "| measurement | result | bar | |", "|---|---|---|---|"]
    for row in rows:
        state = {True: "ok", False: "**missed**", None: ""}[row.passes]
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| {row.name} | {shown(row.value)} {row.unit}{note} | {row.bar} | {state} |")
    return "\n".join(lines) + "\n"


def shown(value: float) -> str:
    """Three significant digits, or the whole number if it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def write_between(document: Path, table: str) -> None:
    """Replace what stands between the markers of a document; ValueError when they are missing."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document.name} lacks the markers {BEGIN} and {END}")
    document.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8", newline="\n")
