"""`auditkit attest check` on real attestations of a bundled run: what makes it accept them, and nothing else does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from auditkit.formats.dsse import Envelope
from auditkit.formats.note import ED25519, NoteKey
from auditkit.replay.run import open_run
from auditkit.store.locate import BUNDLED
from auditkit.trust.attested import read_attestation
from tests.audit import signed_runs
from tests.cli import make_attested
from tests.cli.conftest import Cli
from tests.cli.make_attested import FOLDER, KEYS, POLICY

ALICE, BOB = (key.public for key in KEYS.values())
PAIR = [FOLDER / "match" / f"step-7.{key.keyid8}.json" for key in (ALICE, BOB)]
BY_POLICY = ("--policy", FOLDER / "policy.toml")


def test_the_committed_files_are_those_of_a_replay_here() -> None:
    made = make_attested.make()
    assert {p.relative_to(FOLDER).as_posix(): p.read_bytes() for p in FOLDER.rglob("*") if p.is_file()} == made


def test_the_library_accepts_them_too() -> None:
    with open_run(make_attested.RUN) as run:
        for path, key in zip(PAIR, (ALICE, BOB), strict=True):
            data = path.read_bytes()
            found = read_attestation(data, {key.keyid: key}, run_id=run.run_id, records=run.records)
            assert (found.step, found.keyid) == (7, key.keyid)


def test_no_byte_of_a_file_can_be_changed(main: Cli, tmp_path: Path) -> None:
    data = PAIR[0].read_bytes()
    payload = data.index(b'"payload":"') + 11
    places = {"payload": payload + 40, "payload type": data.index(b"vnd"), "keyid": data.index(b'"keyid":"') + 9,
              "signature": data.index(b'"sig":"') + 7, "end": len(data) - 1}  # fmt: skip
    for name, place in places.items():
        byte = b"A" if data[place : place + 1] != b"A" else b"B"
        path = tmp_path / f"{name}.json"
        path.write_bytes(data[:place] + byte.lower() + data[place + 1 :])
        done = main("attest", "check", path, PAIR[0], PAIR[1], *BY_POLICY)
        assert done.code in (4, 8), name
        assert "REFUSED" in done.stdout
        assert "step/7  COVERED" in done.stdout  # the two good files still speak for themselves


def test_one_newline_at_the_end_is_an_editors_and_no_more(main: Cli, tmp_path: Path) -> None:
    path = tmp_path / "step-7.json"
    path.write_bytes(PAIR[0].read_bytes() + b"\n")
    done = main("attest", "check", path, PAIR[1], *BY_POLICY)
    assert (done.code, "REFUSED" in done.stdout) == (0, False)
    assert main("attest", "show", path).stdout == main("attest", "show", PAIR[0]).stdout
    path.write_bytes(PAIR[0].read_bytes() + b"\n\n")
    assert main("attest", "check", path, PAIR[1], *BY_POLICY).code == 4
    assert main("attest", "show", path).code == 4


def test_two_signatures_in_one_envelope_are_untrusted(main: Cli, tmp_path: Path) -> None:
    one, other = (Envelope.parse(path.read_bytes()) for path in PAIR)
    both = Envelope(one.payload_type, one.payload, one.signatures + other.signatures)
    (tmp_path / "both.json").write_bytes(both.encode())
    done = main("attest", "check", tmp_path / "both.json", *BY_POLICY)
    assert done.code == 8
    assert "envelope: 2 signatures, one is expected" in done.stdout


def test_a_copy_counts_once(main: Cli, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        shutil.copy(PAIR[0], tmp_path / name)
    done = main("attest", "check", tmp_path, *BY_POLICY, "--json")
    assert done.code == 9
    (step,) = json.loads(done.stdout)["steps"]
    assert (step["status"], step["matches"], step["families"]) == ("partial", 1, 1)


def test_a_policy_can_ask_for_more_than_there_is(main: Cli, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    text = (FOLDER / "policy.toml").read_text(encoding="utf-8")
    policy.write_text(text.replace(POLICY, POLICY.replace("families = 2", "families = 3")), encoding="utf-8")
    done = main("attest", "check", *PAIR, "--policy", policy)
    assert (done.code, done.stdout) == (4, "")
    assert "policy.families: 3 are asked for, 2 of the auditors can count" in done.stderr
    policy.write_text(f'{text}\n[[excluded]]\nkeyid = "{BOB.keyid}"\nreason = "stolen"\n', encoding="utf-8")
    done = main("attest", "check", *PAIR, "--policy", policy)
    assert (done.code, done.stdout) == (4, "")
    assert "2 keys are asked for, 1 of the auditors can count" in done.stderr
    less = policy.read_text(encoding="utf-8").replace("threshold = 2", "threshold = 1")
    policy.write_text(less, encoding="utf-8")
    assert main("attest", "check", *PAIR, "--policy", policy).code == 4  # one key has one family
    policy.write_text(less.replace("families = 2", "families = 1"), encoding="utf-8")
    done = main("attest", "check", *PAIR, "--policy", policy)
    assert done.code == 0
    assert "does not count: excluded: stolen" in done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the run that the attestations are about."""
    return shutil.copytree(BUNDLED / make_attested.RUN, tmp_path / "elsewhere")


def test_a_run_elsewhere_is_named(main: Cli, copy: Path) -> None:
    done = main("attest", "check", *PAIR, *BY_POLICY, "--run", copy)
    assert done.code == 0, done.stdout
    (copy / "records.bin").write_bytes((copy / "records.bin").read_bytes()[:-1] + b"\1")
    assert main("attest", "check", *PAIR, *BY_POLICY, "--run", copy).code == 4


def test_an_unknown_run_is_said_to_be_unchecked(main: Cli, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["auditkit.store.locate"], "known", lambda *_: ())
    done = main("attest", "check", *PAIR, *BY_POLICY)
    assert done.code == 0
    assert "name it with --run" in done.stdout
    done = main("attest", "check", *PAIR, *BY_POLICY, "--run", copy)
    assert done.code == 0
    assert "name it with --run" not in done.stdout


def test_the_publisher_of_the_run_never_counts(main: Cli, copy: Path) -> None:
    signed_runs.sign(copy, private=KEYS["alice"])
    done = main("attest", "check", *PAIR, *BY_POLICY, "--run", copy)
    assert done.code == 9
    assert "MATCH by alice fd110d30; does not count: the publisher's key" in done.stdout
    done = main("attest", "check", PAIR[0], "--key", FOLDER / "alice.pem", "--run", copy)
    assert done.code == 9


def test_names_of_files_cannot_steer_the_terminal(main: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb.json"
    try:
        shutil.copy(PAIR[0], path)
    except OSError:
        return  # this file system has no such names
    done = main("attest", "check", path, *BY_POLICY)
    assert done.code == 9
    assert "\x1b" not in done.stdout
    assert "a\\x1b[2Jb.json" in done.stdout


def test_showing_verifies_nothing_and_says_so(main: Cli, tmp_path: Path) -> None:
    data = PAIR[0].read_bytes()
    place = data.index(b'"sig":"') + 10
    (tmp_path / "forged.json").write_bytes(data[:place] + (b"A" if data[place] != 65 else b"B") + data[place + 1 :])
    done = main("attest", "show", tmp_path / "forged.json")
    assert done.code == 0
    assert done.stdout.startswith("NOT VERIFIED")
    assert json.loads(main("attest", "show", tmp_path / "forged.json", "--json").stdout)["verified"] is False


def test_another_kind_of_envelope_is_no_attestation(main: Cli, tmp_path: Path) -> None:
    envelope = Envelope.parse(PAIR[0].read_bytes())
    (tmp_path / "x.json").write_bytes(Envelope("application/x", envelope.payload, envelope.signatures).encode())
    done = main("attest", "show", tmp_path / "x.json")
    assert done.code == 8
    assert 'a payload of type "application/x", not an attestation' in done.stderr
    assert main("attest", "check", tmp_path / "x.json", *BY_POLICY).code == 8


def test_the_log_that_the_policy_asks_for_is_looked_at(main: Cli, copy: Path, tmp_path: Path) -> None:
    def policy_of(vkey: str) -> Path:
        text, log = (FOLDER / "policy.toml").read_text(encoding="utf-8"), f'[log]\npublisher = "{vkey}"\n\n[[auditor]]'
        path = tmp_path / "with-log.toml"
        path.write_text(text.replace("[[auditor]]", log, 1), encoding="utf-8")
        return path

    other = NoteKey("example.org/run", ED25519, signed_runs.SOMEBODY.public.raw).text
    by_other = policy_of(other)
    for run in ((), ("--run", copy)):  # neither the bundled run nor its copy is signed
        done = main("attest", "check", *PAIR, "--policy", by_other, *run)
        assert done.code == 8
        assert "the run names no publisher" in done.stdout + done.stderr
    signed_runs.sign(copy)
    assert main("attest", "check", *PAIR, "--policy", by_other, "--run", copy).code == 8
    by_publisher = policy_of(signed_runs.key_of(copy).text)
    done = main("attest", "check", *PAIR, "--policy", by_publisher, "--run", copy)
    assert done.code == 0, done.stdout + done.stderr
    assert "log of sotu-tiny: signed by" in done.stdout
    # without a policy too, a log that is not that of the records is refused
    signed_runs.sign(copy, [b"{}", *signed_runs.records_of(copy)[1:]])
    done = main("attest", "check", PAIR[0], "--key", FOLDER / "alice.pem", "--run", copy)
    assert (done.code, done.stdout) == (8, "")
