"""What an attestation needs of a replay: the proof of work, the digests on both sides, and when it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import auditkit
from auditkit.formats.step_audit import Digests
from auditkit.formats.work import work_key
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import Backend
from auditkit.replay.run import open_run
from auditkit.verdict import Verdict
from tests.replay.flaky import FlakyBackend, FlippedOps, NoSelfTest
from tests.replay.make_run import Parts, flip_state, publish

PUBLIC = bytes(range(32))


def key_of(run_id: str, number: int) -> bytes:
    return work_key(PUBLIC, run_id, number)


class FrozenClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds, self.unix = 100.0, 1_767_323_045.9  # 2026-01-02T03:04:05.9Z

    def now(self) -> float:
        self.seconds += 1.5
        return self.seconds

    def wall(self) -> float:
        return self.unix

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


class WrongWork:
    """Reference ops whose keyed digests are wrong the first time, and right ever after."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def digests(self, arrays: Any, key: bytes | None = None) -> list[str]:
        found = reference.digests(arrays, key)
        if key is not None:
            self.calls += 1
            if self.calls == 1:
                found[0] = "0" * 64
        return found


def test_a_match_comes_with_the_work_of_the_step(honest: Path, parts: Parts) -> None:
    report = auditkit.verify(str(honest), step=6, work_key=key_of)
    (found,) = report.steps
    key = key_of(report.run_id, 6)
    _, own = step(parts.states[6], parts.batches[6], parts.recipe, reference, work_key=key)
    assert report.verdict is Verdict.MATCH
    assert found.work == own.work != ""
    assert report.numerics == 1


def test_without_a_key_there_is_no_work(honest: Path) -> None:
    assert [found.work for found in auditkit.verify(str(honest), steps="3:6").steps] == ["", "", ""]


def test_keys_are_asked_for_wanted_steps_only(honest: Path) -> None:
    asked: list[tuple[str, int]] = []

    def key(run_id: str, number: int) -> bytes:
        asked.append((run_id, number))
        return key_of(run_id, number)

    report = auditkit.verify(str(honest), step=2, work_key=key)
    assert asked == [(report.run_id, 2)]


def test_the_digests_of_both_sides_are_those_of_the_record(honest: Path) -> None:
    (found,) = auditkit.verify(str(honest), step=3).steps
    with open_run(str(honest)) as run:
        record = run.records[3]
    assert found.expected == Digests(record.state_after, record.gradient, record.micro_root) == found.obtained
    assert found.record == record.digest()
    assert found.record_sha256 == sha256(record.encode()).hexdigest()


def test_a_mismatch_has_both_sides_and_the_work(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    folder = publish(lie, tmp_path / "lie")
    report = auditkit.verify(str(folder), step=4, work_key=key_of)
    (found,) = report.steps
    assert found.verdict is Verdict.MISMATCH
    assert found.expected is not None and found.obtained is not None
    assert found.expected.state != found.obtained.state == found.computed
    assert found.expected.gradient == found.obtained.gradient == parts.results[4].gradient
    _, own = step(parts.states[4], parts.batches[4], parts.recipe, reference, work_key=key_of(report.run_id, 4))
    assert found.work == own.work


def test_a_step_without_a_result_has_none(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[4] = flip_state(parts.states[4], "params", "model.norm.weight", 0)
    lie.states[4].params["model.norm.weight"][...] = 3e38
    (found,) = auditkit.verify(str(publish(lie, tmp_path / "lie")), step=4, work_key=key_of).steps
    assert found.verdict is Verdict.MISMATCH
    assert found.expected is not None and found.obtained is None and found.work == ""


def test_two_replays_with_different_work_are_a_machine_fault(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    folder = str(publish(lie, tmp_path / "lie"))
    report = auditkit.verify(folder, step=4, work_key=key_of, backend=NoSelfTest(WrongWork(), 1, "wrong"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert report.steps[0].work == "" and report.steps[0].obtained is None
    assert report.steps[0].message.count(", work ") == 2


def test_steps_that_are_not_reached_name_their_record_all_the_same(honest: Path) -> None:
    class Stuck(Backend):
        def step(self, *arguments: Any, **options: Any) -> Any:
            raise MemoryError

    report = auditkit.verify(str(honest), steps="1:3", backend=Stuck(reference, 1, "stuck"))
    assert [found.verdict for found in report.steps] == [Verdict.UNSUPPORTED] * 2
    with open_run(str(honest)) as run:
        assert [found.record for found in report.steps] == [run.records[n].digest() for n in (1, 2)]
    assert all(found.started and found.finished and found.started <= found.finished for found in report.steps)


def test_each_wanted_step_is_handed_on_alone_as_soon_as_it_is_found(honest: Path) -> None:
    seen: list[auditkit.Report] = []
    report = auditkit.verify(str(honest), steps="2:5", work_key=key_of, on_step=seen.append)
    assert [found.steps for found in seen] == [(step,) for step in report.steps]
    assert [found.wanted for found in seen] == [(2,), (3,), (4,)] and report.wanted == (2, 3, 4)
    assert all(found.verdict is Verdict.MATCH and found.run_id == report.run_id for found in seen)
    assert all(found.checks == report.checks and found.machine == report.machine for found in seen)


def test_times_are_those_of_the_clock(honest: Path) -> None:
    report = auditkit.verify(str(honest), step=4, clock=FrozenClock())
    (found,) = report.steps
    assert found.started == datetime(2026, 1, 2, 3, 4, 5, 900000, UTC)
    assert found.finished == datetime(2026, 1, 2, 3, 4, 7, 400000, UTC)
    assert found.seconds == 1.5
    said = json.loads(report.to_json())["steps"][0]
    assert (said["started"], said["finished"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:04:07Z")


def test_the_report_as_json_holds_all_of_it(honest: Path) -> None:
    report = auditkit.verify(str(honest), step=5, work_key=key_of)
    found, said = report.steps[0], json.loads(report.to_json())
    assert said["numerics"] == 1
    (step_said,) = said["steps"]
    assert found.expected is not None
    assert step_said["expected"] == step_said["obtained"] == asdict(found.expected)
    assert step_said["work"] == found.work and step_said["record_sha256"] == found.record_sha256


def test_a_flaky_machine_signs_nothing(honest: Path) -> None:
    """One flipped bit in the first replay: nothing that an attestation could be made of."""
    report = auditkit.verify(str(honest), step=4, work_key=key_of, backend=FlakyBackend(FlippedOps("adamw"), 1, "f"))
    (found,) = report.steps
    assert found.verdict is Verdict.MACHINE_FAULT and found.obtained is None and found.work == ""
