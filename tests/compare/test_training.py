"""The bundled run against the same training in torch float32: same data, initial weights and recipe, the same loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from auditkit.formats.recipe import ScheduleConfig
from auditkit.model.state import initial_state
from auditkit.replay.run import open_run

torch = pytest.importorskip("torch")
from auditkit.measure import torch_model  # noqa: E402 - needs torch

RUN = Path(__file__).resolve().parent.parent.parent / "manifests" / "sotu-tiny"
LAST = 50  # steps; single ones are noisy, and the two runs part in rounding long before
CLOSE = 0.02  # nats, between the means over the last steps


def cosine(schedule: ScheduleConfig, step: int) -> float:
    """Linear warm-up, then half a cosine to min_lr: written here once more, apart from auditkit's own."""
    if step < schedule.warmup_steps:
        return schedule.peak_lr * (step + 1) / schedule.warmup_steps
    done = (step - schedule.warmup_steps) / (schedule.total_steps - schedule.warmup_steps)
    return schedule.min_lr + (schedule.peak_lr - schedule.min_lr) * (1 + math.cos(math.pi * done)) / 2


def value(bits: int) -> float:
    """The binary32 number with this bit pattern."""
    return float(np.uint32(bits).view(np.float32))


def test_torch_reaches_the_same_loss_on_the_same_data(tmp_path: Path) -> None:
    # Tensors are small here: a second thread would mostly wait, and on a busy machine for long.
    torch.set_num_threads(1)
    losses, published = [], []
    with open_run(str(RUN), offline=True, cache_dir=tmp_path) as run:
        recipe = run.recipe
        params = torch_model.parameters(initial_state(recipe).params)
        adamw = torch_model.optimizer(params, recipe)
        for step, record in enumerate(run.records):
            lr = cosine(recipe.schedule, step)
            assert value(record.lr) == pytest.approx(lr, rel=1e-6)
            tokens = torch.from_numpy(run.tokens(step).astype(np.int64))
            losses.append(torch_model.train_step(params, adamw, tokens, recipe, lr))
            published.append(value(record.loss))

    assert len(losses) >= 500
    assert losses[0] == pytest.approx(published[0], abs=1e-4)
    assert published[-1] < published[0] - 2  # it learned something
    assert abs(np.mean(losses[-LAST:]) - np.mean(published[-LAST:])) < CLOSE
