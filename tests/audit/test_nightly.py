"""The nightly job: a beacon decides the steps, busy mirrors are tolerated for a while, a mismatch keeps evidence."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from auditkit.audit import history
from auditkit.audit.assigned import NO_KEY
from auditkit.audit.history import History
from auditkit.audit.nightly import HISTORY, Night, Plan, nightly
from auditkit.errors import Unsupported, UsageError
from auditkit.formats.times import time_text
from auditkit.replay.run import open_run
from auditkit.store.lock import only_writer
from auditkit.trust import beacon
from auditkit.trust.assignment import Ranks, assign
from auditkit.trust.beacon import Beacon
from auditkit.verdict import Verdict
from tests.audit.nights import BEACON, DAY, Make, clock, make, own_cache, result
from tests.replay import make_run
from tests.store import servers
from tests.store.tools import FakeClock

__all__ = ["clock", "make", "own_cache"]


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


class Waiting(FakeClock):
    """A clock whose short waits take time, for another thread."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(seconds)


def test_two_nights_at_once_both_leave_their_line(
    make: Make, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to read the history goes on only when the other has read it too, or cannot."""
    reads, both = history.read, threading.Barrier(2)

    def read(path: Path) -> tuple[History, str]:
        found = reads(path)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=1)
        return found

    def night(number: int) -> Night:
        clock = Waiting()
        clock.time += number  # a folder of its own
        return nightly(Plan(count=1), make(honest, clock=clock), tmp_path)

    monkeypatch.setattr(history, "read", read)
    with ThreadPoolExecutor() as pool:
        nights = list(pool.map(night, range(2)))
    past, problem = reads(tmp_path / HISTORY)
    assert {found.finished for found in past.nights} == {found.finished for found in nights}
    assert (len(past.nights), problem) == (2, "")
    assert all(found.notes == ["not attested: there is no key"] for found in nights)


def test_a_night_does_not_wait_for_ever_for_the_history(make: Make, honest: Path, tmp_path: Path) -> None:
    with only_writer(tmp_path):
        night = nightly(Plan(count=1), make(honest), tmp_path)
    assert night.verdict is Verdict.MATCH
    assert "may overwrite the history" in result(night)["notes"][-1]
    assert len(history.read(tmp_path / HISTORY)[0].nights) == 1


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


def test_a_folder_that_cannot_be_made_is_not_taken_for_the_cache(make: Make, honest: Path, tmp_path: Path) -> None:
    (tmp_path / "nights").write_bytes(b"")
    with pytest.raises(Unsupported, match="nights") as error:
        nightly(Plan(), make(honest), tmp_path / "nights")
    assert error.value.hint == "choose a folder that can be written, or make room"


def test_a_night_of_the_same_second_is_not_overwritten(make: Make, honest: Path, tmp_path: Path) -> None:
    nightly(Plan(), make(honest), tmp_path)
    with pytest.raises(UsageError, match="is there already"):
        nightly(Plan(), make(honest), tmp_path)
