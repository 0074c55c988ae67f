"""Runs of several segments and their signed logs, proofs and attestations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.audit.attest import Attester
from auditkit.audit.offline_proof import check, prove
from auditkit.audit.recheck import recheck
from auditkit.audit.record_table import RecordTable
from auditkit.audit.signed_log import Rule, SignedLog
from auditkit.audit.verify import verify
from auditkit.errors import BadArtifact, Untrusted, UsageError
from auditkit.formats.chain import segment_record
from auditkit.formats.record import StepRecord
from auditkit.formats.segment import SegmentRecord, data_digest, parse_entry
from auditkit.registry.runs import load
from auditkit.replay import verify as replay
from auditkit.replay.fetch import fetch
from auditkit.replay.report import Status
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.trust.attested import read_attestation
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.audit.signed_runs import change, copy, files, key_of, manifest_of, records_of, sign, sign_lie
from tests.replay.make_segments import LOWER, SHORT, STEPS, Parts
from tests.store.servers import honest as honest_server
from tests.store.servers import serve

ENTRIES = STEPS + 3
WHOLE = pytest.mark.parametrize("whole", [True, False])
A = "a" * 64


@pytest.fixture(scope="session")
def signed(segmented: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with a signed log; do not write into it."""
    return sign(copy(segmented, tmp_path_factory.mktemp("signed-segments") / "tiny"))


def test_the_log_holds_the_records_of_steps_and_segments(signed: Path) -> None:
    found = [parse_entry(entry) for entry in records_of(signed)]
    assert [type(entry).__name__[:4] for entry in found] == ["Step"] * 3 + (["Segm"] + ["Step"] * 3) * 3
    assert len(found) == ENTRIES == manifest_of(signed).log.size
    with open_run(str(signed)) as run:
        assert [run.timeline.entry(step) for step in (2, 3, 5, 6, 9, 11)] == [2, 4, 6, 8, 12, 14]
        opened = SignedLog().open(run)
        assert [parse_entry(entry) for entry in opened.reader.entries(0, ENTRIES)] == found


@WHOLE
def test_every_step_matches(signed: Path, whole: bool) -> None:
    report = replay.verify(str(signed), steps=(0, STEPS), log=SignedLog(whole=whole))
    assert report.verdict is Verdict.MATCH, report.to_json()


@pytest.mark.parametrize("step", [2, 3, 5, 6, 8, 9])
def test_each_side_of_a_change_matches_with_records_of_the_log(signed: Path, step: int) -> None:
    report = replay.verify(str(signed), step=step, log=SignedLog(whole=False))
    assert report.verdict is Verdict.MATCH, report.to_json()
    assert "the rest of the chain was not read" in report.checks[1].detail
    assert f"{ENTRIES} entries, root {manifest_of(signed).log.root}" in report.checks[2].detail


def test_a_compact_run_can_be_signed_too(segmented_compact: Path, tmp_path: Path) -> None:
    run = sign(copy(segmented_compact, tmp_path / "run"))
    assert verify(str(run), steps="5:10", publisher=key_of(run)).verdict is Verdict.MATCH


def test_fetched_once_it_verifies_offline(signed: Path, tmp_path: Path) -> None:
    with serve(honest_server, files(signed)) as server:
        fetch(server.url, select(steps="8:10"), cache_dir=tmp_path, log=SignedLog())
        asked = len(server.asked)
        report = verify(server.url, steps="8:10", cache_dir=tmp_path, offline=True)
        assert report.verdict is Verdict.MATCH, report.message
        assert len(server.asked) == asked


def proof_of(run: Path, step: int, data: Path, **options: bool) -> bytes:
    """An offline proof."""
    with open_run(str(run)) as opened:
        return prove(SignedLog(data=data).open(opened), step, **options).encode()


@pytest.mark.parametrize("step", [0, 2, 3, 8, 9, 11])
def test_a_proof_of_a_step_shows_its_record(signed: Path, tmp_path: Path, step: int) -> None:
    found = check(proof_of(signed, step, tmp_path), Rule(key_of(signed)))
    assert isinstance(found.record, StepRecord)
    assert (found.record.step, found.segments) == (step, sum(step >= start for start in (3, 6, 9)))
    assert found.record.encode() == records_of(signed)[found.index]


def test_a_proof_of_a_segment_shows_what_changed(signed: Path, tmp_path: Path, stretches: Parts) -> None:
    found = check(proof_of(signed, 9, tmp_path, segment=True), Rule(key_of(signed)))
    assert isinstance(found.record, SegmentRecord)
    assert (found.index, found.segments) == (11, 2)
    assert (found.record.step, found.record.recipe, found.record.sequence) == (9, SHORT.digest(), 0)
    assert found.record.data == data_digest(stretches.stretches[3].data)
    before, after = (check(proof_of(signed, step, tmp_path), Rule(key_of(signed))).record for step in (8, 9))
    assert found.record.previous == before.digest()
    assert after.previous == found.record.digest()
    assert (found.record.state_before, found.record.state_after) == (before.state_after, after.state_before)


def test_there_is_no_proof_of_a_segment_that_does_not_begin_there(signed: Path, tmp_path: Path) -> None:
    for step in (0, 4):
        with pytest.raises(UsageError, match=f"no segment begins with step {step}") as caught:
            proof_of(signed, step, tmp_path, segment=True)
        assert caught.value.hint == "segments after the first begin with: 3, 6, 9"


def test_a_proof_of_an_entry_that_comes_too_early(signed: Path, tmp_path: Path) -> None:
    made = records_of(signed)
    made[1] = made[3]
    run = sign_lie(copy(signed, tmp_path / "run"), made)
    data = proof_of(run, 1, tmp_path / "data")
    with pytest.raises(BadArtifact, match="entry 1 of the log is the segment record of step 3"):
        check(data, Rule(key_of(run)))


def lie(folder: Path, at: int, fields: dict[str, Any], *, chained: bool) -> None:
    """Sign a log in which the entry `at` says something else; with `chained` the next one names it all the same."""
    made = [parse_entry(entry) for entry in records_of(folder)]
    made[at] = replace(made[at], **fields)
    if chained:
        made[at + 1] = replace(made[at + 1], previous=made[at].digest(), state_before=made[at].state_after)
    sign_lie(folder, [entry.encode() for entry in made])


@WHOLE
@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"recipe": A}, f"recipe is {A}, {LOWER.digest()} is expected"),
        ({"data": A}, f"data is {A}, "),
        ({"sequence": 18}, "sequence is 18, 0 is expected"),
        ({"step": 7}, "step is 7, 6 is expected"),
        ({"state_after": A}, f"state_after is {A}, "),
        ({"run": A}, f"run is {A}, "),
        ({"previous": A}, f"previous is {A}, "),
    ],
)
def test_another_segment_record_in_the_log_is_named(
    signed: Path, tmp_path: Path, fields: dict[str, Any], told: str, chained: bool, whole: bool
) -> None:
    run = copy(signed, tmp_path / "run")
    lie(run, 7, fields, chained=chained)
    report = replay.verify(str(run), step=6, log=SignedLog(whole=whole))
    assert report.verdict is Verdict.BAD_ARTIFACT, report.to_json()
    assert report.message.startswith(f"signed log: segment record of step 6, entry 7: {told}")
    assert report.hint == "the segments in run.json are not those that the publisher signed"
    assert report.checks[2].status is Status.FAILED


@pytest.mark.parametrize("entry", [b"", b"{}", b"no record"])
def test_an_entry_that_is_no_segment_record(signed: Path, tmp_path: Path, entry: bytes) -> None:
    made = records_of(signed)
    made[7] = entry
    run = sign_lie(copy(signed, tmp_path / "run"), made)
    report = replay.verify(str(run), step=6, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert report.message.startswith("signed log: segment record of step 6, entry 7: log entry")


@WHOLE
@pytest.mark.parametrize(
    ("number", "fields", "told"),
    [
        (1, {"recipe": replace(LOWER, optimizer=replace(LOWER.optimizer, beta1=0.8))}, "entry 7: recipe is"),
        (
            1,
            {"step": 7},
            "segment record of step 7, entry 8: the entry there is the record of step 6",
        ),
        (1, {"state": A}, "segment record of step 6, entry 7: state_after is"),
        (1, {"step": 5}, "segment record of step 5, entry 6: the entry there is the record of step 5"),
    ],
)
def test_another_segment_in_the_manifest_is_named(
    signed: Path, tmp_path: Path, number: int, fields: dict[str, Any], told: str, whole: bool
) -> None:
    """The manifest was changed after the publisher signed; its log root is still the one that was signed."""
    run = copy(signed, tmp_path / "run")
    changes = list(manifest_of(run).changes)
    changes[number] = replace(changes[number], **fields)
    change(run, changes=tuple(changes))
    report = replay.verify(str(run), steps="5:9", log=SignedLog(whole=whole))
    assert report.verdict is Verdict.BAD_ARTIFACT, report.to_json()
    assert told in report.message or "the entry there is the record of a segment from step" in report.message
    assert report.checks[2].status is Status.FAILED


def test_other_data_of_a_segment_are_named(signed: Path, tmp_path: Path) -> None:
    run = copy(signed, tmp_path / "run")
    first, second, third = manifest_of(run).changes
    change(run, changes=(first, replace(second, data=replace(second.data, seed=8)), third))
    report = replay.verify(str(run), step=6, log=SignedLog(whole=False))
    assert report.message.startswith("signed log: segment record of step 6, entry 7: data is ")


def test_a_link_that_leaves_the_segment_out(signed: Path, tmp_path: Path) -> None:
    """The record of step 6 names that of step 5, as if nothing had been between them."""
    run = copy(signed, tmp_path / "run")
    made = [parse_entry(entry) for entry in records_of(run)]
    made[8] = replace(made[8], previous=made[6].digest())
    sign_lie(run, [entry.encode() for entry in made])
    report = replay.verify(str(run), step=6, log=SignedLog(whole=False))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert report.message.startswith(f"record 6 of the signed log: previous is {made[6].digest()}, {made[7].digest()}")


def test_a_shorter_publication_is_the_begin_of_a_longer_one(signed: Path, stretches: Parts, tmp_path: Path) -> None:
    """What was signed at the end of a segment is continued by what the next one signs."""
    from tests.replay.make_segments import publish

    short = stretches.copy()
    short.stretches, short.published = short.stretches[:2], (0, 3, 5, 6)
    short.batches, short.results, short.states = short.batches[:6], short.results[:6], short.states[:7]
    begun = sign(publish(short, tmp_path / "short"))
    assert records_of(signed)[:7] == records_of(begun)
    assert manifest_of(begun).run_id() == manifest_of(signed).run_id()
    data = tmp_path / "data"
    for run in (begun, signed):
        report = replay.verify(str(run), step=5, log=SignedLog(data=data, whole=True))
        assert report.verdict is Verdict.MATCH, report.to_json()
    assert "continues the 7 entries seen before on this machine" in report.checks[2].detail


@pytest.mark.parametrize("whole", [True, False])
def test_an_older_log_does_not_hold_the_last_segment(signed: Path, tmp_path: Path, whole: bool) -> None:
    run = sign(copy(signed, tmp_path / "run"), records_of(signed)[:STEPS])
    report = replay.verify(str(run), step=6, log=SignedLog(whole=whole))
    assert report.verdict is Verdict.UNAVAILABLE
    assert f"signed a log of {STEPS} records, the manifest has {ENTRIES}" in report.message


def test_attestations_bind_to_the_records_on_both_sides(signed: Path) -> None:
    key = PrivateKey(bytes(range(32)))
    attester = Attester(key)
    report = auditkit.verify(signed, steps="5:10", work_key=attester.work_key, device="cpu")
    assert report.verdict is Verdict.MATCH
    made = attester.attest(report)
    keys = {key.public.keyid: key.public}
    with open_run(str(signed)) as run:
        table = RecordTable(run.records)
        assert list(table) == run.records
        found = [read_attestation(s.envelope, keys, run_id=run.run_id, records=table) for s in made.signed]
        assert [one.step for one in found] == [5, 6, 7, 8, 9]
        with pytest.raises(Untrusted):
            read_attestation(made.signed[1].envelope, keys, run_id=run.run_id, records=table[1:])
    checked = recheck(found[3:], keys, str(signed), device="cpu")
    assert [one.verdict for one in checked] == [Verdict.MATCH] * 2


def test_a_registry_serves_the_records_of_its_steps(signed: Path, segmented_compact: Path, tmp_path: Path) -> None:
    for folder in (signed, segmented_compact):
        known = load(str(folder), cache_dir=tmp_path / "cache")
        with open_run(str(folder)) as run:
            assert known.size == STEPS
            assert [StepRecord.parse(known.record(step)) for step in range(STEPS)] == run.records
        known.close()


def test_a_registry_refuses_segments_that_are_not_in_the_log(segmented: Path, tmp_path: Path) -> None:
    run = copy(segmented, tmp_path / "run")
    first, *others = manifest_of(run).changes
    change(run, changes=(replace(first, state=A), *others))
    with pytest.raises(BadArtifact, match="the records are not those under the manifest's log root"):
        load(str(run), cache_dir=tmp_path / "cache")


def test_a_segment_record_follows_from_the_manifest_and_the_record_before(signed: Path) -> None:
    with open_run(str(signed)) as run:
        for segment in run.timeline.later:
            made = segment_record(segment, run.record(segment.start - 1))
            assert made.encode() == records_of(signed)[run.timeline.entry(segment.start) - 1]
