"""Records from the signed log in place of records.bin: what is fetched, which links are checked, what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.audit.signed_log import SignedLog
from auditkit.audit.verify import verify
from auditkit.formats.canonical import dumps
from auditkit.formats.record import StepRecord
from auditkit.replay import verify as replay
from auditkit.replay.backend import choose
from auditkit.replay.estimate import estimate
from auditkit.replay.fetch import fetch
from auditkit.replay.plan import intervals
from auditkit.replay.report import Status
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.audit.signed_runs import LONG, change, copy, files, key_of, manifest_of, records_of, sign_lie
from tests.store.servers import Server, honest, serve

A = "a" * 64


def asked_for(server: Server) -> set[str]:
    """The files that a server was asked for."""
    return {asked.path for asked in server.asked}


def test_a_step_of_a_long_run_needs_no_records_file(long: Path, tmp_path: Path) -> None:
    with serve(honest, files(long)) as server:
        report = verify(server.url, steps="5:7", cache_dir=tmp_path / "cache")
        assert report.verdict is Verdict.MATCH
        chain, log = report.checks[1].detail, report.checks[2].detail
        assert chain == "records 4 to 7, each naming the one before; the rest of the chain was not read"
        assert log.startswith(f"signed by {key_of(long).text}: {LONG} entries, root {manifest_of(long).log.root}")
        assert report.not_checked[0] == (
            f"{LONG - 2} of the run's {LONG} steps: the signed log commits to their records, which were not read,"
            " nor was the chain through them"
        )
        assert "records.bin" not in asked_for(server)
        assert sorted(path for path in asked_for(server) if path.startswith("log/")) == [
            "log/checkpoint",
            "log/tile/0/000",
            "log/tile/0/015.p/160",
            "log/tile/1/000.p/15",
            "log/tile/entries/000",
        ]
        asked = len(server.asked)
        again = verify(server.url, steps="5:7", cache_dir=tmp_path / "cache", offline=True)
        assert again.verdict is Verdict.MATCH, again.message
        assert len(server.asked) == asked


def test_the_first_step(long: Path) -> None:
    report = replay.verify(str(long), step=0, log=SignedLog(whole=False))
    assert report.verdict is Verdict.MATCH
    assert report.checks[1].detail.startswith("records 0 to 1, each naming the one before")


def test_the_last_step(signed: Path) -> None:
    report = replay.verify(str(signed), steps="7:8", log=SignedLog(whole=False))
    assert report.verdict is Verdict.MATCH
    # reached from state 5, whose neighbour is record 4; there is none behind the last
    assert report.checks[1].detail.startswith("records 4 to 7, each")


def test_steps_far_from_each_other(signed: Path) -> None:
    report = replay.verify(str(signed), steps="0,7", log=SignedLog(whole=False))
    assert report.verdict is Verdict.MATCH
    assert report.checks[1].detail.startswith("records 0 to 1 and 4 to 7, each naming the one before;")


def test_records_that_are_at_hand_are_read_whole(long: Path) -> None:
    report = verify(str(long), step=5)
    assert report.verdict is Verdict.MATCH
    assert report.checks[1].detail.startswith(f"{LONG} records, each naming the one before")
    assert f"root {manifest_of(long).log.root} over all {LONG} records; signed by" in report.checks[2].detail
    assert "their records were read" in report.not_checked[0]


def test_a_small_run_is_read_whole_from_anywhere(signed: Path, tmp_path: Path) -> None:
    with serve(honest, files(signed)) as server:
        report = verify(server.url, step=4, cache_dir=tmp_path / "cache")
        assert report.verdict is Verdict.MATCH
        assert "records.bin" in asked_for(server)
        log = {path for path in asked_for(server) if path.startswith("log/")}
        assert log == {"log/checkpoint", "log/tile/0/000.p/8"}


def test_whichever_is_less_is_fetched(long: Path, tmp_path: Path) -> None:
    """A bundle takes 256 records of about 800 bytes, records.bin 140 bytes a step."""
    with serve(honest, files(long)) as server, open_run(server.url, cache_dir=tmp_path / "cache") as run:

        def needed(*steps: int) -> bool:
            return SignedLog().needed(run, intervals(steps, range(LONG))) is not None

        assert needed(5)
        assert needed(300, 301)
        assert not needed(5, 300, 600)
        assert SignedLog(whole=False).needed(run, intervals([5, 300, 600], range(LONG))) is not None
        assert SignedLog(whole=True).needed(run, intervals([5], range(LONG))) is None


@pytest.mark.parametrize("which", ["small", "long"])
def test_fetch_brings_what_an_offline_verification_needs(signed: Path, long: Path, tmp_path: Path, which: str) -> None:
    run, cache = signed if which == "small" else long, tmp_path / "cache"
    with serve(honest, files(run)) as server:
        done = fetch(server.url, select(step=5), cache_dir=cache, log=SignedLog())
        assert ("records.bin" in asked_for(server)) is (which == "small")
        assert ("records.bin" in {need.path for need in done.needs.files}) is (which == "small")
    report = verify(server.url, step=5, cache_dir=cache, offline=True)
    assert report.verdict is Verdict.MATCH, report.message


def test_a_plan_counts_records_only_where_they_are_read(long: Path, tmp_path: Path) -> None:
    with serve(honest, files(long)) as server, open_run(server.url, cache_dir=tmp_path / "cache") as run:
        backend = choose("cpu", 1)
        with_log, without = (estimate(run, select(step=5), backend, log).total_bytes for log in (SignedLog(), None))
        assert without - with_log == run.manifest.artifact("records.bin").size


def lie(folder: Path, at: int, fields: dict[str, Any]) -> None:
    """Sign a log in which one record says something else, with a manifest that agrees."""
    made = records_of(folder)
    made[at] = replace(StepRecord.parse(made[at]), **fields).encode()
    sign_lie(folder, made)


@pytest.mark.parametrize(
    ("at", "fields", "told"),
    [
        (5, {"previous": A}, "record 5 of the signed log: previous is aaaa"),
        (4, {"previous": A}, "record 5 of the signed log: previous is"),  # the digest of record 4 is another now
        (5, {"state_before": A}, "state_before is aaaa"),
        (4, {"state_after": A}, "published state 5 has root"),
        (5, {"run": A}, "record 5 of the signed log: run is aaaa"),
        (5, {"step": 6}, "record 5 of the signed log: step is 6, 5 is expected"),
        (5, {"numerics": 2}, "numerics is 2, 1 is expected"),
        (5, {"micro_batches": 3}, "micro_batches is 3, 2 is expected"),
        (6, {"previous": A}, "record 6 of the signed log: previous is aaaa"),
        (4, {"step": 3}, "record 4 of the signed log: step is 3"),
    ],
)
def test_links_to_the_neighbours_are_checked(
    signed: Path, tmp_path: Path, at: int, fields: dict[str, Any], told: str
) -> None:
    run = copy(signed, tmp_path / "run")
    lie(run, at, fields)
    report = replay.verify(str(run), step=5, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert told in report.message
    assert (report.checks[1].status, report.checks[2].status) == (Status.FAILED, Status.OK)


@pytest.mark.parametrize("fields", [{"state_before": A}, {"state_after": A}])
def test_the_first_record_follows_from_state_0(signed: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    run = copy(signed, tmp_path / "run")
    lie(run, 0, fields)
    report = replay.verify(str(run), step=0, log=SignedLog(whole=False))
    assert (report.verdict, report.checks[1].status) == (Verdict.BAD_ARTIFACT, Status.FAILED)


@pytest.mark.parametrize("entry", [b"", b"{}", b"not a record", dumps({"a": 1})])
def test_an_entry_that_is_no_record(signed: Path, tmp_path: Path, entry: bytes) -> None:
    made = records_of(signed)
    made[5] = entry
    run = sign_lie(copy(signed, tmp_path / "run"), made)
    report = replay.verify(str(run), step=5, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "record 5 of the signed log" in report.message


def test_an_entry_that_is_longer_than_a_record_may_be(signed: Path, tmp_path: Path) -> None:
    """256 records of 4 KiB are the most that a bundle is read for."""
    run = sign_lie(copy(signed, tmp_path / "run"), [b"x" * 65_535] * 8 + [b"x" * 65_535] * 12)
    report = replay.verify(str(run), step=5, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "more than 1,049,088 bytes" in report.message


def test_a_mismatch_with_records_of_the_log(long: Path, tmp_path: Path) -> None:
    """Its hints look at neighbours, whose records were not read: the verdict is the same, with one hint less."""
    run = copy(long, tmp_path / "run")
    made = [StepRecord.parse(entry) for entry in records_of(run)]
    made[5] = replace(made[5], gradient=A, state_after="b" * 64)
    made[6] = replace(made[6], previous=made[5].digest(), state_before="b" * 64)
    sign_lie(run, [record.encode() for record in made])
    signed_states = tuple(state for state in manifest_of(run).states if state.step in (0, 4, 5))
    change(run, states=signed_states)
    report = replay.verify(str(run), step=5, log=SignedLog(whole=False))
    assert report.verdict is Verdict.MISMATCH
    assert {difference.field for difference in report.steps[0].differences} == {"gradient", "state_after"}


def test_a_step_that_nobody_trained_is_the_artifacts_fault(long: Path) -> None:
    report = replay.verify(str(long), step=8, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert report.checks[2].status is Status.OK
