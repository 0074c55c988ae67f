"""Estimates of memory and time, against what a replay really takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.replay.backend import choose
from auditkit.replay.cost import calibrate, memory_bytes
from auditkit.replay.estimate import estimate
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.conftest import ROOT
from tests.replay.make_run import RECIPE

# A model of 2.4 million parameters, in a process of its own: peak memory and seconds of a step, and both estimates.
PROGRAM = """
import json, time
from dataclasses import replace
import numpy as np
from auditkit.replay import cost
from auditkit.replay.backend import choose
from tests.peak_memory import peak_bytes
from tests.replay.make_run import RECIPE

model = replace(RECIPE.model, vocab_size=4096, hidden_size=192, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=32,
                ffn_size=512, context_length=128)
recipe = replace(RECIPE, model=model, batch=replace(RECIPE.batch, sequences=8, micro_batch_sequences=2))
backend = choose("cpu", 2)
speed = cost.calibrate(recipe, backend)
state = cost._random_state(recipe)
tokens = np.random.default_rng(1).integers(0, 4096, (8, 129))
began = time.perf_counter()
new, _ = backend.step(state, tokens, recipe)
seconds = time.perf_counter() - began
print(json.dumps([peak_bytes(), cost.memory_bytes(recipe, 2), seconds, speed.step]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module says what the peak was")
@pytest.mark.optional("Windows has no resource module")
def test_estimates_are_of_the_right_size() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, encoding="utf-8", cwd=ROOT, timeout=120, check=True
    )
    peak, memory, seconds, estimated = json.loads(done.stdout)
    assert 0.5 < memory / peak < 2
    # other processes may take the machine in one of the two moments, so this bound is wide
    assert 0.1 < estimated / seconds < 10


def test_memory_grows_with_what_it_depends_on() -> None:
    base = memory_bytes(RECIPE, 1)
    assert memory_bytes(RECIPE, 2) > base
    assert memory_bytes(RECIPE, 64) == memory_bytes(RECIPE, 2)  # there are two micro-batches only
    large = replace(RECIPE, model=replace(RECIPE.model, vocab_size=30_000))
    assert memory_bytes(large, 1) > base


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
        monkeypatch.setattr("auditkit.replay.machine.total_memory", lambda: 1000)
        assert estimate(run, select(step=0), choose("cpu", 1)).verdict is Verdict.UNSUPPORTED
