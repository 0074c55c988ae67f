"""Verification of a run that skips steps: what matches, what is said of one who decides otherwise, what is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import DivergenceConfig, InitConfig, Recipe
from auditkit.formats.skips import NO_RESULT, NO_RESULT_LEAF, NORM
from auditkit.model.state import State
from auditkit.model.step import StepResult, step, tensors_work
from auditkit.numerics import reference
from auditkit.replay.run import open_run
from auditkit.replay.show import show_log, show_run, show_step
from auditkit.verdict import Verdict
from tests.replay import make_compact, make_run
from tests.replay.make_run import Parts
from tests.replay.test_verify import Recorder
from tests.replay.test_work import key_of

BOUND = 290.0
# So large at first that the gradients of a batch leave their range.
WILD = dataclasses.replace(
    make_run.RECIPE,
    init=InitConfig(7, 2.95, 0.01),
    schedule=dataclasses.replace(make_run.RECIPE.schedule, peak_lr=0.01),
)
RECIPE = dataclasses.replace(WILD, divergence=DivergenceConfig("skip", BOUND))
KINDS = [NORM, "", NO_RESULT, "", "", "", "", ""]
ZERO = np.float32(0)


@pytest.fixture(scope="module")
def skipping() -> Parts:
    """The honest run; copy it before changing anything."""
    return make_run.train(recipe=RECIPE)


@pytest.fixture(scope="module")
def published(skipping: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run.publish(skipping, tmp_path_factory.mktemp("skips") / "tiny")


@pytest.fixture(scope="module")
def compact(skipping: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_compact.publish(skipping, tmp_path_factory.mktemp("compact-skips") / "tiny")


def test_the_run_skips_steps_of_both_kinds(skipping: Parts) -> None:
    assert [result.skipped for result in skipping.results] == KINDS


@pytest.mark.parametrize("layout", ["published", "compact"])
def test_every_step_matches_in_either_layout(layout: str, request: pytest.FixtureRequest) -> None:
    report = auditkit.verify(str(request.getfixturevalue(layout)), steps="0:8", threads=2)
    assert report.verdict is Verdict.MATCH
    for found, kind in zip(report.steps, KINDS, strict=True):
        assert bool(found.skipped) == bool(kind)
        said = {check.number: check.detail for check in found.checks}
        assert ("; skipped: " in said[6]) == bool(kind)
        assert (said[8] == "none, for the step has no finite result") == (kind == NO_RESULT)
        assert found.to_dict()["skipped"] == found.skipped
    assert "norm 319" in report.steps[0].skipped and "exceeds max_norm 290" in report.steps[0].skipped


def test_progress_counts_micro_batches_that_were_not_reached(published: Path) -> None:
    progress = Recorder()
    auditkit.verify(str(published), steps="0:4", progress=progress)
    assert (progress.totals, progress.done) == ([4 * 2], 8)


def retrained(parts: Parts, number: int, recipe: Recipe) -> Parts:
    """The run in which step `number` was taken by another recipe, and all later ones by the declared one again."""
    made = parts.copy()
    for at in range(number, len(parts.batches)):
        rule = recipe if at == number else parts.recipe
        made.states[at + 1], made.results[at] = step(made.states[at], parts.batches[at], rule, reference)
    return made


def kept(parts: Parts, number: int, result: Callable[[StepResult], StepResult]) -> Parts:
    """The run in which step `number` was skipped by hand."""
    made = parts.copy()
    before = parts.states[number]
    made.states[number + 1] = State(number + 1, before.params, before.adam_m, before.adam_v)
    made.results[number] = result(parts.results[number])
    for at in range(number + 1, len(parts.batches)):
        made.states[at + 1], made.results[at] = step(made.states[at], parts.batches[at], parts.recipe, reference)
    return made


def mismatch(parts: Parts, folder: Path, number: int) -> str:
    """What a verifier says of a step that does not match; the layouts agree."""
    found = []
    for publish in (make_run.publish, make_compact.publish):
        out = publish(parts, folder / publish.__module__)
        report = auditkit.verify(str(out), step=number)
        assert report.verdict is Verdict.MISMATCH
        found.append(report.steps[0].message)
    assert found[0].partition(";")[0] == found[1].partition(";")[0]
    return found[0]


def test_a_step_that_was_not_skipped_though_its_norm_exceeds_the_bound(skipping: Parts, tmp_path: Path) -> None:
    without = dataclasses.replace(RECIPE, divergence=DivergenceConfig("skip", 0.0))
    made = retrained(skipping, 0, without)
    assert made.results[0].skipped == ""
    said = mismatch(made, tmp_path, 0)
    assert said.startswith("the recipe skips this step, for the gradient's norm 319")
    assert "exceeds max_norm 290, but the record claims an update; first differing field" in said
    report = auditkit.verify(str(tmp_path / "tests.replay.make_run"), steps="4:8")
    assert report.verdict is Verdict.MATCH


def test_a_step_that_was_skipped_by_hand(skipping: Parts, tmp_path: Path) -> None:
    made = kept(skipping, 4, lambda result: dataclasses.replace(result, lr=ZERO))
    said = mismatch(made, tmp_path, 4)
    assert said.startswith("the step was skipped, which the recipe does not do: its norm is 1")
    assert ", and max_norm is 290; first differing field of the record: lr" in said


def test_a_step_that_was_skipped_by_hand_with_a_norm_to_match(skipping: Parts, tmp_path: Path) -> None:
    made = kept(skipping, 4, lambda result: dataclasses.replace(result, lr=ZERO, norm=np.float32(291)))
    said = mismatch(made, tmp_path, 4)
    assert said.startswith("the step was skipped, which the recipe does not do: its norm is 1")


def test_a_step_with_a_result_that_is_said_to_have_none(skipping: Parts, tmp_path: Path) -> None:
    made = kept(skipping, 4, lambda result: skipping.results[2])
    said = mismatch(made, tmp_path, 4)
    assert said.startswith("the record says that the step has no finite result and was skipped, but it has one; ")


def test_a_step_without_a_result_that_is_said_to_have_one(skipping: Parts, tmp_path: Path) -> None:
    made = kept(skipping, 2, lambda result: dataclasses.replace(skipping.results[4], lr=ZERO))
    said = mismatch(made, tmp_path, 2)
    assert said.startswith("the recipe skips this step, for it has no finite result (a")
    assert "), but the record claims one; first differing field of the record: micro_batches[0]" in said


@pytest.mark.parametrize("field", ["loss", "norm", "lr", "leaf"])
def test_declared_values_are_compared_like_computed_ones(skipping: Parts, field: str, tmp_path: Path) -> None:
    made = skipping.copy()
    if field == "leaf":
        leaves = (MicroBatchLeaf(0, ZERO_DIGEST), MicroBatchLeaf(1, ZERO_DIGEST))
        made.results[2] = dataclasses.replace(made.results[2], leaves=leaves)
    else:
        made.results[2] = dataclasses.replace(made.results[2], **{field: np.float32(-0.0)})
    report = auditkit.verify(str(make_run.publish(made, tmp_path / "tiny")), step=2)
    assert report.verdict is Verdict.MISMATCH
    names = [difference.field for difference in report.steps[0].differences]
    assert names[0] == {"leaf": "micro_batches[1].loss_sum"}.get(field, field)


def test_the_rate_of_a_skipped_step_is_zero(skipping: Parts, tmp_path: Path) -> None:
    made = skipping.copy()
    made.results[0] = dataclasses.replace(made.results[0], lr=np.float32(1e-3))
    report = auditkit.verify(str(make_run.publish(made, tmp_path / "tiny")), step=0)
    assert report.verdict is Verdict.MISMATCH
    assert "but the record claims an update; first differing field of the record: lr" in report.steps[0].message


def test_no_recipe_without_the_rule_lets_a_step_be_skipped(tmp_path: Path) -> None:
    """Neither one with a result nor one without: 64 zeros are a wrong digest there."""
    tame = make_run.train()
    before = tame.states[2]
    made = tame.copy()
    made.states[3] = State(3, before.params, before.adam_m, before.adam_v)
    leaves = (MicroBatchLeaf(0, ZERO_DIGEST),) * 2
    made.results[2] = StepResult(ZERO, ZERO, ZERO, ZERO_DIGEST, leaves)
    report = auditkit.verify(str(make_run.publish(made, tmp_path / "tame")), step=2)
    assert report.verdict is Verdict.MISMATCH and report.steps[0].skipped == ""
    wild = make_run.train(recipe=RECIPE)
    wild.recipe, wild.published = WILD, (0, 2, 8)
    report = auditkit.verify(str(make_run.publish(wild, tmp_path / "wild")), step=2)
    assert report.verdict is Verdict.MISMATCH
    assert report.steps[0].message.startswith("the record claims a result, but this step has none: ")


def test_a_bound_that_stops_makes_a_step_beyond_it_a_mismatch(tmp_path: Path) -> None:
    made = make_run.train()
    norms = [float(result.norm) for result in made.results]
    number = norms.index(max(norms))
    bound = float(np.nextafter(np.float32(norms[number]), np.float32(0)))
    made.recipe = dataclasses.replace(made.recipe, divergence=DivergenceConfig("stop", bound))
    report = auditkit.verify(str(make_run.publish(made, tmp_path / "tiny")), step=number)
    assert report.verdict is Verdict.MISMATCH
    assert "this step has none: the gradient's norm" in report.steps[0].message


def test_an_auditor_can_sign_what_was_skipped(published: Path, skipping: Parts) -> None:
    """Digests on both sides, and a proof of work: over gradients, or over parameters where there is no gradient."""
    report = auditkit.verify(str(published), steps="0:4", work_key=key_of)
    key = key_of(report.run_id, 2)
    assert report.verdict is Verdict.MATCH
    assert all(found.obtained == found.expected and found.work for found in report.steps)
    assert report.steps[2].work == tensors_work(skipping.states[2].params, reference, key)


def test_shown(published: Path) -> None:
    with open_run(str(published)) as run:
        assert show_run(run)["divergence"] == {"action": "skip", "max_norm": BOUND}
        assert show_log(run)["skipped"] == [number for number, kind in enumerate(KINDS) if kind]
        steps = [show_step(run, number) for number in range(8)]
    assert [bool(found.get("skipped")) for found in steps] == [bool(kind) for kind in KINDS]
    assert steps[2]["skipped"] == "no result" and steps[2]["gradient"] == ZERO_DIGEST
    assert str(steps[0]["skipped"]).startswith("norm 319") and str(steps[0]["skipped"]).endswith("max_norm 290")


def test_a_run_without_the_rule_shows_nothing_of_it(honest: Path) -> None:
    with open_run(str(honest)) as run:
        assert "divergence" not in show_run(run) and "skipped" not in show_log(run)
        assert "skipped" not in show_step(run, 3)


def test_micro_batches_of_skipped_steps(published: Path) -> None:
    """Those of a large step are as any others; those of a step without a result are declared, and tell nothing."""
    for number, kind in enumerate(KINDS[:4]):
        report = auditkit.verify(published, step=number, micro_batches="all", replay_to=True)
        assert report.verdict is (Verdict.INCOMPLETE if kind == NO_RESULT else Verdict.MATCH), number
        if kind == NO_RESULT:
            assert "its leaves are declared" in report.steps[-1].message
            assert report.steps[-1].hint == f"only the whole step tells: --step {number}"


def test_one_leaf_of_a_step_without_a_result_in_a_step_that_has_one(skipping: Parts, tmp_path: Path) -> None:
    """The record says that there is a result: the leaf is a lie, and not a reason to look at none of them."""
    made = skipping.copy()
    leaves = (NO_RESULT_LEAF, skipping.results[4].leaves[1])
    made.results[4] = dataclasses.replace(skipping.results[4], leaves=leaves)
    out = make_run.publish(made, tmp_path / "tiny")
    found = [auditkit.verify(out, step=4, micro_batches=asked).verdict for asked in ("0", "1", "all")]
    assert found == [Verdict.MISMATCH, Verdict.MATCH, Verdict.MISMATCH]
