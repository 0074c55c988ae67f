"""Fetch, unpack and digest a state of 1 GB from a server on this machine, in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.formats.state import DOCUMENT_FILE, INDEX_FILE, StateDocument, StateIndex
from auditkit.model.params import parameter_table
from auditkit.model.state import State, document
from auditkit.store import Store, locate
from auditkit.store.unpack import check_tensors
from bench.process import ROOT, Measured, python
from bench.rows import Row
from trainer.recipe_toml import load
from trainer.state_files import write_state

RATE = 300.0  # MB/s of tensor bytes
MEMORY = 300.0  # MB


def rows() -> list[Row]:
    """Rate and peak memory, from a cold cache."""
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "served"
        # Not here: a process begins with the peak of the one that started it (getrusage(2)).
        checked(python("-m", "bench.state", "write", str(served / "state")))
        with server(served) as url:
            command = ("fetch", url, str(served / "state"), str(Path(folder) / "cache"))
            run = checked(python("-m", "bench.state", *command))
    found = json.loads(run.stdout)
    rate = found["bytes"] / found["seconds"] / 1e6
    size = f"{found['bytes'] / 1e9:.2f} GB of tensors, {found['fetched'] / 1e9:.2f} GB fetched"
    rows = [Row("fetch, unpack and digest a state", rate, "MB/s", size, f"{RATE:g} MB/s or more", rate >= RATE)]
    if run.peak_bytes is not None:
        peak = run.peak_bytes / 1e6
        rows.append(Row("its peak memory", peak, "MB", "whole process", f"under {MEMORY:g} MB", peak < MEMORY))
    return rows


def checked(run: Measured) -> Measured:
    """The finished run; RuntimeError with its last words when it failed."""
    if run.code != 0:
        raise RuntimeError(f"ended with code {run.code}: {run.stderr[-500:]}")
    return run


def recipe() -> Recipe:
    """A model of 83 million parameters: 1 GB with both moments."""
    base = load(ROOT / "trainer" / "recipes" / "sotu-tiny.toml")
    sizes = {"vocab_size": 16384, "hidden_size": 768, "num_layers": 10, "num_heads": 12, "num_kv_heads": 6}
    model = dataclasses.replace(base.model, **sizes, head_dim=64, ffn_size=2304, context_length=256)
    return dataclasses.replace(base, model=model)


def write(folder: Path) -> None:
    """Write a state whose numbers are as hard to compress as trained ones: normal, in the sizes that occur."""
    random, arrays = np.random.default_rng(0), {}
    for role, size in (("param", 0.02), ("adam_m", 1e-4), ("adam_v", 1e-4)):
        specs = parameter_table(recipe().model)
        drawn = {s.name: random.standard_normal(s.shape, dtype=np.float32) * np.float32(size) for s in specs}
        arrays[role] = {name: array * array for name, array in drawn.items()} if role == "adam_v" else drawn
    state = State(1, arrays["param"], arrays["adam_m"], arrays["adam_v"])
    folder.parent.mkdir(parents=True)
    write_state(folder, state, document(state, recipe()))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve a folder from another process; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.server", str(folder)], stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output")
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def measure(url: str, folder: Path, cache: Path) -> dict[str, float]:
    """Fetch the shards into an empty cache and check every tensor."""
    index = StateIndex.parse((folder / INDEX_FILE).read_bytes())
    state = StateDocument.parse((folder / DOCUMENT_FILE).read_bytes())
    start = time.perf_counter()
    with Store(locate(url), cache_dir=cache) as store:
        shards = {s.path: store.file(f"{folder.name}/{s.path}", s.size, s.digest) for s in index.files}
    check_tensors(shards, state, index)
    seconds = time.perf_counter() - start
    return {"bytes": state.nbytes, "fetched": sum(s.size for s in index.files), "seconds": seconds}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))))
