"""What explains a mismatch decides nothing: the mismatch stands where it cannot be looked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import MachineFault, Unsupported
from auditkit.model.state import State
from auditkit.model.step import StepResult
from auditkit.numerics import reference
from auditkit.replay.backend import Backend
from auditkit.verdict import Verdict
from tests.replay.make_run import Parts, publish


class Small(Backend):
    """A machine with memory for the two replays of a step, and not for a third one."""

    def step(self, *arguments: Any, **options: Any) -> tuple[State, StepResult]:
        """As Backend.step."""
        taken.append(self)
        if len(taken) > 2:
            raise MemoryError
        return super().step(*arguments, **options)


class Away(Backend):
    """A device that does not give its states back."""

    def host(self, state: State) -> State:
        """As Backend.host."""
        raise errors[0]


taken: list[Backend] = []
errors: list[Exception] = []


def lie(parts: Parts, folder: Path) -> Path:
    """Another state was trained on than is published: every field differs, and no usual cause is it."""
    made, state = parts.copy(), parts.states[4]
    scaled = {name: array * np.float32(1.5) for name, array in state.params.items()}
    made.states[4] = replace(state, params=scaled)
    return publish(made, folder / "run")


def test_without_memory_for_a_third_replay_a_mismatch_is_one(parts: Parts, tmp_path: Path) -> None:
    taken.clear()
    report = auditkit.verify(lie(parts, tmp_path), step=4, backend=Small(reference, 1, "small"))
    (step,) = report.steps
    assert len(taken) == 3 and report.verdict is Verdict.MISMATCH
    assert step.differences and step.hint == "what may explain it could not be looked for: out of memory"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Unsupported("too little memory"), Verdict.MISMATCH),
        (MachineFault("the device is lost"), Verdict.MACHINE_FAULT),
    ],
)
def test_only_a_machine_that_breaks_meanwhile_takes_it_back(
    parts: Parts, tmp_path: Path, error: Exception, verdict: Verdict
) -> None:
    errors[:] = [error]
    report = auditkit.verify(lie(parts, tmp_path), step=4, backend=Away(reference, 1, "away"))
    assert report.verdict is verdict and bool(report.steps[0].differences) == (verdict is Verdict.MISMATCH)
