"""The Python API: verdicts, reports, and machines that cannot be trusted."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit
from auditkit.errors import UsageError
from auditkit.numerics import reference
from auditkit.replay.backend import Backend
from auditkit.replay.report import CHECKS, Status
from auditkit.verdict import Verdict
from tests.ops import float_env
from tests.replay.flaky import FaultyBackend, FlakyBackend, FlippedOps, NoSelfTest
from tests.replay.make_run import Parts, flip_state, publish


class Recorder:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.done = 0
        self.finished = 0

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        self.totals.append(total)

    def advance(self, n: int) -> None:
        self.done += n

    def finish(self) -> None:
        self.finished += 1

    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_match(honest: Path) -> None:
    report = auditkit.verify(str(honest), step=4)
    assert report.verdict is Verdict.MATCH
    (step,) = report.steps
    assert step.published == step.computed != ""
    assert [check.number for check in (*report.checks, *step.checks)] == sorted(CHECKS)
    assert all(check.status is Status.OK for check in (*report.checks, *step.checks))
    assert report.not_checked
    assert report.machine["self_test"] == "passed"


def test_every_step_of_the_run_matches_with_any_number_of_threads(honest: Path) -> None:
    first, second = (auditkit.verify(str(honest), steps="0:8", threads=threads) for threads in (1, 3))
    assert first.verdict is second.verdict is Verdict.MATCH
    assert [s.computed for s in first.steps] == [s.computed for s in second.steps]
    assert [s.start for s in first.steps] == [0, 0, 0, 0, 4, 5, 5, 5]


def test_a_report_has_no_truth_value(honest: Path) -> None:
    report = auditkit.verify(str(honest), step=0)
    with pytest.raises(TypeError, match=r"report\.verdict"):
        bool(report)
    found = json.loads(report.to_json())
    assert (found["verdict"], found["code"], found["steps"][0]["step"]) == ("MATCH", 0, 0)


def test_progress_counts_every_micro_batch(honest: Path) -> None:
    progress = Recorder()
    auditkit.verify(str(honest), steps=(1, 7), progress=progress)
    assert progress.totals == [7 * 2]
    assert progress.done == 14
    assert progress.finished == 1


def test_wrong_calls_are_usage_errors(honest: Path) -> None:
    with pytest.raises(UsageError):
        auditkit.verify(str(honest))
    with pytest.raises(UsageError):
        auditkit.verify(str(honest), step=8)
    with pytest.raises(UsageError):
        auditkit.verify(str(honest / "nothing"), step=0)
    with pytest.raises(UsageError):
        auditkit.verify(str(honest), step=0, threads=0)


def test_devices_that_are_not_there_are_unsupported(honest: Path) -> None:
    report = auditkit.verify(str(honest), step=0, device="cuda")
    assert report.verdict is Verdict.UNSUPPORTED
    assert "--device cpu" in report.hint


@pytest.mark.parametrize("name", ["adamw", "rms_norm_forward", "swiglu_forward"])
def test_one_flipped_bit_in_the_first_replay_is_a_machine_fault(honest: Path, name: str) -> None:
    """Case 13: both digests, nothing about the publisher."""
    report = auditkit.verify(str(honest), step=4, backend=FlakyBackend(FlippedOps(name), 1, "flaky"))
    assert report.verdict is Verdict.MACHINE_FAULT
    (step,) = report.steps
    assert step.verdict is Verdict.MACHINE_FAULT
    assert "two replays of the same step differ: state " in step.message
    assert step.published in step.message  # the second replay was right
    assert "nothing about the publisher" in step.hint


def test_a_bit_that_is_always_flipped_is_a_mismatch_without_a_self_test(honest: Path) -> None:
    """What the self-test is for: two replays on a machine that is always wrong agree."""
    ops = FlippedOps("adamw", always=True)
    blind = auditkit.verify(str(honest), step=4, backend=NoSelfTest(ops, 1, "wrong"))
    assert blind.verdict is Verdict.MISMATCH
    report = auditkit.verify(str(honest), step=4, backend=Backend(ops, 1, "wrong"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "adamw" in report.message


def test_a_machine_that_fails_its_self_test_gives_no_verdict(honest: Path) -> None:
    class Broken(FaultyBackend):
        fails_from = 0

    report = auditkit.verify(str(honest), step=4, backend=Broken(reference, 1, "broken"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert report.steps == ()
    assert report.machine["self_test"] == "failed"


def test_the_self_test_runs_again_before_a_mismatch(parts: Parts, tmp_path: Path) -> None:
    class Tired(FaultyBackend):
        fails_from = 1

    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    folder = publish(lie, tmp_path / "lie")
    assert auditkit.verify(str(folder), step=4).verdict is Verdict.MISMATCH
    assert auditkit.verify(str(folder), step=4, backend=Tired(reference, 1, "tired")).verdict is Verdict.MACHINE_FAULT


def test_a_start_state_that_changes_in_memory_is_a_machine_fault(honest: Path) -> None:
    """Both replays would agree, and accuse the publisher."""

    class Rotting(Backend):
        def step(self, state, tokens, recipe, **options):  # type: ignore[no-untyped-def]
            state.params["model.norm.weight"] = state.params["model.norm.weight"] + state.params["model.norm.weight"]
            return super().step(state, tokens, recipe, **options)

    report = auditkit.verify(str(honest), step=4, backend=Rotting(reference, 1, "rotting"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "the start state changed in memory" in report.steps[0].message


def test_flush_to_zero_and_rounding_modes_give_no_verdict(honest: Path) -> None:
    with float_env.flush_to_zero():
        report = auditkit.verify(str(honest), step=4)
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "flush-to-zero" in report.message
    with float_env.rounding(float_env.UP):
        assert auditkit.verify(str(honest), step=4).verdict is Verdict.MACHINE_FAULT
    assert auditkit.verify(str(honest), step=4).verdict is Verdict.MATCH


def test_a_rounding_mode_that_changes_after_the_self_test_is_no_mismatch(honest: Path) -> None:
    """A library that is loaded late: what it spoils must not read as an accusation."""

    class Spoilt(Backend):
        def step(self, state, tokens, recipe, **options):  # type: ignore[no-untyped-def]
            spoil.enter_context(float_env.rounding(float_env.UP))
            return super().step(state, tokens, recipe, **options)

    with ExitStack() as spoil:
        report = auditkit.verify(str(honest), step=4, backend=Spoilt(reference, 2, "spoilt"))
    assert report.verdict is Verdict.MACHINE_FAULT


def test_a_step_that_gives_no_number_is_a_mismatch(parts: Parts, tmp_path: Path) -> None:
    """The records claim a finite result, but the published start state overflows."""
    lie = parts.copy()
    params = dict(parts.states[4].params)
    params["model.norm.weight"] = params["model.norm.weight"] * 3e38
    lie.states[4] = replace(parts.states[4], params=params)
    report = auditkit.verify(str(publish(lie, tmp_path / "lie")), step=4)
    assert report.verdict is Verdict.MISMATCH
    assert "this step has none" in report.steps[0].message


def test_what_was_not_checked_is_said(honest: Path) -> None:
    said = "\n".join(auditkit.verify(str(honest), step=6).not_checked)
    assert "6 of the run's 8 steps" in said
    assert "the bytes of the state before step 6" in said
    assert "the bytes of the state after step 6" in said
    assert "nothing is signed" in said
    assert "the run's 8 steps" not in "\n".join(auditkit.verify(str(honest), steps="0:8").not_checked)


def test_importing_the_package_loads_nothing() -> None:
    import subprocess
    import sys

    code = "import sys, auditkit; print(sorted({'numpy', 'httpx', 'blake3'} & set(sys.modules))); auditkit.Report"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError):
        auditkit.nothing  # noqa: B018
