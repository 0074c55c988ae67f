"""A second replay under another plan than the first: the same verdicts, differences and digests."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.model.plan import Cuts, Plan
from auditkit.replay import placing
from auditkit.replay.backend import choose
from auditkit.replay.layout import Layout, Limits
from auditkit.replay.memory import Bytes, piece_bytes
from auditkit.replay.run import open_run
from auditkit.store.progress import Silent
from auditkit.verdict import Verdict
from tests.replay.make_run import RECIPE, Parts, change_leaf, publish
from tests.replay.test_planned import PLANS, follow, spilled


def follow_then(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> list[Plan]:
    """Let a second replay have another plan; the plans of the first ones."""
    before: list[Plan] = []

    def other(first: Layout, *_: Any) -> Layout:
        before.append(first.plan)
        return Layout(plan, piece_bytes(RECIPE, plan, False))

    monkeypatch.setattr(placing, "beside", other)
    return before


@pytest.mark.parametrize(("first", "second"), list(permutations(PLANS, 2)))
def test_a_second_replay_under_another_plan_confirms_and_is_gone_on_from(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """A false leaf of a step whose state is right: the next steps go on from the state of the second replay."""
    changed = parts.copy()
    changed.results[5] = change_leaf(parts.results[5], 1, gradient="0" * 64)
    folder = publish(changed, tmp_path / "run")
    plain = auditkit.verify(str(folder), steps="4:8", threads=1)
    follow(monkeypatch, PLANS[first])
    before = follow_then(monkeypatch, PLANS[second])
    report = auditkit.verify(str(folder), steps="4:8", threads=1, cache_dir=tmp_path / "cache")
    assert [step.verdict for step in report.steps] == [step.verdict for step in plain.steps]
    assert [step.verdict is Verdict.MISMATCH for step in report.steps] == [False, True, False, False]
    assert [step.obtained for step in report.steps] == [step.obtained for step in plain.steps]
    assert report.steps[1].differences == plain.steps[1].differences
    assert before == [PLANS[first]] and not spilled(tmp_path / "cache")


def test_a_step_without_a_result_may_stop_elsewhere_under_another_plan(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment of one row and a parameter of another, which other pieces of the table meet in another order."""
    changed, name = parts.copy(), "model.embed_tokens.weight"
    state = changed.states[4]
    adam_m, adam_v = state.adam_m[name].copy(), state.adam_v[name].copy()
    adam_m[250], adam_v[5] = 3e38, np.inf
    changed.states[4] = replace(state, adam_m={**state.adam_m, name: adam_m}, adam_v={**state.adam_v, name: adam_v})
    folder, said = publish(changed, tmp_path / "run"), set()
    for number, (first, second) in enumerate(permutations([Plan(True), Plan(True, cuts=Cuts(7, 100))])):
        for plan in (first, second):
            follow(monkeypatch, first)
            follow_then(monkeypatch, plan)
            report = auditkit.verify(folder, step=4, device="numpy", threads=1, cache_dir=tmp_path / f"{number}")
            assert report.verdict is Verdict.MISMATCH
            said.add(report.steps[0].message)
    assert len(said) == 2


def test_a_second_replay_may_have_the_disk_that_the_first_could_have(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files there are those of the state, which every plan counts; only main memory is held by the first."""
    found, asked = [Limits(10, 20, 30), Limits(1, 2, 3)], list[Limits]()

    def chosen(_: Any, left: Limits, **__: Any) -> Layout:
        asked.append(left)
        return Layout(PLANS["sums on the disk"], Bytes(10, 20, 30, ()))

    monkeypatch.setattr(placing, "choose_layout", chosen)
    monkeypatch.setattr(placing, "limits", lambda *_: found.pop(0))
    with open_run(str(honest), cache_dir=tmp_path) as run:
        backend = placing.planned(run, [], choose("numpy", 1), None, Silent())
        backend.again(backend.layout)
    assert asked == [Limits(10, 20, 30), Limits(10, 2, 30)]
