"""Audits of some micro-batches of a step: what they compare, what they read, and what they do not say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.errors import UsageError
from auditkit.formats.leaves import micro_root
from auditkit.formats.work import part_work_key, part_work_of, work_key
from auditkit.model.network import prepare
from auditkit.model.plan import Plan
from auditkit.model.step import grads, micro_batches, tensors_work
from auditkit.numerics import reference
from auditkit.replay.backend import Backend
from auditkit.replay.chosen import chosen
from auditkit.replay.report import Status
from auditkit.verdict import Verdict
from tests.conftest import ROOT
from tests.faults.memory import Faulty
from tests.replay.flaky import FlippedOps, NoSelfTest
from tests.replay.make_run import Parts, change_leaf, flip_state, publish
from tests.store.servers import honest as honestly
from tests.store.servers import serve

PUBLIC = bytes(range(32))


def key_of(run_id: str, number: int) -> bytes:
    return work_key(PUBLIC, run_id, number)


def test_one_micro_batch_matches_and_the_result_says_what_is_left(honest: Path, parts: Parts) -> None:
    report = auditkit.verify(honest, step=4, micro_batches="1")
    (step,) = report.steps
    assert (report.verdict, step.verdict) == (Verdict.MATCH, Verdict.MATCH)
    assert step.part is not None and step.obtained is None and step.computed == ""
    assert step.part.obtained == step.part.expected == micro_root(parts.results[4].leaves[1:])
    assert [(c.number, c.status) for c in step.checks if c.status is not Status.OK] == [(7, Status.SKIPPED)]
    said = "\n".join(report.not_checked)
    assert "the other micro-batch of step 4: 0" in said
    assert "the update of step 4" in said and "the moments of state 4" in said
    assert "7 of the run's 8 steps" in said
    assert report.selection == "step 4, micro-batch 1 of 2"


def test_all_of_them_give_the_gradient_of_the_step(honest: Path, parts: Parts) -> None:
    (step,) = auditkit.verify(honest, step=4, micro_batches="all").steps
    assert step.verdict is Verdict.MATCH
    assert step.part is not None and step.part.gradient == parts.results[4].gradient
    assert step.part.expected == micro_root(parts.results[4].leaves)


@pytest.mark.parametrize("layout", ["compact", "segmented", "segmented_compact"])
def test_every_layout(layout: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(layout)
    for step in (0, 4):
        report = auditkit.verify(folder, step=step, micro_batches="all", replay_to=True)
        assert report.verdict is Verdict.MATCH, report.to_json()


def test_threads_and_order_change_nothing(honest: Path) -> None:
    found = [
        auditkit.verify(honest, step=5, micro_batches=asked, threads=threads).steps[0].part
        for asked, threads in ((["1", 0], 1), ("0-1", 2), ("all", 2), ([0, 1, 1], 1))
    ]
    assert len(set(found)) == 1


def test_a_lie_about_another_micro_batch_is_not_seen_and_not_claimed(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.results[4] = change_leaf(parts.results[4], 1, loss_sum=7)
    folder = publish(lie, tmp_path / "lie")
    first, second = (auditkit.verify(folder, step=4, micro_batches=asked) for asked in ("0", "1"))
    assert first.verdict is Verdict.MATCH
    assert "the other micro-batch of step 4: 1" in first.not_checked[0]
    assert second.verdict is Verdict.MISMATCH
    (difference,) = second.steps[0].differences
    assert (difference.field, difference.published) == ("micro_batches[1].loss_sum", "7")
    assert "twice with the same result" in second.steps[0].checks[2].detail


def test_a_wrong_update_is_not_found_and_a_wrong_gradient_is(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    folder = publish(lie, tmp_path / "update")
    assert auditkit.verify(folder, step=4, micro_batches="all").verdict is Verdict.MATCH
    assert auditkit.verify(folder, step=4).verdict is Verdict.MISMATCH
    lie = parts.copy()
    lie.results[4] = replace(parts.results[4], gradient="0" * 64)
    found = auditkit.verify(publish(lie, tmp_path / "gradient"), step=4, micro_batches="all")
    assert [d.field for d in found.steps[0].differences] == ["gradient"]


def test_moments_are_not_looked_at_and_parameters_are(parts: Parts, honest: Path, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[4] = flip_state(parts.states[4], "adam_m", "model.norm.weight", 0)
    assert auditkit.verify(publish(lie, tmp_path / "moments"), step=4, micro_batches="0").verdict is Verdict.MATCH
    lie.states[4] = flip_state(parts.states[4], "params", "model.norm.weight", 0, 20)
    found = auditkit.verify(publish(lie, tmp_path / "params"), step=4, micro_batches="0")
    assert found.verdict is Verdict.MISMATCH


def test_only_the_parameters_are_fetched(honest: Path, tmp_path: Path) -> None:
    files = {p.relative_to(honest).as_posix(): p.read_bytes() for p in honest.rglob("*") if p.is_file()}
    with serve(honestly, files) as server:
        report = auditkit.verify(server.url, step=4, micro_batches="0", cache_dir=tmp_path / "a")
        assert report.verdict is Verdict.MATCH
        shards = [asked for asked in server.asked if "shard" in asked.path]
        assert shards and all(asked.range for asked in shards)
        fetched = sum(asked.sent for asked in shards)
        whole = sum(len(data) for path, data in files.items() if "states/00000004/shard" in path)
        assert fetched < 0.4 * whole
        assert f"{fetched:,} of {whole:,} bytes" in report.steps[0].checks[0].detail
        server.asked.clear()
        again = auditkit.verify(server.url, step=4, micro_batches="0", cache_dir=tmp_path / "a", offline=True)
        assert again.verdict is Verdict.MATCH and not server.asked
        auditkit.verify(server.url, step=0, micro_batches="0", cache_dir=tmp_path / "b")
        assert not [asked for asked in server.asked if "states" in asked.path]  # they follow from the seed


def test_a_step_whose_state_is_not_published_is_refused_with_what_would_work(honest: Path) -> None:
    with pytest.raises(UsageError, match="state 3 is not published") as caught:
        auditkit.verify(honest, step=3, micro_batches="0")
    assert "--step 0 or --step 4" in caught.value.hint and "replays 3 steps from state 0" in caught.value.hint
    report = auditkit.verify(honest, step=3, micro_batches="0", replay_to=True)
    assert report.verdict is Verdict.MATCH
    assert "computed from state 0, every record on the way checked" in report.steps[0].checks[0].detail


def test_a_step_on_the_way_that_does_not_match_leaves_nothing_to_audit(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[2] = flip_state(parts.states[2], "params", "model.norm.weight", 0)
    report = auditkit.verify(publish(lie, tmp_path / "lie"), step=3, micro_batches="0", replay_to=True)
    assert [(s.step, s.verdict) for s in report.steps] == [(1, Verdict.MISMATCH), (3, Verdict.INCOMPLETE)]
    assert report.verdict is Verdict.MISMATCH


@pytest.mark.parametrize("asked", ["", "2", "1-0", "a", "0-", "-1", "0,,1", " 0", "0-9", [], [True], [-1], [1.5], 2])
def test_what_is_no_micro_batch(asked: Any) -> None:
    with pytest.raises(UsageError):
        chosen(asked, 2)


def test_micro_batches_belong_to_one_step(honest: Path) -> None:
    with pytest.raises(UsageError, match="belongs to --step"):
        auditkit.verify(honest, steps="0:2", micro_batches="0")
    with pytest.raises(UsageError, match="belongs to --micro-batch"):
        auditkit.verify(honest, step=0, replay_to=True)


def test_the_work_is_made_of_the_gradient_sums_of_each_micro_batch(honest: Path, parts: Parts) -> None:
    report = auditkit.verify(honest, step=4, micro_batches="0-1", work_key=key_of)
    key = part_work_key(key_of(report.run_id, 4))
    prepared, tokens = prepare(parts.states[4].params, parts.recipe, reference), parts.batches[4]
    targets = tokens.shape[0] * (tokens.shape[1] - 1)
    found = [grads(prepared, cut, targets, parts.recipe, reference) for cut in micro_batches(tokens, parts.recipe)]
    works = [tensors_work({**sums.grads}, reference, key) for sums in found]
    assert report.steps[0].work == part_work_of(key, works)
    assert len({report.steps[0].work, *works, key_of(report.run_id, 4).hex()}) == 4


def test_a_flipped_bit_is_a_machine_fault(honest: Path) -> None:
    class Once(Backend):
        """Flips a bit of the first computation."""

        def part(self, *arguments: Any, on_micro_batch: Any = None, **options: Any) -> Any:
            self.ops.armed = on_micro_batch is not None  # type: ignore[attr-defined]
            return super().part(*arguments, on_micro_batch=on_micro_batch, **options)

    report = auditkit.verify(honest, step=4, micro_batches="0", backend=Once(FlippedOps("swiglu_forward"), 1, "flaky"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "two replays of the same step differ" in report.steps[0].message


def test_inputs_that_change_in_memory_are_a_machine_fault(honest: Path) -> None:
    def rot(state: Any, tokens: Any) -> None:
        state.params["model.norm.weight"] = state.params["model.norm.weight"] * 2

    report = auditkit.verify(honest, step=4, micro_batches="0", backend=Faulty(reference, 1, "rotting", hurt=rot))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "model.norm.weight changed in memory" in report.steps[0].message


def test_a_machine_that_is_always_wrong_is_caught_by_nobody_but_its_self_test(honest: Path) -> None:
    ops = FlippedOps("swiglu_forward", always=True)
    assert auditkit.verify(honest, step=4, micro_batches="0", backend=NoSelfTest(ops, 1, "wrong")).verdict in (
        Verdict.MISMATCH,
    )


def test_what_does_not_fit_is_refused(honest: Path) -> None:
    report = auditkit.verify(honest, step=4, micro_batches="0", memory="1MB")
    assert report.verdict is Verdict.UNSUPPORTED and "an audit of micro-batch 0 of 2 needs" in report.message
    assert auditkit.verify(honest, step=4, micro_batches="0", memory="8GB").verdict is Verdict.MATCH


def test_a_plan_for_little_memory_takes_the_steps_on_the_way(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states lie in files; what is audited then begins from them."""
    from auditkit.replay import verify as verifying
    from auditkit.replay.layout import Layout
    from auditkit.replay.memory import piece_bytes
    from tests.replay.make_run import RECIPE

    plan = Plan(True, params="disk", sums="disk")

    def planned(run: Any, steps: Any, backend: Any, memory: Any, progress: Any, **options: Any) -> Any:
        found = make(run, steps, backend, memory, progress, **options)
        return replace(found, layout=Layout(plan, piece_bytes(RECIPE, plan, False)))

    make = verifying.planned
    monkeypatch.setattr(verifying, "planned", planned)
    report = auditkit.verify(honest, step=3, micro_batches="all", replay_to=True, paranoid="same")
    assert report.verdict is Verdict.MATCH
    assert "one layer at a time" in report.machine["plan"]
    assert auditkit.verify(honest, steps="4:6", paranoid="same").verdict is Verdict.MATCH


def test_json(honest: Path) -> None:
    found = json.loads(auditkit.verify(honest, step=4, micro_batches="1").to_json())["steps"][0]["part"]
    assert found["micro_batches"] == "1" and found["count"] == 2
    assert found["expected"] == found["obtained"] and found["gradient"] == ""


PROGRAM = """
import sys, json
import numpy as np
from dataclasses import replace
from auditkit.model.state import State
from auditkit.replay import cost, memory
from auditkit.replay.backend import choose
from auditkit.replay.confirm import copied_in
from tests.peak_memory import peak_bytes
from tests.replay.make_run import RECIPE

model = replace(RECIPE.model, vocab_size=8192, hidden_size=384, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=64,
                ffn_size=1024, context_length=64)
recipe = replace(RECIPE, model=model, batch=replace(RECIPE.batch, sequences=4, micro_batch_sequences=1))
backend, state = choose("cpu", 1), cost._random_state(recipe)
tokens = np.random.default_rng(1).integers(0, 8192, (4, 65))
if sys.argv[1] == "whole":
    backend.step(state, tokens, recipe)
    estimated = memory.plain_bytes(recipe, 1, False).memory
else:
    first = State(0, state.params, {}, {})
    state = copied_in(backend, first)  # as before a mismatch
    backend.part(state, tokens, (1,), recipe)
    estimated = memory.part_bytes(recipe, 1, 1, False).memory
print(json.dumps([peak_bytes(), estimated]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module says what the peak was")
@pytest.mark.optional("Windows has no resource module")
def test_a_part_needs_less_memory_than_the_step() -> None:
    def measured(what: str) -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, what],
            capture_output=True,
            encoding="utf-8",
            cwd=ROOT,
            timeout=120,
            check=True,
        )
        peak, estimated = json.loads(done.stdout)
        return peak, estimated

    (whole, whole_estimate), (part, part_estimate) = measured("whole"), measured("part")
    assert part < 0.85 * whole
    assert 1 <= part_estimate / part < 2 and 1 <= whole_estimate / whole < 2
