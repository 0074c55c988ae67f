"""Estimates of time, and what `auditkit plan` finds; tests/replay/test_memory.py measures the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.model.plan import Plan
from auditkit.replay.backend import choose
from auditkit.replay.cost import Speed, calibrate
from auditkit.replay.estimate import estimate
from auditkit.replay.layout import Layout
from auditkit.replay.memory import Bytes
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.replay.make_run import RECIPE


def test_calibration_takes_the_shape_of_the_recipe() -> None:
    speed = calibrate(RECIPE, choose("cpu", 1))
    assert speed.step > 0
    twice = replace(RECIPE, batch=replace(RECIPE.batch, sequences=6))
    ticks = iter(range(100))
    exact = calibrate(RECIPE, choose("cpu", 1), clock=lambda: float(next(ticks)))
    ticks = iter(range(100))
    double = calibrate(twice, choose("cpu", 1), clock=lambda: float(next(ticks)))
    assert double.gradients / exact.gradients == pytest.approx(3 / 2)  # three micro-batches instead of two


def test_estimate_of_a_run(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(str(honest)) as run:
        found = estimate(run, select(steps="2:7"), choose("cpu", 1))
        assert found.verdict is Verdict.MATCH
        assert found.steps == 7
        assert found.fetch_bytes == 0 < found.total_bytes
        assert found.plan == "everything in memory, one micro-batch at a time" and found.spilled == 0
        monkeypatch.setattr("auditkit.replay.machine.total_memory", lambda: 1000)
        refused = estimate(run, select(step=0), choose("cpu", 1))
        assert refused.verdict is Verdict.UNSUPPORTED
        assert refused.refused.startswith("a replay of this model needs at least")


def test_a_plan_takes_longer_by_what_it_makes_again_and_brings() -> None:
    layout = Layout(Plan(True), Bytes(0, 0, 0), factor=1.5, traffic=0.25)
    assert Speed(8.0, 2.0, 1.0).under(layout, 4) == Speed(13.0, 2.0, 1.0)
