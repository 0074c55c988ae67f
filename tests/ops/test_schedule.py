"""learning_rate: vectors, the shape of both schedules, their edges, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.recipe import ScheduleConfig
from auditkit.numerics.schedule import learning_rate, learning_rates
from tests.ops.elementary_checks import f32, load
from tests.same_bits import assert_same_bits

COSINE = ScheduleConfig("cosine", 0.001, 0.0001, 5, 0, 40)
WSD = ScheduleConfig("wsd", 0.001, 0.0001, 5, 10, 40)


def f64(text: str) -> float:
    """The binary64 number with this hex pattern."""
    return float(np.array(int(text, 16), np.uint64).view(np.float64))


def rates(schedule: ScheduleConfig, steps: range) -> list[float]:
    """Learning rates of several steps."""
    return [learning_rate(schedule, step) for step in steps]


def test_vectors() -> None:
    for _, (kind, peak, low, *steps), cases in load("schedule")["cases"]:
        schedule = ScheduleConfig(kind, f64(peak), f64(low), *steps)
        got = np.array([learning_rate(schedule, step) for step, _ in cases], np.float32)
        assert_same_bits(got, f32([int(word, 16) for _, word in cases]))


@pytest.mark.parametrize("schedule", [COSINE, WSD], ids=["cosine", "wsd"])
def test_every_rate_is_a_binary32_number(schedule: ScheduleConfig) -> None:
    for rate in rates(schedule, range(45)):
        assert isinstance(rate, float)
        assert float(np.float32(rate)) == rate


@pytest.mark.parametrize("schedule", [COSINE, WSD], ids=["cosine", "wsd"])
def test_warm_up_reaches_the_peak_with_its_last_step(schedule: ScheduleConfig) -> None:
    for step in range(5):
        assert learning_rate(schedule, step) == float(np.float32(0.001 * (step + 1) / 5))
    assert learning_rate(schedule, 4) == learning_rate(schedule, 5) == float(np.float32(0.001))


def test_cosine_falls_from_peak_to_minimum() -> None:
    for step in range(5, 40):
        want = 0.0001 + 0.0009 * 0.5 * (1 + math.cos(math.pi * (step - 5) / 35))
        assert learning_rate(COSINE, step) == pytest.approx(want, rel=1e-7)
    falling = rates(COSINE, range(5, 41))
    assert all(a > b for a, b in zip(falling, falling[1:], strict=False))
    assert rates(COSINE, range(40, 43)) == [float(np.float32(0.0001))] * 3


def test_wsd_stays_then_falls_in_a_line() -> None:
    assert set(rates(WSD, range(4, 31))) == {float(np.float32(0.001))}
    for step in range(30, 41):
        assert learning_rate(WSD, step) == float(np.float32(0.0001 + (0.001 - 0.0001) * ((40 - step) / 10)))
    assert learning_rate(WSD, 10**9) == float(np.float32(0.0001))


def test_without_warm_up_or_decay() -> None:
    assert learning_rate(ScheduleConfig("cosine", 0.5, 0.0, 0, 0, 2), 0) == 0.5
    constant = ScheduleConfig("wsd", 0.5, 0.25, 0, 0, 3)
    assert rates(constant, range(4)) == [0.5, 0.5, 0.5, 0.25]


def test_only_warm_up() -> None:
    assert rates(ScheduleConfig("cosine", 1.0, 0.0, 4, 0, 4), range(5)) == [0.25, 0.5, 0.75, 1.0, 0.0]


def test_only_decay() -> None:
    assert rates(ScheduleConfig("wsd", 1.0, 0.0, 0, 4, 4), range(5)) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_longer_total_is_another_schedule() -> None:
    longer = ScheduleConfig("cosine", 0.001, 0.0001, 5, 0, 80)
    assert rates(COSINE, range(6)) == rates(longer, range(6))
    assert learning_rate(COSINE, 10) != learning_rate(longer, 10)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="step -1 is negative"):
        learning_rate(COSINE, -1)
    with pytest.raises(BadArtifact, match="beyond binary32"):
        learning_rate(ScheduleConfig("wsd", 1e39, 0.0, 0, 0, 9), 3)


@pytest.mark.parametrize(
    "schedule",
    [COSINE, WSD, ScheduleConfig("cosine", 0.5, 0.0, 0, 0, 2), ScheduleConfig("wsd", 0.5, 0.25, 0, 0, 3),
     ScheduleConfig("cosine", 1.0, 0.0, 4, 0, 4), ScheduleConfig("wsd", 1.5e-3, 1.5e-5, 500, 10_000, 50_000)],
)  # fmt: skip
def test_many_rates_at_once_are_those_of_each_step(schedule: ScheduleConfig) -> None:
    stop = schedule.total_steps + 3
    every = max(1, stop // 400)
    found = learning_rates(schedule, 0, stop)
    assert found.dtype == np.float32
    assert [float(rate) for rate in found[::every]] == rates(schedule, range(0, stop, every))
    assert_same_bits(learning_rates(schedule, 2, stop), found[2:])
    assert learning_rates(schedule, 3, 3).shape == (0,)


def test_the_first_rate_beyond_binary32_is_named() -> None:
    with pytest.raises(BadArtifact, match="at step 5 is beyond binary32"):
        learning_rates(ScheduleConfig("wsd", 3.4e38 * 1.2, 0.0, 6, 0, 9), 0, 9)
