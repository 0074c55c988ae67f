"""Installing the verifier into a clean environment: time, size, packages; torch and CUDA must not be among them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import venv
from pathlib import Path

from bench.process import ROOT
from bench.rows import Row

NEVER = ("torch", "nvidia", "cupy", "cuda", "triton")


def rows() -> list[Row]:
    """`pip install .` with warm or cold caches, as the machine happens to have them."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python")
        before = _size(Path(folder))
        start = time.perf_counter()
        subprocess.run([python, "-m", "pip", "install", "-qq", str(ROOT)], check=True)
        seconds = time.perf_counter() - start
        listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
        size = _size(Path(folder)) - before
    names = [str(package["name"]).lower() for package in json.loads(listed.stdout)]
    unwanted = [name for name in names if name.startswith(NEVER)]
    bar = "no torch, no CUDA"
    return [
        Row("`pip install .`", seconds, "s"),
        Row("its size on disk", size / 1e6, "MB", f"{len(names)} packages with pip", bar, not unwanted),
    ]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
