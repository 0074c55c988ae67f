"""`auditkit coverage` on a run whose auditors disagree, correct themselves and cannot get what is not served."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from auditkit.errors import UsageError
from auditkit.formats.record import StepRecord
from auditkit.formats.step_audit import sha256_of
from auditkit.replay.run import open_run
from auditkit.trust.envelope import sign
from auditkit.trust.notes import note_key
from auditkit.trust.page_file import MARKER, PageFile
from auditkit.verdict import Verdict
from tests.audit import signed_runs
from tests.audit.envelopes import KEYS, audit, put
from tests.cli.conftest import Cli, Done
from tests.trust import logs

MATCH, MISMATCH, UNAVAILABLE = Verdict.MATCH, Verdict.MISMATCH, Verdict.UNAVAILABLE
LATER = {"started": "2026-02-02T03:04:05Z", "finished": "2026-02-02T03:04:05Z"}


@pytest.fixture(scope="session")
def records(honest: Path) -> list[StepRecord]:
    """The records of the honest run."""
    with open_run(str(honest)) as run:
        return run.records


@pytest.fixture
def folder(records: list[StepRecord], tmp_path: Path) -> Path:
    """What three auditors signed: step 0 matches, 1 is disputed, 2 corrected, 3 not served, 4 by automation only."""

    def write(step: int, key: int, verdict: Verdict = MATCH, **changes: object) -> None:
        data = sign(audit(records[step], verdict, run="tiny", **changes).statement(sha256_of(records[step])), KEYS[key])
        put(tmp_path, f"in/{step}-{key}-{verdict.name}.json", data.encode())

    for key in range(3):
        put(tmp_path, f"in/auditor {key}.pem", KEYS[key].public.pem())
        write(0, key)
    write(1, 0)
    write(1, 1, MISMATCH)
    write(2, 0, MISMATCH)
    write(2, 0, MATCH, **LATER)
    write(3, 2, UNAVAILABLE)
    write(4, 2, automation="ci")
    put(tmp_path, "in/broken.json", b"{}")
    return tmp_path / "in"


def test_everything_that_auditors_said_is_told(main: Cli, honest: Path, folder: Path) -> None:
    done = main("coverage", folder, "--run", honest)
    assert done.code == Verdict.INCOMPLETE.code
    said = done.stdout
    assert "disputed steps: 1\n  step 1\n" in said
    assert f"computed by auditor 1 {KEYS[1].public.keyid8}:" in said
    assert f"    MATCH by auditor 0 {KEYS[0].public.keyid8}" in said
    assert "contradict themselves (their latest word counts): 1\n  step 2  auditor 0" in said
    assert "not verifiable, for an auditor says that the publisher's data could not be had: 1 step\n  step 3\n" in said
    assert "gaps: 5 steps\n  steps 3 to 7\n" in said
    assert "  2 count, 1 does not: automation (ci)\n" in said
    assert "refused: 1 (they change no status)\n" in said
    assert 'broken.json: envelope: key "payloadType" is missing' in said


def test_json_has_the_same(main: Cli, honest: Path, folder: Path) -> None:
    said = json.loads(main("coverage", folder, "--run", honest, "--json").stdout)
    assert said["totals"] == {"mismatch": 0, "disputed": 1, "open": 5, "partial": 0, "covered": 2}
    assert [d["step"] for d in said["disputes"]] == [1]
    assert said["contradictions"] == [{"step": 2, "keyid": KEYS[0].public.keyid}]
    assert said["not_verifiable"] == {"UNAVAILABLE": [[3, 4]], "BAD_ARTIFACT": []}
    assert said["open"] == [[3, 8]]
    assert said["escape"]["steps"] == 7
    assert said["refused"]["count"] == len(said["refused"]["all"]) == 1
    assert said["attestations"]["counted_in"] == 9
    (partly,) = [auditor for auditor in said["auditors"] if auditor["not_counted"]]
    assert (partly["attestations"], partly["counted"]) == (3, 2)


def test_the_page_says_no_more_than_the_text(main: Cli, honest: Path, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = main("coverage", folder, "--run", honest, "--html", page).stdout
    shown = html.unescape(page.read_text(encoding="utf-8"))
    unchecked = re.findall("^  - (.*)$", text[text.index("not checked:") :], re.MULTILINE)
    assert len(unchecked) == 4
    assert "<ul>" + "".join(f"<li>{line}</li>" for line in unchecked) + "</ul>" in shown
    (signed,) = re.findall("^signed log    (.*)$", text, re.MULTILINE)
    assert f"<dt>signed log</dt><dd>{signed}</dd>" in shown
    assert "bit for bit" not in shown
    assert "2 count, 1 does not: automation (ci)" in shown


def test_a_log_that_shows_fewer_entries_than_before_is_never_a_match(
    main: Cli, honest: Path, records: list[StepRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))
    lines = [sign(audit(r, run="tiny").statement(sha256_of(r)), KEYS[0]).encode() for r in records]
    key, log, old = put(tmp_path, "key.pem", KEYS[0].public.pem()), tmp_path / "log", tmp_path / "old"
    logs.write(log, lines)
    shutil.copytree(log, old)
    found = sign(audit(records[3], MISMATCH, run="tiny", **LATER).statement(sha256_of(records[3])), KEYS[1]).encode()
    logs.write(log, [found, found])
    page = tmp_path / "page.html"

    def say(*words: object) -> Done:
        return main("coverage", *words, "--key", key, "--run", honest, "--log-key", logs.KEY.text)

    assert say(old).code == Verdict.MATCH.code  # nobody could know
    assert "warning" not in say(log).stdout
    checkpoint = log / "checkpoint"
    checkpoint.write_bytes((old / "checkpoint").read_bytes())
    for place in (old, log):  # the bare copy, and beside the newer tiles
        told = f"10 entries of this log were seen before, this place shows 8: {place}"
        done = say(place, "--html", page)
        assert done.code == Verdict.INCOMPLETE.code
        assert told in [line.removeprefix("warning       ") for line in done.stdout.splitlines()[:8]]
        assert "INCOMPLETE: a log shows fewer entries than were seen before" in done.stdout
        assert told in html.unescape(page.read_text(encoding="utf-8"))
        said = json.loads(say(place, "--json").stdout)
        assert (said["verdict"], said["warnings"]) == ("INCOMPLETE", [told])


def test_an_old_place_beside_a_new_one_keeps_nothing_back(
    main: Cli, honest: Path, records: list[StepRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))
    lines = [sign(audit(r, run="tiny").statement(sha256_of(r)), KEYS[0]).encode() for r in records]
    key, log, old = put(tmp_path, "key.pem", KEYS[0].public.pem()), tmp_path / "log", tmp_path / "old"
    logs.write(log, lines)
    shutil.copytree(log, old)
    logs.write(log, lines[:2])
    for _ in range(2):
        done = main("coverage", old, log, "--key", key, "--run", honest, "--log-key", logs.KEY.text)
        assert done.code == Verdict.MATCH.code and "warning" not in done.stdout


def test_what_the_policy_excludes_changes_the_verdict(main: Cli, honest: Path, folder: Path, tmp_path: Path) -> None:
    auditor = '[[auditor]]\nname = "{0}"\nkey = """{1}"""\n'
    listed = "".join(auditor.format(f"a{n}", KEYS[n].public.pem().decode()) for n in (1, 2))
    policy = put(tmp_path, "p.toml", f'format = "auditkit/policy/v1"\nthreshold = 1\n{listed}'.encode())
    done = main("coverage", folder, "--run", honest, "--policy", policy)
    assert done.code == MISMATCH.code
    assert "mismatches: 1\n  step 1\n" in done.stdout
    assert "does not count: not an auditor of the policy" in done.stdout


def test_the_page_is_written_whole_and_again(main: Cli, honest: Path, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for _ in range(2):
        done = main("coverage", folder, "--run", honest, "--html", page)
        assert f"map of the run: {page}" in done.stdout
        text = page.read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
        assert "auditor 1" in text
        assert str(tmp_path) not in text
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize("name", ["", "-", "in/", "in", "nowhere/page.html"])
def test_a_page_needs_the_name_of_a_file(
    main: Cli, honest: Path, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    before = sorted(folder.parent.rglob("*"))
    done = main("coverage", folder, "--run", honest, "--html", name)
    assert done.code == 2 and "hint: " in done.stderr
    assert sorted(folder.parent.rglob("*")) == before


def test_a_page_replaces_nothing_but_an_older_page(main: Cli, honest: Path, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    main("coverage", folder, "--run", honest, "--html", page)
    made = page.read_bytes()
    link = tmp_path / "link.html"
    link.symlink_to(page)
    key = put(tmp_path, "private.pem", KEYS[0].pem())
    other = put(tmp_path, "other.html", b"<!doctype html>\n<title>somebody's own</title>\n")
    for there in (key, other, folder / "0-0-MATCH.json", put(tmp_path, "empty", b""), link, Path("/dev/null")):
        before = there.read_bytes()
        done = main("coverage", folder, "--run", honest, "--html", there)
        assert done.code == 2 and f"{there} exists and is no coverage page" in done.stderr
        assert there.read_bytes() == before
    assert link.is_symlink()
    # a page that is itself named as a place to read, under whatever name
    os.link(page, tmp_path / "same.html")
    done = main("coverage", folder, page, "--run", honest, "--html", tmp_path / "same.html")
    assert done.code == 2 and "is read by this command" in done.stderr
    assert page.read_bytes() == made


def test_a_page_does_not_replace_what_turned_up_meanwhile(tmp_path: Path) -> None:
    target = PageFile(str(tmp_path / "page.html"))
    put(tmp_path, "page.html", b"somebody's")
    with pytest.raises(UsageError, match="no coverage page"):
        target.write(MARKER)
    assert (tmp_path / "page.html").read_bytes() == b"somebody's"


def test_a_run_that_every_auditor_matched_is_a_match(
    main: Cli, honest: Path, records: list[StepRecord], tmp_path: Path
) -> None:
    key = KEYS[0]
    lines = [sign(audit(r, run="tiny").statement(sha256_of(r)), key).encode() for r in records]
    put(tmp_path, "all.jsonl", b"\n".join(lines))
    public = put(tmp_path, "key.pem", key.public.pem())
    done = main("coverage", tmp_path / "all.jsonl", "--key", public, "--run", honest)
    assert done.code == 0
    assert "covered                8         100 %" in done.stdout
    assert "MATCH: every step is covered" in done.stdout
    assert "impossible" in done.stdout


def test_the_signed_log_of_the_run_is_checked_as_the_policy_asks(
    main: Cli, honest: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))
    signed = signed_runs.sign(signed_runs.copy(honest, tmp_path / "run"))
    done = main("coverage", folder, "--run", signed)
    assert f"signed log    signed by {signed_runs.key_of(signed).text}: 8 entries" in done.stdout
    assert "  - whose key" in done.stdout
    # a policy that names another publisher
    other = note_key(signed_runs.key_of(signed).name, KEYS[0].public).text
    text = f'format = "auditkit/policy/v1"\nthreshold = 1\n[log]\npublisher = "{other}"\n'
    done = main("coverage", folder, "--run", signed, "--policy", put(tmp_path, "p.toml", text.encode()))
    assert done.code == Verdict.UNTRUSTED.code
    # the publisher's own attestations never count
    key = put(tmp_path, "publisher.pem", signed_runs.PUBLISHER.public.pem())
    with open_run(str(signed)) as run:
        record = run.records[0]
    own = sign(audit(record, run="tiny").statement(sha256_of(record)), signed_runs.PUBLISHER)
    done = main("coverage", put(tmp_path, "own.json", own.encode()), "--key", key, "--run", signed)
    assert "does not count: the publisher's key" in done.stdout
    assert "covered                0" in done.stdout
