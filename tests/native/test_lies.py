"""The same lies told to every back end of a processor: one verdict, one exit code, the same differing fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.formats.skips import NO_RESULT_LEAF
from auditkit.model.divergence import passed, without_result
from auditkit.model.state import State
from auditkit.native.ops import NativeOps
from auditkit.numerics import reference
from auditkit.replay.backend import Backend, NativeBackend
from auditkit.replay.report import Report
from auditkit.verdict import Verdict
from tests.replay import make_run
from tests.replay.make_run import RECIPE, Parts, change_leaf, flip_state, train_with
from tests.replay.test_planned import PLANS, follow

STEP = 4
NORM_WEIGHT = "model.norm.weight"
SKIPPING = replace(RECIPE, divergence=DivergenceConfig("skip", 0.0))


def spoilt(role: str, name: str, value: float) -> Callable[[Parts], None]:
    """The state before the step has a tensor of one value."""

    def spoil(parts: Parts) -> None:
        state = parts.states[STEP]
        tensors: dict[str, Any] = dict(getattr(state, role))
        tensors[name] = np.full_like(tensors[name], value)
        parts.states[STEP] = replace(state, **{role: tensors})

    return spoil


def result(**fields: Any) -> Callable[[Parts], None]:
    """The record of the step says something else."""

    def change(parts: Parts) -> None:
        parts.results[STEP] = replace(parts.results[STEP], **fields)

    return change


def state_after(parts: Parts) -> None:
    parts.states[STEP + 1] = flip_state(parts.states[STEP + 1], "params", NORM_WEIGHT, 3, 5)


def leaf(parts: Parts) -> None:
    parts.results[STEP] = change_leaf(parts.results[STEP], 1, gradient="ab" * 32)


def rate(parts: Parts) -> None:
    parts.states, parts.results = (made := train_with(parts, wrong_step=STEP)).states, made.results


def skipped(parts: Parts) -> None:
    before: State = parts.states[STEP]
    parts.states[STEP + 1], parts.results[STEP] = passed(before, parts.recipe), without_result(parts.recipe, "")


def one_leaf_of_none(parts: Parts) -> None:
    parts.results[STEP] = replace(parts.results[STEP], leaves=(NO_RESULT_LEAF, parts.results[STEP].leaves[1]))


def bound(parts: Parts) -> None:
    norm = np.nextafter(parts.results[STEP].norm, np.float32(0))
    parts.recipe = replace(parts.recipe, divergence=DivergenceConfig("stop", float(norm)))


MATCH, MISMATCH = Verdict.MATCH, Verdict.MISMATCH
# what is published, under which recipe -> the verdict on the whole step, and on its micro-batches alone
LIES: dict[str, tuple[Callable[[Parts], None], Recipe, Verdict, Verdict]] = {
    "nothing": (result(), RECIPE, MATCH, MATCH),
    "another bit of the state after it": (state_after, RECIPE, MISMATCH, MATCH),
    "twice the learning rate": (rate, RECIPE, MISMATCH, MATCH),
    "another loss": (result(loss=np.float32(1.5)), RECIPE, MISMATCH, MISMATCH),
    "another leaf": (leaf, RECIPE, MISMATCH, MISMATCH),
    "leaves with no sum": (result(leaves=(MicroBatchLeaf(2**63 - 1, "ab" * 32),) * 2), RECIPE, MISMATCH, MISMATCH),
    "a gradient out of range": (spoilt("params", NORM_WEIGHT, 1e5), RECIPE, MISMATCH, MISMATCH),
    "infinite rows": (spoilt("params", NORM_WEIGHT, 3e38), RECIPE, MISMATCH, MISMATCH),
    "an infinite update": (spoilt("adam_m", NORM_WEIGHT, 3e38), RECIPE, MISMATCH, MATCH),
    "a norm that stops it": (bound, RECIPE, MISMATCH, MISMATCH),
    "no result, without the rule": (skipped, RECIPE, MISMATCH, MISMATCH),
    "no result, which it has": (skipped, SKIPPING, MISMATCH, Verdict.INCOMPLETE),
    "a result, which it has not": (spoilt("params", NORM_WEIGHT, 3e38), SKIPPING, MISMATCH, MISMATCH),
    "a result that its update has not": (spoilt("adam_m", NORM_WEIGHT, 3e38), SKIPPING, MISMATCH, MATCH),
    "a leaf of a step without a result": (one_leaf_of_none, SKIPPING, MISMATCH, MISMATCH),
}


class Reference(Backend):
    """NumPy whose self-test has been run, which takes longer than all that is tried here."""

    def self_test(self) -> None:
        """Nothing."""


class Native(NativeBackend):
    """The same of C."""

    def self_test(self) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def honest() -> dict[str, Parts]:
    """A run by either action of the rule: no step of it is skipped, so that its states are the same."""
    made = make_run.train(STEP + 1)
    made.published = (0, STEP, STEP + 1)
    skipping = make_run.train(STEP + 1, SKIPPING)
    skipping.published = made.published
    return {"stop": made, "skip": skipping}


def found(report: Report) -> tuple[Any, ...]:
    """What every machine must say of the step."""
    (step,) = report.steps
    differing = [(one.field, one.published, one.computed) for one in step.differences]
    checks = [check.status for check in step.checks]
    part = step.part and step.part.to_dict()
    return report.verdict.code, differing, checks, step.obtained, step.work, bool(step.skipped), part, step.hint


@pytest.mark.parametrize("name", LIES)
def test_every_back_end_says_the_same(
    honest: dict[str, Parts], compiled: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, recipe, whole, of_part = LIES[name]
    parts = honest[recipe.divergence.action].copy()
    lie(parts)
    run = make_run.publish(parts, tmp_path / "run")

    def said(backend: Backend, **options: Any) -> tuple[Any, ...]:
        key = {"work_key": lambda run_id, step: bytes(32), "cache_dir": tmp_path / "cache"}
        return found(auditkit.verify(run, step=STEP, backend=backend, **key, **options))

    def c() -> Backend:
        return Native(NativeOps(compiled), 1, "cpu")  # type: ignore[arg-type]

    steps = [said(Reference(reference, 1, "cpu")), said(c())]
    alone = [said(backend, micro_batches="all") for backend in (Reference(reference, 1, "cpu"), c())]
    follow(monkeypatch, PLANS["recomputed, on the disk"])
    steps.append(said(c()))
    assert steps[1:] == [steps[0]] * 2 and steps[0][0] == whole.code
    assert alone[1] == alone[0] and alone[0][0] == of_part.code
