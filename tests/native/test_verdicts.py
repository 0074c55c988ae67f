"""Verdicts where C computes first: what the second replay, always NumPy's, must and need not repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.model.state import State
from auditkit.native.ops import NativeOps
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay.backend import Backend, NativeBackend
from auditkit.replay.report import Report
from auditkit.verdict import Verdict
from tests.replay import make_run
from tests.replay.make_run import Parts


@pytest.fixture(scope="module")
def parts() -> Parts:
    """An honest run in parts; copy it before changing anything."""
    return make_run.train()


@pytest.fixture
def backend(compiled: Path) -> NativeBackend:
    """C for the first replay of one audit: a second one forgets it for good."""
    return NativeBackend(NativeOps(compiled), 2, "cpu")  # type: ignore[arg-type]


def with_norm_weights(parts: Parts, factor: float) -> Parts:
    """The run whose published state before step 4 has the last norm's weights times a factor."""
    lie = parts.copy()
    params: dict[str, Any] = dict(parts.states[4].params)
    params["model.norm.weight"] = params["model.norm.weight"] * np.float32(factor)
    state = parts.states[4]
    lie.states[4] = State(state.step, params, state.adam_m, state.adam_v)
    return lie


def check(parts: Parts, folder: Path, backend: Backend, **options: Any) -> Report:
    return auditkit.verify(str(make_run.publish(parts, folder / "run")), step=4, backend=backend, **options)


def test_an_honest_step_matches(parts: Parts, tmp_path: Path, backend: NativeBackend) -> None:
    assert check(parts, tmp_path, backend, paranoid="same").verdict is Verdict.MATCH
    assert backend.ops.name == "native"


@pytest.mark.parametrize("micro_batches", [None, "all"])
def test_a_wrong_state_is_a_mismatch(
    parts: Parts, tmp_path: Path, backend: NativeBackend, micro_batches: str | None
) -> None:
    report = check(with_norm_weights(parts, 1.5), tmp_path, backend, micro_batches=micro_batches)
    assert report.verdict is Verdict.MISMATCH and backend.ops.name == "numpy"


@pytest.mark.parametrize("micro_batches", [None, "all"])
def test_a_step_without_a_result_is_a_mismatch_wherever_c_saw_it(
    parts: Parts, tmp_path: Path, backend: NativeBackend, micro_batches: str | None
) -> None:
    """C and NumPy look for values that are not finite in other places, and name them by other words."""
    report = check(with_norm_weights(parts, 3e38), tmp_path, backend, micro_batches=micro_batches)
    assert report.verdict is Verdict.MISMATCH
    assert "this step has none" in report.steps[0].message or micro_batches


def test_two_devices_need_not_see_it_in_the_same_place(
    parts: Parts, tmp_path: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditkit.replay.verify.second", lambda *_: Backend(reference, 1, "other"))
    report = check(with_norm_weights(parts, 3e38), tmp_path, backend, paranoid="both")
    assert report.verdict is Verdict.MISMATCH


def no_numbers(*_: Any) -> Any:
    raise NonFinite("non-finite value in dot")


class Spoilt(NativeBackend):
    """Passes its self-test; then an op in C stops."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        if self._native._own:
            self._native._own["dot"] = no_numbers
        return super().step(*arguments, **options)


def test_no_number_from_c_alone_is_a_machine_fault(parts: Parts, tmp_path: Path, compiled: Path) -> None:
    """NumPy gives the step a result: whatever stopped C accuses nobody."""
    report = check(parts, tmp_path, Spoilt(NativeOps(compiled), 1, "cpu"))  # type: ignore[arg-type]
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "two replays of the same step differ" in report.steps[0].message
