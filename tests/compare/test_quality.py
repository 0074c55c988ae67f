"""The comparison of training quality, at a size that a CPU trains in a moment; and its statistics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.formats.recipe import (
    BatchConfig,
    InitConfig,
    LossConfig,
    ModelConfig,
    NumericsConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from auditkit.model.params import init_params
from auditkit.model.state import initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from bench.quality_results import AUDITKIT, BASE, FLOAT32, Estimate, Results, Run, estimate, merged, pairs
from bench.quality_results import summary as summary_of
from tests.same_bits import assert_same_bits

pytest.importorskip("torch")
from bench import quality  # noqa: E402 - needs torch

STEPS = 8


def recipe_of(seed: int) -> Recipe:
    """A tiny model."""
    return Recipe(
        ModelConfig(50, 16, 1, 2, 2, 8, 24, 12, 10_000.0, float(np.float32(1e-5)), True, True, 0),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.9, 0.95, float(np.float32(1e-8)), 0.1, 1.0),
        ScheduleConfig("cosine", 0.01, 0.001, 2, 0, STEPS),
        BatchConfig(4, 4),
        NumericsConfig(1, "fx", 14, 21),
        InitConfig(seed, 0.05, 0.02),
    )


def data_of() -> quality.Data:
    """Forty windows, eight of them held out."""
    ids = np.random.default_rng(1).integers(0, 50, 40 * 12 + 1).astype(np.uint16)
    return quality.Data(ids, context=12, held_out=8)


def trained(results: Results, path: Path, seeds: range, sides: list[str], until: float = float("inf")) -> None:
    """`quality.run` on the CPU."""
    quality.run(results, path, [recipe_of(seed) for seed in seeds], data_of(), sides, "cpu", until)


def fresh() -> Results:
    """No runs yet."""
    return Results(quality.settings_of(recipe_of(0), data_of()))


def test_sides_train_alike_and_a_second_call_adds_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    trained(fresh(), path, range(1), [AUDITKIT, FLOAT32])
    again = Results.load(path)
    trained(again, path, range(2), [AUDITKIT, FLOAT32])
    found = Results.load(path)
    assert found.runs[:2] == Results.load(path).runs[:2] == again.runs[:2]
    assert [(run.seed, run.side) for run in found.runs] == [(s, side) for s in (0, 1) for side in (AUDITKIT, FLOAT32)]
    start = quality.window_losses(init_params(recipe_of(0)), recipe_of(0), data_of().evaluation(), "cpu")
    for pair in pairs(found, AUDITKIT, FLOAT32):
        assert abs(pair.difference) < 0.01
        assert pair.base != pytest.approx(np.mean(start), abs=1e-3)  # trained at all


def test_auditkit_is_trained_by_the_step_of_the_verifier() -> None:
    recipe, data = recipe_of(0), data_of()
    batches, state = data.batches(recipe), initial_state(recipe)
    for tokens in batches:
        state, _ = step(state, tokens, recipe, reference)
    for name, array in quality.train_auditkit(recipe, init_params(recipe), batches, "cpu").items():
        assert_same_bits(array, state.params[name])


def test_batches_leave_the_held_out_windows_alone() -> None:
    data = data_of()
    seen = {tuple(window) for batch in data.batches(recipe_of(0)) for window in batch.tolist()}
    held = {tuple(window) for window in data.evaluation().tolist()}
    assert len(seen) == data.windows == 32 and len(held) == 8 and not seen & held
    assert len(data.batches(recipe_of(0))) == STEPS


def test_no_seed_begins_after_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    trained(fresh(), path, range(1), [FLOAT32], until=time.perf_counter() - 1)
    assert not path.exists() and "do not fit" in capsys.readouterr().out


def run(seed: int, side: str, losses: Any) -> Run:
    """A run whose windows had these losses."""
    return Run(seed, side, 1.0, "cpu", list(losses))


def test_a_pair_knows_its_evaluation_error() -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(5, 1, 1024)  # windows differ far more than sides do
    results = Results({}, [run(0, BASE, base), run(0, AUDITKIT, base + rng.normal(0.02, 0.1, 1024))])
    (pair,) = pairs(results)
    assert pair.difference == pytest.approx(0.02, abs=0.01)
    assert pair.evaluation == pytest.approx(0.1 / 32, rel=0.3)


def test_the_estimate_is_that_of_paired_differences() -> None:
    made = []
    for seed, (base, difference) in enumerate([(5.4, 0.01), (5.2, 0.03), (5.6, -0.01), (5.0, 0.01)]):
        made += [run(seed, BASE, [base] * 32), run(seed, AUDITKIT, [base + difference] * 32)]
    made.append(run(4, BASE, [5.0] * 32))  # a seed without its other side counts for nothing
    found = estimate(pairs(Results({}, made)))
    assert found.count == 4
    assert found.mean == pytest.approx(0.01)
    assert found.spread == pytest.approx(np.std([0.01, 0.03, -0.01, 0.01], ddof=1))
    assert found.error == pytest.approx(found.spread / 2)
    assert found.bound == pytest.approx(2.353 * found.error)
    assert found.unpaired > 5 * found.error
    assert "4 seeds" in summary_of(Results({}, made))


@pytest.mark.parametrize(
    ("mean", "spread", "verdict"),
    [(0.0, 0.001, "ok"), (0.03, 0.001, "MISSED"), (0.0, 0.02, "undecided, about"), (0.0101, 0.02, "no number")],
)
def test_a_verdict_needs_an_error_below_the_margin(mean: float, spread: float, verdict: str) -> None:
    assert verdict in Estimate(4, mean, spread, spread, 0.0).verdict()


def test_files_of_several_calls_are_one() -> None:
    one, two = Results({"a": 1}, [run(0, BASE, [1.0])]), Results({"a": 1}, [run(1, BASE, [1.0])])
    assert [r.seed for r in merged([one, two]).runs] == [0, 1]
    with pytest.raises(ValueError, match="twice"):
        merged([one, one])
    with pytest.raises(ValueError, match="other settings"):
        merged([one, Results({"a": 2})])
