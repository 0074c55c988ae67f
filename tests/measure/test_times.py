"""Times of the parts of a step: what is run is the step itself, and what is counted adds up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from auditkit.measure import times
from auditkit.measure.clock import clock_of
from auditkit.measure.profile import Log
from auditkit.measure.subject import Subject, tokens_of
from auditkit.measure.times import StepTimes, measure_parts, profile, profiled
from auditkit.model.plan import Cuts, Plan
from auditkit.model.state import state_digests
from auditkit.replay.layout import Layout


def in_pieces(subject: Subject) -> Subject:
    """The same under a plan that takes two micro-batches through one layer at a time."""
    params: Any = "host" if subject.cuda else "memory"
    plan = Plan(True, group=2, recompute=True, cuts=Cuts(4, 0, 1 if subject.cuda else 0), params=params)
    return replace(subject, layout=Layout(plan, subject.layout.need))


def test_a_step_is_the_sum_of_its_parts() -> None:
    found = StepTimes(micro_batch=2.0, prepare=1.0, update=0.5, digest=0.25, counted=3, peak_bytes=None)
    assert found.step(10) == 21.75


def test_all_parts_are_measured(subject: Subject) -> None:
    found = measure_parts(subject, subject.state(), rounds=2)
    assert found.counted == 2
    assert min(found.micro_batch, found.prepare, found.update, found.digest) > 0
    assert (found.peak_bytes is not None) == subject.cuda


def test_under_a_plan_whole_groups_are_counted(subject: Subject) -> None:
    subject = in_pieces(subject)
    found = measure_parts(subject, subject.state(), rounds=1)
    assert found.counted == 2
    assert found.prepare == 0.0
    assert found.micro_batch > 0


def test_a_micro_batch_is_the_median_of_single_ones_and_the_mean_of_groups() -> None:
    class Numbers:
        def seconds(self, begin: float, end: float) -> float:
            return end - begin

    clock: Any = Numbers()
    assert times._between([1.0, 2.0, 5.0, 6.0], 1, clock) == 1.0
    assert times._between([4.0, 4.0, 10.0, 10.0], 2, clock) == 3.0
    with pytest.raises(ValueError, match="one group"):
        times._between([4.0, 4.0], 2, clock)


def test_a_profile_names_the_ops_of_one_micro_batch(subject: Subject) -> None:
    found = profile(subject, subject.state())
    counts = {line.name.split(" ")[0]: 0 for line in found.ops}
    for line in found.ops:
        counts[line.name.split(" ")[0]] += line.count
    # one layer: seven products and the head's, each three times; its norms are two, beside the last one
    assert (counts["dot"], counts["attention_forward"]) == (24, 1)
    assert (counts["rms_norm_backward"], counts["rms_norm_backward_add"]) == (1, 2)
    assert {"dot fx14 8,16,16", "dot fx21 24,16,8"} <= {line.name for line in found.ops}
    assert sum(line.seconds for line in found.ops) <= found.wall
    assert {"adamw", "digests"} <= {line.name.split(" ")[0] for line in found.after}
    assert bool(found.kernels) == subject.cuda


def test_a_profile_of_a_plan_is_of_one_group(subject: Subject) -> None:
    found = profile(in_pieces(subject), in_pieces(subject).state())
    assert found.together == 2
    assert sum(line.count for line in found.ops if line.name.startswith("attention_backward")) == 2


def test_timing_changes_no_bit(subject: Subject) -> None:
    clock = clock_of(subject.inner)
    timed = subject.planned(profiled(subject.inner, Log(clock), Log(clock)))
    roots, state, tokens = [], subject.state(), tokens_of(subject.recipe)
    for backend in (subject.planned(), timed):
        new, result = backend.step(state, tokens, subject.recipe)
        root = backend.on_device(lambda new=new: state_digests(new, subject.recipe, subject.inner.ops).root(1))
        roots.append((root, result.gradient, result.leaves))
    assert roots[0] == roots[1]


def test_without_a_number_so_many_are_timed_as_take_a_few_seconds(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert times._rounds(subject, 1e-9) == times.MOST_ROUNDS
    assert times._rounds(subject, 1.0) == 3
    assert times._rounds(subject, 100.0) == 3
    assert times._rounds(in_pieces(subject), 100.0) == 1
    monkeypatch.setattr(times, "MOST_ROUNDS", 3)
    assert measure_parts(subject, subject.state()).counted == 3


def test_a_counter_is_believed_after_a_second_only() -> None:
    assert times._joules([5.0, 25.0], 2.0, 4) == 5.0
    assert times._joules([5.0, 25.0], 0.5, 4) is None
    assert times._joules([None, None], 2.0, 4) is None
