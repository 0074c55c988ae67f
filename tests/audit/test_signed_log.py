"""Check 3 against a signed log: what a match says, what is fetched, and every way in which a publisher can lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit
from auditkit.audit.signed_log import Rule, SignedLog
from auditkit.audit.verify import rule, verify
from auditkit.errors import Incomplete, UsageError
from auditkit.formats.digest import content_digest
from auditkit.formats.note import COSIGNATURE
from auditkit.formats.policy import LogRule, Policy
from auditkit.formats.record import RecordFile, StepRecord, expand, log_root
from auditkit.formats.run import Artifact, Log
from auditkit.replay import verify as replay
from auditkit.replay.report import Report, Status
from auditkit.replay.run import open_run
from auditkit.trust.keys import PrivateKey
from auditkit.trust.notes import note_key
from auditkit.verdict import Verdict
from tests.audit import signed_runs
from tests.audit.signed_runs import PUBLISHER, SOMEBODY, copy, files, key_of, manifest_of, records_of, sign
from tests.store.servers import honest as serve_honestly
from tests.store.servers import serve
from tests.store.tools import Story

WITNESSES = [PrivateKey(bytes([i]) * 32) for i in (1, 2)]
KEYS = [note_key(f"w{i}.example", key.public, COSIGNATURE) for i, key in enumerate(WITNESSES)]


def third(report: Report) -> str:
    """The detail of check 3."""
    return report.checks[2].detail


def test_a_match_says_who_signed_and_what_it_leaves_open(signed: Path) -> None:
    report = auditkit.verify(str(signed), step=4)
    assert report.verdict is Verdict.MATCH
    assert [check.number for check in report.checks] == [1, 2, 3]
    assert f"over all 8 records; signed by {key_of(signed).text}: 8 entries" in third(report)
    assert third(report).endswith("not seen before on this machine")
    assert not [text for text in report.not_checked if "nothing is signed" in text]
    assert [text for text in report.not_checked if "whose key" in text and key_of(signed).text in text]
    again = auditkit.verify(str(signed), step=4, publisher=key_of(signed).text)
    assert third(again).endswith("seen before on this machine")
    assert not [text for text in again.not_checked if "whose key" in text]


def test_a_run_without_a_publisher_verifies_as_before(honest: Path, tmp_path: Path) -> None:
    ours, plain = auditkit.verify(str(honest), step=4), replay.verify(str(honest), step=4)
    assert ours.verdict is plain.verdict is Verdict.MATCH
    assert ours.checks == plain.checks
    assert ours.not_checked == plain.not_checked
    assert not (tmp_path / "data").exists()


def test_without_a_checker_the_report_says_so(signed: Path) -> None:
    report = replay.verify(str(signed), step=4)
    assert report.verdict is Verdict.MATCH
    assert "the publisher's signature and the signed log: nobody asked for them" in report.not_checked


def test_the_compact_layout_has_the_same_log(compact: Path, signed: Path, tmp_path: Path) -> None:
    run = sign(copy(compact, tmp_path / "run"))
    report = verify(str(run), step=6)
    assert report.verdict is Verdict.MATCH
    assert f"signed by {key_of(run).text}" in third(report)
    assert SignedLog(whole=False).needed(open_run(str(run)), ()) is None


def test_the_key_that_was_asked_for(honest: Path, signed: Path, tmp_path: Path) -> None:
    other = note_key(key_of(signed).name, SOMEBODY.public).text
    for run, told in ((signed, "the run names the publisher"), (honest, "the run names no publisher")):
        report = verify(str(run), step=4, publisher=other)
        assert report.verdict is Verdict.UNTRUSTED
        assert not any("nobody asked" in text for text in report.not_checked)
        assert any("8 of the run's 8 steps" in text for text in report.not_checked)
        assert (report.checks[2].status, report.steps) == (Status.FAILED, ())
        assert told in report.message and other in report.message
    # the same key under another name signs another log
    renamed = sign(copy(honest, tmp_path / "run"), origin="another.example")
    assert verify(str(renamed), step=4, publisher=key_of(signed).text).verdict is Verdict.UNTRUSTED
    assert verify(str(renamed), step=4, publisher=key_of(renamed).text).verdict is Verdict.MATCH


@pytest.mark.parametrize("text", ["", "x", "a+b+c", KEYS[0].text, "key.pem"])
def test_a_key_that_is_none_is_a_usage_error(signed: Path, text: str) -> None:
    with pytest.raises(UsageError, match="publisher: "):
        verify(str(signed), step=4, publisher=text)


def forge_signature(run: Path) -> None:
    place = run / "log" / "checkpoint"
    head, _, line = place.read_bytes().rpartition(b" ")
    place.write_bytes(head + b" " + line[:20] + bytes([line[20] ^ 1]) + line[21:])


def forge_size(run: Path) -> None:
    place = run / "log" / "checkpoint"
    place.write_bytes(place.read_bytes().replace(b"\n8\n", b"\n9\n"))


def another_key_signs(run: Path) -> None:
    key = key_of(run)
    sign(run, private=SOMEBODY)
    signed_runs.change(run, publisher=key)


def another_run_is_signed(run: Path) -> None:
    changed = [StepRecord.parse(entry) for entry in records_of(run)]
    sign(run, [replace(record, run="0" * 64).encode() for record in changed])


def one_record_is_another(run: Path) -> None:
    made = records_of(run)
    made[6] = replace(StepRecord.parse(made[6]), loss=0).encode()
    sign(run, made)


def of_another_history_and_shorter(run: Path) -> None:
    made = records_of(run)
    made[2] = replace(StepRecord.parse(made[2]), loss=0).encode()
    sign(run, made[:-1])


def an_old_one(run: Path) -> None:
    sign(run, records_of(run)[:-1])


def an_empty_one(run: Path) -> None:
    sign(run, [])


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (forge_signature, "does not fit what it signs"),
        (forge_size, "does not fit what it signs"),
        (another_key_signs, "not signed by key"),
        (another_run_is_signed, "the manifest says"),
        (one_record_is_another, "the manifest says"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_lies_are_untrusted(signed: Path, tmp_path: Path, lie: Callable[[Path], None], told: str, whole: bool) -> None:
    run = copy(signed, tmp_path / "run")
    lie(run)
    report = replay.verify(str(run), step=4, log=SignedLog(whole=whole))
    assert report.verdict is Verdict.UNTRUSTED, report.message
    assert told in report.message
    assert (report.checks[2].status, report.steps) == (Status.FAILED, ())
    assert report.checks[1].status is (Status.OK if whole else Status.SKIPPED)


@pytest.mark.parametrize(("behind", "size"), [(an_old_one, 7), (an_empty_one, 0)])
@pytest.mark.parametrize("whole", [True, False])
def test_a_log_that_ends_before_the_manifest_is_unavailable(
    signed: Path, tmp_path: Path, behind: Callable[[Path], None], size: int, whole: bool
) -> None:
    """As a cache serves it that holds the checkpoint longer than run.json: it contradicts nothing, and proves too
    little."""
    run = copy(signed, tmp_path / "run")
    behind(run)
    report = replay.verify(str(run), step=4, log=SignedLog(whole=whole))
    assert (report.verdict, report.steps) == (Verdict.UNAVAILABLE, ()), report.message
    assert f"signed a log of {size} records, the manifest has 8" in report.message
    assert report.checks[2].status is Status.FAILED


def test_a_log_that_ends_before_the_manifest_and_is_another_is_untrusted(signed: Path, tmp_path: Path) -> None:
    """Seen where all records are read; where only some are taken from the log, it is too short all the same."""
    run = copy(signed, tmp_path / "run")
    of_another_history_and_shorter(run)
    report = replay.verify(str(run), step=4, log=SignedLog(whole=True))
    assert report.verdict is Verdict.UNTRUSTED and "signed 7 records with root " in report.message
    assert replay.verify(str(run), step=4, log=SignedLog(whole=False)).verdict is Verdict.UNAVAILABLE


def test_a_replaced_manifest_is_not_what_the_publisher_signed(signed: Path, tmp_path: Path) -> None:
    """The strongest lie without the key: records, root and manifest all changed consistently."""
    run = copy(signed, tmp_path / "run")
    rows = list(RecordFile.parse((run / "records.bin").read_bytes()).rows)
    rows[6] = replace(rows[6], loss=0)
    data = RecordFile(tuple(rows)).encode()
    (run / "records.bin").write_bytes(data)
    made = manifest_of(run)
    chain = expand(rows, run_id=made.run_id(), numerics=1, micro_batches=2, state0=made.states[0].root)
    listed = tuple(
        Artifact(a.path, len(data), content_digest(data)) if a.path == "records.bin" else a for a in made.artifacts
    )
    signed_runs.change(run, artifacts=listed, log=Log(8, log_root(chain)))
    assert replay.verify(str(run), step=4).verdict is Verdict.MATCH
    report = verify(str(run), step=4)
    assert report.verdict is Verdict.UNTRUSTED
    assert "run.json was replaced after the publisher signed" in report.hint


def test_a_log_that_is_not_there_or_damaged_accuses_nobody(signed: Path, tmp_path: Path) -> None:
    run = copy(signed, tmp_path / "run")
    (run / "log" / "tile" / "0" / "000.p" / "8").write_bytes(bytes(8 * 32))
    report = verify(str(run), step=4)
    assert (report.verdict, report.checks[2].status) == (Verdict.BAD_ARTIFACT, Status.FAILED)
    (run / "log" / "checkpoint").write_bytes(b"not a note")
    assert verify(str(run), step=4).verdict is Verdict.BAD_ARTIFACT
    shutil.rmtree(run / "log")
    report = verify(str(run), step=4)
    assert report.verdict is Verdict.UNAVAILABLE
    assert "checkpoint" in report.message


def test_a_log_that_grew_beyond_the_manifest(signed: Path, tmp_path: Path) -> None:
    run = sign(copy(signed, tmp_path / "run"), [*records_of(signed), b"a later record", b"and another"])
    report = verify(str(run), step=4)
    assert report.verdict is Verdict.MATCH
    assert "10 entries" in third(report)


def test_a_rewritten_history_is_caught_with_evidence(signed: Path, tmp_path: Path) -> None:
    assert verify(str(signed), step=4).verdict is Verdict.MATCH
    run = copy(signed, tmp_path / "run")
    one_record_is_another(run)
    report = verify(str(run), step=4)
    assert report.verdict is Verdict.UNTRUSTED
    assert "has two histories" in report.message
    folder = Path(report.message.rpartition(" kept in ")[2])
    assert {path.name for path in folder.iterdir()} == {"README.txt", "smaller.txt", "larger.txt"}
    # from now on the honest one is not believed either
    assert verify(str(signed), step=4).verdict is Verdict.UNTRUSTED
    # but by somebody who never saw it
    assert verify(str(signed), step=4, data_dir=tmp_path / "fresh").verdict is Verdict.MATCH


def test_a_split_is_told_even_where_another_place_is_right(signed: Path, tmp_path: Path) -> None:
    """Two valid signatures of one key are proof, whoever serves them."""
    verify(str(signed), step=4)
    forked = copy(signed, tmp_path / "forked")
    one_record_is_another(forked)
    report = verify(str(signed), step=4, artifacts=str(forked))
    assert report.verdict is Verdict.UNTRUSTED
    assert report.message.startswith("log ") and "has two histories" in report.message
    assert "before" not in report.message  # the other place was not asked


@pytest.mark.parametrize("lie", [forge_signature, another_key_signs, an_old_one])
def test_a_bad_mirror_is_no_verdict_while_another_place_is_right(
    signed: Path, tmp_path: Path, lie: Callable[[Path], None]
) -> None:
    bad = copy(signed, tmp_path / "bad")
    lie(bad)
    report = verify(str(signed), step=4, artifacts=str(bad))
    assert report.verdict is Verdict.MATCH
    with serve(serve_honestly, files(signed)) as mirror:
        signed_runs.change(bad, mirrors=(mirror.url,), publisher=key_of(signed))
        report = verify(str(bad), step=4, cache_dir=tmp_path / "cache", data_dir=tmp_path / "fresh")
        assert report.verdict is Verdict.MATCH
        assert any(asked.path.startswith("log/") for asked in mirror.asked)


def test_witnesses_that_a_policy_asks_for(signed: Path, tmp_path: Path) -> None:
    run = copy(signed, tmp_path / "run")
    signed_runs.cosign(run, KEYS[0].name, WITNESSES[0], 1679315147)
    asked = LogRule(key_of(run), tuple(KEYS), 1)
    report = verify(str(run), step=4, policy=Policy(1, log=asked))
    assert report.verdict is Verdict.MATCH
    assert third(report).endswith("cosigned by w0.example at 2023-03-20T12:25:47Z")
    assert not [text for text in report.not_checked if "witness" in text or "whose key" in text]
    report = verify(str(run), step=4, policy=Policy(1, log=replace(asked, witness_threshold=2)))
    assert report.verdict is Verdict.UNTRUSTED
    assert "1 known witnesses cosigned the checkpoint (w0.example), 2 are asked for" in report.message
    # a witness that is not asked for changes nothing
    assert "cosigned" not in third(verify(str(run), step=4))


def test_a_policy_and_a_pinned_key_must_agree(signed: Path) -> None:
    key, other = key_of(signed), note_key("another", SOMEBODY.public)
    policy = Policy(1, log=LogRule(key))
    assert rule(key.text, policy) == rule(None, policy) == rule(key, policy) == Rule(key)
    assert rule(None, Policy(1)) == Rule()
    with pytest.raises(UsageError, match="is not the policy's"):
        rule(other.text, policy)


def test_a_data_folder_that_cannot_be_had_is_no_reason_to_fail(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", "~nobody-of-this-name/x")
    story = Story()
    report = verify(str(signed), step=4, downloads=story)
    assert report.verdict is Verdict.MATCH
    assert "nothing can be remembered here" in third(report)
    assert "the log's checkpoint is not remembered: there is no home folder" in story.text


def test_a_run_without_a_log_has_none_to_open(honest: Path, tmp_path: Path) -> None:
    with open_run(str(honest)) as run, pytest.raises(Incomplete, match="names no publisher"):
        SignedLog(data=tmp_path).open(run)


def test_the_keys_of_the_tests_are_different() -> None:
    assert PUBLISHER.public != SOMEBODY.public
