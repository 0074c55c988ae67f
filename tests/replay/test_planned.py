"""Verification under a plan: same verdicts and digests, gone on with after a kill, damage made again, memory kept."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import UsageError
from auditkit.model.params import parameter_table
from auditkit.model.piece_sums import PieceSums
from auditkit.model.plan import Cuts, Plan
from auditkit.model.state import seeded_state, state_digests
from auditkit.replay import arguments, estimate, placing
from auditkit.replay.backend import Backend, choose
from auditkit.replay.layout import Layout
from auditkit.replay.memory import piece_bytes
from auditkit.replay.planned import Planned
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.store.spill import Spill
from auditkit.verdict import Verdict
from tests.conftest import ROOT
from tests.replay import make_run
from tests.replay.make_run import RECIPE, Parts, flip_state, publish

PLANS = {
    "pieces in memory": Plan(True, cuts=Cuts(10, 100, 1)),
    "recomputed, on the disk": Plan(
        True, group=2, recompute=True, cuts=Cuts(7, 100), params="disk", sums="disk", inputs="disk"
    ),
    "sums on the disk": Plan(True, recompute=True, sums="disk"),
}


def follow(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """Let every verification take its steps under this plan."""

    def choose(recipes: Any, limits: Any, *, cuda: bool, threads: int, following: bool) -> Layout:
        return Layout(plan, piece_bytes(recipes[0], plan, cuda, following=following))

    monkeypatch.setattr(placing, "choose_layout", choose)


def spilled(cache: Path) -> list[Path]:
    return [path for path in (cache / "spill").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", PLANS)
def test_every_step_matches(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = auditkit.verify(str(honest), steps="0:8", threads=1)
    follow(monkeypatch, PLANS[name])
    report = auditkit.verify(
        str(honest), steps="0:8", threads=1, cache_dir=tmp_path, work_key=lambda run, step: bytes(32)
    )
    assert report.verdict is Verdict.MATCH
    assert [s.obtained for s in report.steps] == [s.obtained for s in plain.steps]
    assert report.machine["plan"] == PLANS[name].describe()
    assert not spilled(tmp_path)


def test_the_plan_knows_whether_steps_follow_each_other(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    backend = choose("numpy", 1)

    def chosen(recipes: Any, limits: Any, *, following: bool, **_: Any) -> Layout:
        told.append(following)
        return Layout(Plan(), piece_bytes(recipes[0], Plan(True), False))

    monkeypatch.setattr(placing, "choose_layout", chosen)
    monkeypatch.setattr(estimate, "choose_layout", chosen)
    for steps in ("4:5", "0:2"):
        auditkit.verify(str(honest), steps=steps, threads=1, cache_dir=tmp_path)
        with open_run(str(honest), cache_dir=tmp_path) as run:
            estimate.estimate(run, select(steps=steps), backend)
    assert told == [False, False, True, True]


def test_a_state_that_is_gone_on_from_keeps_no_sums(tmp_path: Path) -> None:
    """Whoever holds it would keep them through the next step, which makes others; its tensors can still be read."""
    plan = PLANS["pieces in memory"]
    shapes = {spec.name: spec.shape for spec in parameter_table(RECIPE.model)}
    backend = choose("numpy", 1)
    layout = Layout(plan, piece_bytes(RECIPE, plan, False))
    planned = Planned(backend.ops, 1, "cpu", inner=backend, layout=layout, shapes=shapes, cache=lambda: tmp_path)
    size = (RECIPE.batch.sequences, RECIPE.model.context_length + 1)
    tokens = np.random.default_rng(1).integers(0, RECIPE.model.vocab_size, size)
    state, _ = planned.step(planned.place(seeded_state(RECIPE)), tokens, RECIPE)
    roots = [state_digests(replace(state, found=None), RECIPE).root(1)]
    sums = [found for found in gc.get_objects() if type(found) is PieceSums]  # isinstance would ask lazy modules
    gone = [weakref.ref(found) for found in sums]
    del sums
    placed = planned.place(state)
    gc.collect()
    assert gone and all(found() is None for found in gone)
    roots += [state_digests(replace(found, found=None), RECIPE).root(1) for found in (state, placed)]
    assert len(set(roots)) == 1


def test_segments_match(segmented: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, PLANS["recomputed, on the disk"])
    report = auditkit.verify(str(segmented), steps="8:12", threads=1, cache_dir=tmp_path)
    assert report.verdict is Verdict.MATCH


def test_a_tampered_state_is_a_mismatch_with_its_tensor(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = parts.copy()
    changed.states[5] = flip_state(changed.states[5], "adam_m", "model.layers.1.mlp.up_proj.weight", 7, bit=3)
    folder = publish(changed, tmp_path / "run")
    plain = auditkit.verify(str(folder), step=4, threads=1)
    follow(monkeypatch, PLANS["recomputed, on the disk"])
    report = auditkit.verify(str(folder), step=4, threads=1, cache_dir=tmp_path / "cache")
    assert report.verdict is Verdict.MISMATCH
    assert report.steps[0].tensor == plain.steps[0].tensor is not None
    assert report.steps[0].differences == plain.steps[0].differences
    assert not spilled(tmp_path / "cache")


def test_the_replay_before_a_mismatch_has_the_parameters_once(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, most = [0], [0]

    def gone(size: int) -> None:
        live[0] -= size

    def waiting(self: Backend, array: Any) -> Any:
        made = array.copy()
        live[0] += made.nbytes
        most[0] = max(most[0], live[0])
        weakref.finalize(made, gone, made.nbytes)
        return made

    monkeypatch.setattr(Backend, "waiting", waiting)
    changed = parts.copy()
    changed.states[5] = flip_state(changed.states[5], "adam_m", "model.norm.weight", 3)
    folder, plan = publish(changed, tmp_path / "run"), PLANS["pieces in memory"]
    follow(monkeypatch, plan)
    report = auditkit.verify(str(folder), step=4, device="numpy", threads=1, cache_dir=tmp_path / "cache")
    assert report.verdict is Verdict.MISMATCH
    assert 0 < most[0] <= dict(piece_bytes(RECIPE, plan, False).parts)["parameters"]


def test_a_state_0_that_the_seed_does_not_give(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = parts.copy()
    changed.states[0] = flip_state(changed.states[0], "params", "model.norm.weight", 3)
    folder = publish(changed, tmp_path / "run")
    plain = auditkit.verify(str(folder), step=0, threads=1)
    follow(monkeypatch, PLANS["pieces in memory"])
    report = auditkit.verify(str(folder), step=0, threads=1, cache_dir=tmp_path / "cache")
    assert (report.verdict, report.steps[0].tensor) == (plain.verdict, plain.steps[0].tensor)
    assert report.verdict is Verdict.MISMATCH


def test_damaged_published_bytes_are_a_bad_artifact(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = publish(parts, tmp_path / "run")
    shard = next((folder / "states" / "00000004").glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    follow(monkeypatch, PLANS["pieces in memory"])
    report = auditkit.verify(str(folder), step=4, threads=1, cache_dir=tmp_path / "cache")
    assert report.verdict is Verdict.BAD_ARTIFACT


def test_a_spilled_file_that_is_damaged_is_made_again(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(monkeypatch, PLANS["recomputed, on the disk"])
    put, harmed = Spill.put, []

    def harming(self: Spill, key: str, arrays: Any) -> None:
        put(self, key, arrays)
        if key.startswith("model.layers.0") and not harmed:
            path = max((p for p in self.folder.iterdir()), key=lambda p: int(p.stem))
            data = bytearray(path.read_bytes())
            data[0] ^= 1
            path.write_bytes(data)
            harmed.append(path)

    monkeypatch.setattr(Spill, "put", harming)
    notes = Notes()
    report = auditkit.verify(str(honest), step=4, threads=1, cache_dir=tmp_path, progress=notes)
    assert report.verdict is Verdict.MATCH and harmed
    assert any("the step begins anew" in text for text in notes.texts)
    assert notes.done == 2  # each micro-batch is told of once


def test_a_disk_that_damages_everything_is_a_machine_fault(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(monkeypatch, PLANS["sums on the disk"])
    put = Spill.put

    def harming(self: Spill, key: str, arrays: Any) -> None:
        put(self, key, arrays)
        path = max((p for p in self.folder.iterdir()), key=lambda p: int(p.stem))
        path.write_bytes(bytes(path.stat().st_size))

    monkeypatch.setattr(Spill, "put", harming)
    report = auditkit.verify(str(honest), step=4, threads=1, cache_dir=tmp_path)
    assert report.verdict is Verdict.MACHINE_FAULT


class Notes:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.done = 0

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        pass

    def advance(self, n: int) -> None:
        self.done += n

    def finish(self) -> None:
        pass

    def note(self, text: str) -> None:
        self.texts.append(text)


RESUMED = replace(RECIPE, batch=replace(RECIPE.batch, sequences=6, micro_batch_sequences=1))
FOLDED = replace(RESUMED, numerics=replace(RESUMED.numerics, fold=(2,)))

# Verifies step 1 and kills itself after so many micro-batches, if it is told to.
KILLED = """
import json, os, signal, sys
from auditkit.model.params import parameter_table
from auditkit.model.piece_sums import PieceSums
from auditkit.model.plan import Cuts, Plan
from auditkit.model.state import seeded_state, state_digests
import auditkit
from auditkit.replay import keeper, placing, planned
from auditkit.replay.layout import Layout
from auditkit.replay.memory import Bytes
run, cache, plan, after = sys.argv[1], sys.argv[2], eval(sys.argv[3]), int(sys.argv[4])
planned.LONG, keeper.FIRST_SECONDS, keeper.SHARE = 0.0, 0.0, 0.0
placing.choose_layout = lambda recipes, limits, **_: Layout(plan, Bytes(0, 0, 0))
notes = []
class Seen:
    done = 0
    def start(self, label, total, unit="bytes"): pass
    def finish(self): pass
    def note(self, text): notes.append(text)
    def advance(self, n):
        self.done += n
        if self.done == after:
            os.kill(os.getpid(), signal.SIGKILL)
report = auditkit.verify(run, step=0, threads=1, cache_dir=cache, progress=Seen())
print(json.dumps([report.verdict.name, notes, report.steps[0].computed]))
"""


def killed(run: Path, cache: Path, plan: str, after: int) -> Any:
    command = [sys.executable, "-c", KILLED, str(run), str(cache), plan, str(after)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, timeout=120, check=False)
    if after:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = replace(make_run.train(1, FOLDED), published=(0, 1))
    return publish(made, tmp_path_factory.mktemp("long") / "run")


@pytest.mark.skipif(os.name == "nt", reason="a process kills itself by a signal")
@pytest.mark.optional("Windows has no SIGKILL")
@pytest.mark.parametrize(
    "plan",
    [
        "Plan()",
        "Plan(True, cuts=Cuts(10, 100, 1))",
        'Plan(True, group=2, recompute=True, params="disk", sums="disk", inputs="disk")',
        'Plan(True, sums="disk", tables="memory")',
    ],
)
def test_a_killed_audit_goes_on_from_its_last_micro_batch(long_run: Path, tmp_path: Path, plan: str) -> None:
    killed(long_run, tmp_path, plan, 3)
    assert spilled(tmp_path)
    killed(long_run, tmp_path, plan, 5)  # those that were done are told of again
    verdict, notes, computed = killed(long_run, tmp_path, plan, 0)
    assert verdict == "MATCH" and not spilled(tmp_path)
    done = 4 if "group=2" in plan else 5
    assert notes == [f"going on after {done} micro-batches that were done before"]
    assert computed == auditkit.verify(str(long_run), step=0, threads=1).steps[0].computed


@pytest.mark.skipif(os.name == "nt", reason="a process kills itself by a signal")
@pytest.mark.optional("Windows has no SIGKILL")
def test_what_a_killed_audit_left_is_not_believed_when_it_is_damaged(long_run: Path, tmp_path: Path) -> None:
    plan = 'Plan(True, recompute=True, sums="disk")'
    killed(long_run, tmp_path, plan, 3)
    for path in spilled(tmp_path):
        if path.suffix == ".bin":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 16
            path.write_bytes(data)
    verdict, notes, _ = killed(long_run, tmp_path, plan, 0)
    assert verdict == "MATCH"
    assert "not the bytes that were written; the step begins anew" in notes[-1]


# A run of one step of a model of 11 million parameters, verified with so much memory and no more.
SMALL = """
import json, sys
import auditkit
from tests.peak_memory import peak_bytes
report = auditkit.verify(sys.argv[1], step=0, threads=1, cache_dir=sys.argv[2], memory=sys.argv[3] or None)
print(json.dumps([report.verdict.name, report.steps[0].computed, report.machine.get("plan", ""), peak_bytes()]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module says what the peak was")
@pytest.mark.optional("Windows has no resource module")
def test_memory_stays_below_what_was_asked_for(tmp_path: Path) -> None:
    model = replace(RECIPE.model, vocab_size=10_240, hidden_size=384, ffn_size=1024, num_heads=6, num_kv_heads=2,
                    head_dim=64, num_layers=4, tied_head=False)  # fmt: skip
    run = publish(replace(make_run.train(1, replace(RECIPE, model=model)), published=(0, 1)), tmp_path / "run")
    found = []
    for size in ("", "500MiB", "280MB"):
        command = [sys.executable, "-c", SMALL, str(run), str(tmp_path / "cache"), size]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, timeout=300, check=True)
        found.append(json.loads(done.stdout))
        if size:
            assert found[-1][3] < arguments.memory(size) < found[0][3]
            assert found[-1][2]  # another plan than the plain one
    assert {(verdict, computed) for verdict, computed, _, _ in found} == {("MATCH", found[0][1])}
    assert not spilled(tmp_path / "cache")


def test_too_little_memory_is_said_before_anything_is_read(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report: Report = auditkit.verify(str(honest), step=4, memory="1MB", cache_dir=tmp_path)
    assert report.verdict is Verdict.UNSUPPORTED and not report.steps
    assert report.message.startswith("a replay of this model needs at least")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8GB", 8 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5 gib", 3 << 29),
        ("123", 123),
        ("7k", 7000),
        (9, 9),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert arguments.memory(text) == size


@pytest.mark.parametrize("text", ["", "8 XB", "-1", "0", "1e9", "8GiB ", 0, -5, True, 1.5, "9" * 16, "٣GB"])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(UsageError, match="memory"):
        arguments.memory(text)
