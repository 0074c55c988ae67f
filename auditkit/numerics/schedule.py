"""Learning rate of a step: binary64 operation by operation, rounded once to binary32 (SPEC.md section 6.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from auditkit.errors import BadArtifact, UsageError
from auditkit.numerics.float64 import PI, cos64

if TYPE_CHECKING:
    from auditkit.formats.recipe import ScheduleConfig

TOO_LARGE = 2.0**128 - 2.0**103  # from here on rounding to binary32 gives inf


def learning_rate(schedule: ScheduleConfig, step: int) -> float:
    """The learning rate that step `step` (from 0) is taken with; a binary32 value held in a Python float.

    A pure function of the recipe and the step: nothing to restore on resume. Raises UsageError for a negative step,
    BadArtifact for a rate beyond binary32.
    """
    if step < 0:
        raise UsageError(f"learning rate: step {step} is negative")
    rate = _rate(schedule, step)
    if not rate < TOO_LARGE:
        raise BadArtifact(f"learning rate: {rate!r} at step {step} is beyond binary32")
    return float(np.float32(rate))


def _rate(schedule: ScheduleConfig, step: int) -> float:
    peak, low = schedule.peak_lr, schedule.min_lr
    if step < schedule.warmup_steps:
        return (peak * float(step + 1)) / float(schedule.warmup_steps)  # peak is reached by the last warm-up step
    if step >= schedule.total_steps:
        return low
    if schedule.kind == "cosine":
        progress = float(step - schedule.warmup_steps) / float(schedule.total_steps - schedule.warmup_steps)
        return low + (peak - low) * (0.5 * (1.0 + float(cos64(PI * progress))))
    left = schedule.total_steps - step  # wsd: constant, then a line down to min_lr at total_steps
    return peak if left > schedule.decay_steps else low + (peak - low) * (float(left) / float(schedule.decay_steps))
