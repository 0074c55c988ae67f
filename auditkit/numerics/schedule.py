"""Learning rate of a step: binary64 operation by operation, rounded once to binary32 (SPEC.md section 6.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from auditkit.errors import BadArtifact, UsageError
from auditkit.numerics.arrays import F32, F64, I64
from auditkit.numerics.float64 import PI, cos64

if TYPE_CHECKING:
    from auditkit.formats.recipe import ScheduleConfig

TOO_LARGE = 2.0**128 - 2.0**103  # from here on rounding to binary32 gives inf


def learning_rate(schedule: ScheduleConfig, step: int) -> float:
    """The learning rate that step `step` (from 0) is taken with; a binary32 value held in a Python float.

    A pure function of the recipe and the step: nothing to restore on resume. Raises UsageError for a negative step,
    BadArtifact for a rate beyond binary32.
    """
    return float(learning_rates(schedule, step, step + 1)[0])


def learning_rates(schedule: ScheduleConfig, start: int, stop: int) -> F32:
    """The learning rates of steps start .. stop - 1 -> (stop - start,) float32. Raises as learning_rate."""
    if start < 0:
        raise UsageError(f"learning rate: step {start} is negative")
    with np.errstate(over="ignore"):  # what is too large is refused below
        rates = _rates(schedule, np.arange(start, stop, dtype=np.int64))
    wrong = np.flatnonzero(~(rates < TOO_LARGE))
    if wrong.size:
        at = int(wrong[0])
        raise BadArtifact(f"learning rate: {float(rates[at])!r} at step {start + at} is beyond binary32")
    return rates.astype(np.float32)


def _rates(schedule: ScheduleConfig, steps: I64) -> F64:
    peak, low = schedule.peak_lr, schedule.min_lr
    rates = np.full(steps.shape, low)  # (n,) f64; stays so from total_steps on
    warm = steps < schedule.warmup_steps
    # peak is reached by the last warm-up step
    rates[warm] = (peak * (steps[warm] + 1).astype(np.float64)) / float(max(schedule.warmup_steps, 1))
    rest = ~warm & (steps < schedule.total_steps)
    if schedule.kind == "cosine":
        span = float(max(schedule.total_steps - schedule.warmup_steps, 1))
        progress = (steps[rest] - schedule.warmup_steps).astype(np.float64) / span
        rates[rest] = low + (peak - low) * (0.5 * (1.0 + cos64(PI * progress)))
    else:  # wsd: constant, then a line down to min_lr at total_steps
        left = schedule.total_steps - steps[rest]
        line = low + (peak - low) * (left.astype(np.float64) / float(max(schedule.decay_steps, 1)))
        rates[rest] = np.where(left > schedule.decay_steps, peak, line)
    return rates
