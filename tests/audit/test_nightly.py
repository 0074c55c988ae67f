"""The nightly job: a beacon decides the steps, busy mirrors are tolerated for a while, a mismatch keeps evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.audit import history
from auditkit.audit.assigned import NO_KEY, Subject
from auditkit.audit.attest import Attester
from auditkit.audit.history import History
from auditkit.audit.nightly import HISTORY, Night, Plan, Tools, nightly
from auditkit.audit.submit import Result, Status
from auditkit.errors import AuditkitError, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.formats.times import time_text
from auditkit.replay.backend import choose
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.replay.verify import verify
from auditkit.trust import beacon, key_files
from auditkit.trust.assignment import Ranks, assign
from auditkit.trust.attested import read_attestation
from auditkit.trust.beacon import Beacon
from auditkit.trust.coverage import Coverage, cover
from auditkit.trust.keys import PrivateKey
from auditkit.trust.policy import Trust
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.replay import make_run
from tests.replay.flaky import FlakyBackend, FlippedOps
from tests.store import servers
from tests.store.tools import FakeClock, Story

BEACON = beacon.parse("5a" * 32)
DAY = 86400.0


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's cache nor the user's proxies."""
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)


@pytest.fixture
def clock() -> FakeClock:
    """A clock whose waits take no time."""
    return FakeClock()


Make = Callable[..., Tools]


@pytest.fixture
def make(clock: FakeClock) -> Make:
    """The tools of a night over a real run: a folder or an address."""

    def tools(run: object, attester: Attester | None = None, **changed: Any) -> Tools:
        def subject() -> Subject:
            with open_run(str(run), clock=clock) as opened:
                return Subject(opened.name, opened.run_id, opened.size)

        def replay(steps: str) -> Report:
            work_key = attester.work_key if attester else None
            return verify(str(run), steps=steps, backend=choose("cpu", 1), clock=clock, work_key=work_key)

        made = Tools(clock, Story(), subject, lambda: (BEACON, {}), replay, attester=attester)
        return replace(made, **changed)

    return tools


def result(night: Night) -> dict[str, Any]:
    """What the night's folder says."""
    found: dict[str, Any] = json.loads((night.folder / "result.json").read_text(encoding="ascii"))
    return found


def test_a_good_night(make: Make, honest: Path, tmp_path: Path, clock: FakeClock) -> None:
    night = nightly(Plan(count=3), make(honest), tmp_path / "nights")
    assert night.verdict is Verdict.MATCH
    with open_run(str(honest)) as run:
        expected = assign(Ranks(run.run_id, NO_KEY, BEACON.value), run.size, 3).tolist()
    found = result(night)
    assert [step["step"] for step in found["assignment"]["steps"]] == expected
    assert [step["step"] for step in found["steps"]] == sorted(expected)
    assert (found["verdict"], found["code"]) == ("MATCH", 0)
    assert (found["attested"], found["keyid"], found["attestations"]) == (False, "", [])
    assert found["notes"] == ["not attested: there is no key"]
    assert json.loads((night.folder / "report.json").read_text(encoding="ascii"))["verdict"] == "MATCH"
    assert clock.waits == []
    past, problem = history.read(tmp_path / "nights" / HISTORY)
    assert (past.nights[-1].verdict, problem) == (Verdict.MATCH, "")


def test_the_beacon_decides_the_steps_and_a_date_says_that_it_was_foreseeable(
    make: Make, honest: Path, tmp_path: Path, clock: FakeClock
) -> None:
    import datetime

    of_date = beacon.of_date(datetime.date(2026, 1, 2))
    drawn = []
    for value in (BEACON, of_date, Beacon(b"\x01" * 32)):
        clock.time += 1
        night = nightly(Plan(count=4), make(honest, beacon=lambda value=value: (value, {"round": 7})), tmp_path)
        assert night.assigned is not None
        drawn.append(night.assigned.steps)
        assert (of_date.caveat in result(night)["notes"]) is (value is of_date)
        assert result(night)["round"] == {"round": 7}
    assert len(set(drawn)) == 3


def test_more_steps_than_there_are_is_all_of_them(make: Make, honest: Path, tmp_path: Path) -> None:
    night = nightly(Plan(count=1000), make(honest), tmp_path)
    assert night.verdict is Verdict.MATCH
    assert [step["step"] for step in result(night)["steps"]] == list(range(make_run.STEPS))


class Mirror:
    """A server of a run that is busy for a number of requests, or for ever."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def __call__(self, handler: servers.Handler, data: bytes | None) -> None:
        if self.busy:
            self.busy -= 1
            handler.whole(b"busy", 503)
        else:
            servers.honest(handler, data)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a run, by the path it is served under."""
    return {f"run/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_mirror_that_recovers_during_the_night_is_no_news(
    make: Make, honest: Path, tmp_path: Path, clock: FakeClock
) -> None:
    # more refusals than the store itself puts up with
    with servers.serve(Mirror(11), files_of(honest)) as server:
        night = nightly(Plan(count=2, pause_seconds=300), make(server.url + "run"), tmp_path / "nights")
    assert night.verdict is Verdict.MATCH
    assert 300 in clock.waits


def test_a_busy_mirror_is_tolerated_after_a_good_night_and_not_for_ever(
    make: Make, honest: Path, tmp_path: Path, clock: FakeClock
) -> None:
    verdicts, base, plan = [], tmp_path / "nights", Plan(count=2, tries=2)
    mirror = Mirror(0)
    with servers.serve(mirror, files_of(honest)) as server:
        for busy in (0, 10**9, 10**9, 10**9, 10**9, 0, 10**9):
            mirror.busy = busy
            night = nightly(plan, make(server.url + "run"), base)
            verdicts.append(night.verdict)
            clock.time += DAY
    good, busy_night, loud = Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.INCOMPLETE
    assert verdicts == [good, busy_night, busy_night, busy_night, loud, good, busy_night]
    past, _ = history.read(base / HISTORY)
    assert [n.verdict for n in past.nights] == [good, *[busy_night] * 4, good, busy_night]


def test_a_busy_mirror_in_the_first_night_is_loud_for_nothing_vouches_for_the_run(
    make: Make, honest: Path, tmp_path: Path
) -> None:
    with servers.serve(Mirror(10**9), files_of(honest)) as server:
        night = nightly(Plan(tries=2), make(server.url + "run"), tmp_path)
    assert night.verdict is Verdict.INCOMPLETE
    found = result(night)
    assert found["code"] == 9
    assert "503" in found["message"]
    assert found["notes"] == [
        "nights in a row without a full match: 1; the last full match: none is known",
        "more than 3.5 days without a full match: this night fails",
    ]


def test_a_history_that_was_damaged_is_loud_too(make: Make, honest: Path, tmp_path: Path, clock: FakeClock) -> None:
    past = History().add(history.Night(time_text(clock.wall() - DAY), Verdict.MATCH))
    with servers.serve(Mirror(10**9), files_of(honest)) as server:
        for data, verdict in ((past.encode(), Verdict.UNAVAILABLE), (b"{", Verdict.INCOMPLETE)):
            (tmp_path / HISTORY).write_bytes(data)
            clock.time += 1
            assert nightly(Plan(tries=1), make(server.url + "run"), tmp_path).verdict is verdict


def test_one_state_that_nobody_serves_leaves_the_other_steps_verified(
    make: Make, honest: Path, tmp_path: Path, clock: FakeClock
) -> None:
    files = files_of(honest)
    del files["run/states/00000005/state.json"]
    with servers.serve(servers.honest, files) as server:
        night = nightly(Plan(count=1000, tries=2), make(server.url + "run"), tmp_path)
    verdicts = {step["step"]: step["verdict"] for step in result(night)["steps"]}
    # 4 ends in the state that is gone, 5 to 7 begin with it
    assert verdicts == {step: "UNAVAILABLE" if step >= 4 else "MATCH" for step in range(make_run.STEPS)}
    assert night.verdict is Verdict.INCOMPLETE
    assert clock.waits.count(300.0) == 1


def test_bad_bytes_that_stay_bad_fail_the_night(make: Make, honest: Path, tmp_path: Path) -> None:
    files = files_of(honest)
    files["run/records.bin"] = servers.flip(files["run/records.bin"])
    with servers.serve(servers.honest, files) as server:
        night = nightly(Plan(tries=2), make(server.url + "run"), tmp_path)
    assert night.verdict is Verdict.BAD_ARTIFACT


def test_a_mismatch_fails_the_night_and_its_evidence_is_kept(make: Make, parts: make_run.Parts, tmp_path: Path) -> None:
    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    checkpoints = {"checkpoints/served": b"one", "evidence/smaller.txt": b"another"}
    night = nightly(Plan(count=1000), make(lying, evidence=lambda: checkpoints), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH
    found = result(night)
    assert found["code"] == 3
    assert {step["step"]: step["verdict"] for step in found["steps"]}[3] == "MISMATCH"
    report = json.loads((night.folder / "report.json").read_text(encoding="ascii"))
    (wrong,) = [step for step in report["steps"] if step["verdict"] == "MISMATCH"]
    assert wrong["published"] != wrong["computed"]
    kept = [p for p in (night.folder / "log").rglob("*") if p.is_file()]
    assert {p.relative_to(night.folder / "log").as_posix(): p.read_bytes() for p in kept} == checkpoints


def test_no_checkpoints_are_kept_of_a_match(make: Make, honest: Path, tmp_path: Path) -> None:
    night = nightly(Plan(), make(honest, evidence=lambda: {"served": b"one"}), tmp_path)
    assert sorted(p.name for p in night.folder.iterdir()) == ["report.json", "result.json"]


@pytest.fixture(scope="module")
def attester() -> Attester:
    """The nightly job's key, always the same one: the steps depend on it."""
    return Attester(PrivateKey(bytes([2]) * 32), "nightly")


def test_evidence_that_cannot_be_kept_does_not_keep_a_mismatch_from_being_signed(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester
) -> None:
    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")

    def evidence() -> dict[str, bytes]:
        raise Unavailable("cannot read checkpoints: input/output error")

    night = nightly(Plan(count=1000), make(lying, attester, evidence=evidence), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH
    assert [name for name in night.attestations if name.startswith("attestations/step-3.")]
    assert "UNAVAILABLE: cannot read checkpoints: input/output error" in result(night)["notes"]


def test_every_step_is_attested_as_nightly_and_submitted(
    make: Make, honest: Path, tmp_path: Path, attester: Attester
) -> None:
    sent: list[bytes] = []

    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        sent.extend(data for _, data in envelopes)
        return [Result(name, "ab" * 32, Status.TAKEN, at) for at, (name, _) in enumerate(envelopes, 1)]

    night = nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path)
    found = result(night)
    assert (found["verdict"], found["attested"], found["keyid"]) == ("MATCH", True, attester.keyid)
    assert [(entry["status"], entry["position"]) for entry in found["submitted"]] == [("taken", 1), ("taken", 2)]
    with open_run(str(honest)) as run:
        expected = assign(Ranks(run.run_id, attester.keyid, BEACON.value), run.size, 2).tolist()
        keys = {attester.keyid: attester.key.public}
        read = [read_attestation(data, keys, run_id=run.run_id, records=run.records) for data in sent]
    assert [attested.step for attested in read] == sorted(expected)
    assert {(attested.verdict, attested.automation) for attested in read} == {(Verdict.MATCH, "nightly")}
    assert all(attested.work for attested in read)
    kept = [(night.folder / name).read_bytes() for name in found["attestations"] if not name.endswith(".svr.json")]
    assert kept == sent
    assert len(found["attestations"]) == 4  # and two summaries


def test_steps_that_this_key_has_spoken_on_are_not_drawn_again_until_all_are_done(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, clock: FakeClock
) -> None:
    entries: list[Entry] = []
    drawn: list[int] = []

    def said(subject: Subject) -> tuple[Coverage, str]:
        return cover(Rows.of(entries), Trust.of([attester.key.public]), subject.size), "cd" * 32

    for _ in range(5):
        clock.time += 1
        night = nightly(Plan(count=2), make(honest, attester, said=said), tmp_path)
        assert night.assigned is not None
        assert night.assigned.policy == ("cd" * 32 if len(drawn) < make_run.STEPS else "")
        drawn += night.assigned.steps
        entries += [Entry(s, attester.keyid, Verdict.MATCH, "cpu-x86_64", 1, "nightly") for s in night.assigned.steps]
    assert sorted(drawn[: make_run.STEPS]) == list(range(make_run.STEPS))
    assert any("spoken on every step" in note for note in night.notes)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(Unavailable("busy"), Verdict.INCOMPLETE), (Untrusted("no"), Verdict.UNTRUSTED)],
)
def test_a_registry_that_fails_spoils_the_night_but_loses_nothing(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, error: AuditkitError, verdict: Verdict
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        raise error

    night = nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path)
    found = result(night)
    assert night.verdict is verdict
    assert len(found["attestations"]) == 4
    assert found["submitted"] == []
    assert f"{error.verdict.name}: {error.message}" in found["notes"]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (Status.KNOWN, Verdict.MATCH),
        (Status.REFUSED, Verdict.UNTRUSTED),
        (Status.LATER, Verdict.INCOMPLETE),  # nothing is known of earlier nights
    ],
)
def test_what_a_registry_did_not_take_is_part_of_the_verdict(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, status: Status, verdict: Verdict
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        return [Result(name, "ab" * 32, status, message="because") for name, _ in envelopes]

    assert nightly(Plan(count=2), make(honest, attester, submit=submit), tmp_path).verdict is verdict


def test_a_registry_that_fails_does_not_hide_a_mismatch(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester
) -> None:
    def submit(envelopes: Sequence[tuple[str, bytes]]) -> list[Result]:
        raise Untrusted("no")

    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    night = nightly(Plan(count=1000), make(lying, attester, submit=submit), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH


def test_a_night_goes_on_where_what_was_attested_cannot_be_read(
    make: Make, honest: Path, tmp_path: Path, attester: Attester
) -> None:
    def said(subject: Subject) -> tuple[Coverage | None, str]:
        raise Unavailable("the log does not answer")

    night = nightly(Plan(), make(honest, attester, said=said), tmp_path)
    assert night.verdict is Verdict.MATCH
    assert any("the log does not answer" in note for note in night.notes)


def test_a_disk_that_fails_while_signing_does_not_lose_the_report(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Unsupported("the disk is full")

    monkeypatch.setattr(key_files, "write_new", full)
    night = nightly(Plan(), make(honest, attester), tmp_path)
    assert night.verdict is Verdict.UNSUPPORTED
    assert (night.folder / "report.json").exists()
    assert "UNSUPPORTED: the disk is full" in result(night)["notes"]


def test_a_mismatch_is_signed_and_told_though_no_report_can_be_written(
    make: Make, parts: make_run.Parts, tmp_path: Path, attester: Attester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Unsupported("the disk is full")

    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    monkeypatch.setattr("auditkit.audit.nightly._write", full)
    monkeypatch.setattr("auditkit.audit.history.write", full)
    night = nightly(Plan(count=1000), make(lying, attester), tmp_path / "nights")
    assert night.verdict is Verdict.MISMATCH
    assert [name for name in night.attestations if name.startswith("attestations/step-3.")]
    assert night.notes.count("UNSUPPORTED: the disk is full") == 3  # report, result and history


def test_a_machine_that_disagrees_with_itself_signs_nothing_and_is_not_tried_again(
    make: Make, honest: Path, tmp_path: Path, attester: Attester, clock: FakeClock
) -> None:
    def replay(steps: str) -> Report:
        return verify(
            str(honest),
            steps=steps,
            backend=FlakyBackend(FlippedOps("adamw"), 1, "flaky"),
            work_key=attester.work_key,
            clock=clock,
        )

    night = nightly(Plan(count=1), make(honest, attester, verify=replay), tmp_path)
    assert night.verdict is Verdict.MACHINE_FAULT
    assert night.assigned is not None and night.assigned.steps[0] in make_run.PUBLISHED
    found = result(night)
    assert found["attestations"] == []
    assert any("says nothing about the publisher" in note for note in found["notes"])
    assert clock.waits == []


def test_a_night_of_the_same_second_is_not_overwritten(make: Make, honest: Path, tmp_path: Path) -> None:
    nightly(Plan(), make(honest), tmp_path)
    with pytest.raises(UsageError, match="is there already"):
        nightly(Plan(), make(honest), tmp_path)
