"""Train a tiny run with a planted fault, publish it signed, and explain the step of the fault."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

from auditkit.explain.explain import explain
from auditkit.explain.findings import Explanation
from auditkit.explain.subject import reach
from auditkit.explain.tracing import record
from auditkit.formats.recipe import Recipe
from auditkit.formats.trace import Trace
from auditkit.replay.backend import Backend, choose
from auditkit.replay.run import open_run
from auditkit.store.progress import Silent
from auditkit.trust.keys import PrivateKey, save_private
from tests.explain.faults import STEP, Fault, Now, planted
from tests.trainer import tiny
from trainer import cli, recipe_toml
from trainer.log import read_rows

KEY = PrivateKey(b"publisher of the planted faults!")
STEPS = 8
MORE = ["--threads", "1", "--state-every", "1", "--device", "numpy"]  # whose ops the faults change
CHANGES = {
    "num_layers = 1": "num_layers = 2",
    "clip_norm = 1.0": "clip_norm = 0.5",
    "sequences = 3\n": "sequences = 6\n",
    "total_steps = 24": f"total_steps = {STEPS}",
    "warmup_steps = 5": "warmup_steps = 2",
}


def prepare(folder: Path) -> Path:
    """A work folder with an honest run up to the step before that of the faults, its recipe and a key beside it."""
    work = tiny.prepare(folder)
    text = tiny.RECIPE
    for old, new in CHANGES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (work / "recipe.toml").write_text(text, encoding="utf-8", newline="\n")
    save_private(folder / "key.pem", KEY)
    shutil.copytree(work, folder / "untrained")
    assert cli.main(["run", str(work / "recipe.toml"), str(work), "--steps", str(STEP - 1), *MORE]) == 0
    return work


def train(prepared: Path, fault: Fault, folder: Path) -> tuple[Path, Trace | None]:
    """The published run in which a fault was planted, and the publisher's trace of the step where one is asked for."""
    source = prepared.parent / "untrained" if fault.at_start else prepared
    work, out = Path(shutil.copytree(source, folder / "work")), folder / "run"
    recipe: Recipe = recipe_toml.load(work / "recipe.toml")
    steps, states = (STEP + 2, f"{STEP}") if fault.hidden else (STEP + 1, f"{STEP},{STEP + 1}")
    now: list[Now] = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with planted(fault, recipe, now):
            if fault.at_start:
                assert cli.main(["run", str(work / "recipe.toml"), str(work), "--steps", str(steps), *MORE]) == 0
            else:
                assert (
                    cli.main(["resume", str(work), "--steps", str(steps), "--threads", "1", "--device", "numpy"]) == 0
                )
        words = ["--name", "spoilt", "--log-key", str(prepared.parent / "key.pem"), "--states", f"{STEP - 1},{states}"]
        with fault.publish(read_rows(work, steps)):
            assert cli.main(["publish", str(work), str(out), *words]) == 0
    return out, _trace(out, fault, now[0]) if fault.op else None


def _trace(run: Path, fault: Fault, now: Now) -> Trace:
    """What the publisher's program gives, the fault still in it."""
    backend = choose("numpy", 1)
    with open_run(str(run)) as opened:
        start = reach(opened, STEP, backend, Silent())
    with fault.plant(now):
        return record(start, backend)


def explained(prepared: Path, fault: Fault, folder: Path, backend: Backend) -> Explanation:
    """What is said of the step of a fault."""
    run, trace = train(prepared, fault, folder)
    step = 0 if fault.at_start else STEP
    return explain(run, step=step, trace=trace, backend=backend, cache_dir=folder / "cache", quick=bool(trace))


def right(fault: Fault, found: Explanation) -> bool:
    """Whether an explanation names the fault: its cause, confirmed, or where it cannot be known its first quantity."""
    if fault.key:
        said = "; ".join(cause.words for cause in found.causes)
        named = {cause.key for cause in found.causes} == {fault.key} and found.confirmed
    else:
        said = found.message
        named = not found.causes and not found.confirmed
    op = found.parting.describe() if found.parting else ""
    return named and all(word in said for word in fault.words) and fault.op in op
