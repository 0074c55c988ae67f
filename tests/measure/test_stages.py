"""Parts of micro-batches and waits within them, by marks of a clock."""

from __future__ import annotations

from typing import Any

import pytest

from auditkit.measure.stages import Stages
from auditkit.measure.subject import Subject
from auditkit.measure.times import measure_parts
from auditkit.model import pieces_step, step
from auditkit.model.stages import STAGES
from tests.measure.test_times import in_pieces


class Ticks:
    """A clock that goes on by one with every mark."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        self.now += 1
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def test_parts_end_where_the_next_one_begins() -> None:
    clock: Any = Ticks()
    stages = Stages(clock)
    stages.begin("before")
    stages.restart()
    stages.begin("a")
    stages.begin("b")
    done = []
    stages.wait("copies", lambda: done.append(True))
    stages.begin("a")
    parts, waits = stages.lines(clock.mark())
    assert {line.name: (line.count, line.seconds) for line in parts} == {"a": (2, 2.0), "b": (1, 3.0)}
    assert [(line.name, line.count, line.seconds) for line in waits] == [("b: copies", 1, 1.0)]
    assert done == [True]
    assert Stages(clock).lines(1.0) == ([], [])
    end = clock.mark()
    parts_before, _ = stages.lines(end)
    stages.stop()
    stages.begin("after")
    stages.wait("copies", lambda: done.append(True))
    assert stages.lines(end) == (parts_before, waits) and len(done) == 2


def test_the_parts_of_a_plan_make_up_its_micro_batches(subject: Subject) -> None:
    subject = in_pieces(subject)
    found = measure_parts(subject, subject.state(), rounds=1)
    assert {line.name for line in found.parts} == set(STAGES)
    whole = found.micro_batch * found.counted
    assert 0 < sum(line.seconds for line in found.parts) <= whole * 1.001
    assert sum(line.seconds for line in found.parts) == pytest.approx(whole, rel=0.2)
    assert sum(line.seconds for line in found.waits) < whole


def test_what_comes_after_the_last_micro_batch_is_none_of_its(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait in the update, as a card has for every sum that it brings."""
    watched: list[Stages] = []
    plain = Stages.__init__

    def noted(self: Stages, clock: Any) -> None:
        plain(self, clock)
        watched.append(self)

    def waiting(*args: Any, **options: Any) -> Any:
        watched[-1].wait("the update", lambda: None)
        return rounded(*args, **options)

    rounded = pieces_step.rounded
    monkeypatch.setattr(Stages, "__init__", noted)
    monkeypatch.setattr(step, "rounded", waiting)
    subject = in_pieces(subject)
    waits = measure_parts(subject, subject.state(), rounds=1).waits
    assert watched and not [line for line in waits if "the update" in line.name]
