"""Everything twice, and known answers in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.errors import MachineFault, UsageError
from auditkit.numerics import reference
from auditkit.numerics.known_answers import PROBES
from auditkit.replay import paranoid
from auditkit.replay.backend import Backend
from auditkit.replay.paranoid import SHARE, KnownAnswers
from auditkit.verdict import Verdict


class Counting(Backend):
    """Counts what it is asked."""

    steps: int = 0
    answers: tuple[str, ...] = ()

    def step(self, *arguments: Any, **options: Any) -> Any:
        Counting.steps += 1
        return super().step(*arguments, **options)

    def known_answer(self, name: str) -> None:
        Counting.answers += (name,)
        super().known_answer(name)


@pytest.fixture(autouse=True)
def _anew() -> None:
    Counting.steps, Counting.answers = 0, ()


def test_each_step_is_computed_twice_before_a_match(honest: Path) -> None:
    report = auditkit.verify(honest, steps="4:6", backend=Counting(reference, 1, "cpu"), paranoid="same")
    assert report.verdict is Verdict.MATCH
    assert Counting.steps == 4 and Counting.answers
    assert "twice with the same result" in report.steps[0].checks[2].detail


def test_without_it_a_step_is_computed_once_and_a_processor_is_not_asked(honest: Path) -> None:
    auditkit.verify(honest, step=4, backend=Counting(reference, 1, "cpu"))
    assert (Counting.steps, Counting.answers) == (1, ())


def test_a_difference_is_a_machine_fault_even_where_one_of_them_matches(honest: Path) -> None:
    class Second(Backend):
        calls = 0

        def step(self, state: Any, tokens: Any, recipe: Any, **options: Any) -> Any:
            type(self).calls += 1
            if type(self).calls == 2:
                tokens = tokens.copy()
                tokens[0, 0] ^= 1
            return super().step(state, tokens, recipe, **options)

    report = auditkit.verify(honest, step=4, backend=Second(reference, 1, "cpu"), paranoid="same")
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "two replays of the same step differ" in report.steps[0].message


def test_two_kinds_of_devices(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Counting(reference, 2, "other")
    monkeypatch.setattr(paranoid, "choose", lambda device, threads: other)
    report = auditkit.verify(honest, step=4, device="cpu", paranoid="both")
    assert report.verdict is Verdict.MATCH and Counting.steps == 1
    assert "on cpu and on other" in report.steps[0].checks[2].detail
    part = auditkit.verify(honest, step=4, device="cpu", paranoid="both", micro_batches="0")
    assert "on cpu and on other" in part.steps[0].checks[2].detail


def test_both_needs_two(honest: Path) -> None:
    report = auditkit.verify(honest, step=4, device="cpu", paranoid="both")
    assert report.verdict is Verdict.UNSUPPORTED
    assert "two kinds of devices" in report.message
    with pytest.raises(UsageError):
        auditkit.verify(honest, step=4, paranoid="twice")


class Ticks:
    """A clock on which each known answer takes a second."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


def test_known_answers_take_their_share_of_the_time_and_come_in_turn() -> None:
    clock, asked = Ticks(), []

    class Slow(Backend):
        def known_answer(self, name: str) -> None:
            asked.append(name)
            clock.at += 1.0

    answers = KnownAnswers(Slow(reference, 1, "cpu"), clock)  # type: ignore[arg-type]
    spent = 0
    for _ in range(100_000):
        before = len(asked)
        answers()
        spent += len(asked) - before
        clock.at += 0.25
    assert spent / clock.at <= 1.1 * SHARE
    assert asked[: len(PROBES)] == list(PROBES) and answers.run == spent


def test_a_wrong_answer_in_the_middle_of_a_step_ends_it(honest: Path) -> None:
    class Worn(Backend):
        def known_answer(self, name: str) -> None:
            raise MachineFault(f"self-test, known answer of {name}: found 1, expected 2")

    report = auditkit.verify(honest, step=4, backend=Worn(reference, 1, "cpu"), paranoid="same")
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "known answer of quantise" in report.steps[0].message
