"""`attest check --recheck` against auditors who did not do the work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit
from auditkit.audit.attest import Attester
from auditkit.formats.dsse import Envelope
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import StepAudit
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey, save_public
from auditkit.verdict import Verdict
from tests.cli.conftest import Cli
from tests.replay.make_run import Parts, flip_state, publish

ALICE, COPIER = (PrivateKey(bytes([n]) * 32) for n in (1, 2))


@pytest.fixture(scope="module")
def mine(honest: Path) -> Statement:
    """What Alice honestly signs about step 6."""
    attester = Attester(ALICE)
    report = auditkit.verify(honest, step=6, work_key=attester.work_key)
    return Statement.parse(Envelope.parse(attester.attest(report).signed[0].envelope).payload)


def files(tmp_path: Path, *signed: tuple[PrivateKey, Statement]) -> list[object]:
    """Their envelopes and keys as arguments."""
    arguments: list[object] = []
    for number, (key, statement) in enumerate(signed):
        path = tmp_path / f"{number}.{key.public.keyid8}.json"
        path.write_bytes(sign(statement, key).encode())
        arguments.append(path)
    for key in {key.public.keyid: key for key, _ in signed}.values():
        save_public(tmp_path / f"{key.public.keyid8}.pub", key.public)
        arguments += ["--key", tmp_path / f"{key.public.keyid8}.pub"]
    return arguments


def changed(statement: Statement, **changes: object) -> Statement:
    """The statement with another predicate, as whoever holds the key can sign it."""
    audit = replace(StepAudit.from_value(statement.predicate), **changes)  # type: ignore[arg-type]
    return replace(statement, predicate=audit.to_value())


def test_copied_digests_are_refused_and_do_not_count(cli: Cli, honest: Path, tmp_path: Path, mine: Statement) -> None:
    """The copier signs Alice's words, work and all, with a key of his own."""
    arguments = files(tmp_path, (ALICE, mine), (COPIER, mine))
    assert cli("attest", "check", *arguments, "--run", honest).code == 0
    done = cli("attest", "check", *arguments, "--run", honest, "--recheck")
    assert done.code == 8
    said = done.stdout.splitlines()
    assert "tiny/step/6  MATCH by" in said[0] and "rechecked: MATCH" in said[1]
    assert "REFUSED, UNTRUSTED: the digests are right and may be copied: the proof of work is" in said[2]
    assert "nothing shows that this auditor computed the step" in said[3]
    assert "tiny/step/6  COVERED   MATCH by 1 on 1 hardware family, MISMATCH by 0" in done.stdout


def test_a_copy_alone_covers_nothing(cli: Cli, honest: Path, tmp_path: Path, mine: Statement) -> None:
    arguments = files(tmp_path, (COPIER, mine))
    done = cli("attest", "check", *arguments, "--run", honest, "--recheck", "--json")
    found = json.loads(done.stdout)
    assert (done.code, found["verdict"], found["code"], found["steps"]) == (8, "UNTRUSTED", 8, [])
    assert found["rechecks"][0]["verdict"] == found["files"][0]["verdict"] == "UNTRUSTED"


def test_a_false_mismatch_is_refused(cli: Cli, honest: Path, tmp_path: Path, mine: Statement) -> None:
    audit = StepAudit.from_value(mine.predicate)
    assert audit.computed is not None
    false = changed(
        mine,
        verdict=Verdict.MISMATCH,
        computed=replace(audit.computed, state="f" * 64),
        checks={**audit.checks, 7: "failed"},
    )
    arguments = files(tmp_path, (ALICE, false))
    assert cli("attest", "check", *arguments, "--run", honest).code == 3
    done = cli("attest", "check", *arguments, "--run", honest, "--recheck")
    assert done.code == 8 and "says MISMATCH, digests not reproduced: state " + "f" * 64 in done.stdout


def test_an_honest_mismatch_holds(cli: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    run, attester = publish(lie, tmp_path / "lie"), Attester(ALICE)
    report = auditkit.verify(run, step=4, work_key=attester.work_key)
    statement = Statement.parse(Envelope.parse(attester.attest(report).signed[0].envelope).payload)
    done = cli("attest", "check", *files(tmp_path, (ALICE, statement)), "--run", run, "--recheck")
    assert done.code == 3 and "rechecked: MISMATCH: digests and proof of work are those of a replay here" in done.stdout


def test_an_undecided_attestation_has_nothing_to_repeat(
    cli: Cli, honest: Path, tmp_path: Path, mine: Statement
) -> None:
    undecided = changed(mine, verdict=Verdict.UNAVAILABLE, computed=None, work="", message="nobody served the state")
    arguments = files(tmp_path, (ALICE, mine), (COPIER, undecided))
    done = cli("attest", "check", *arguments, "--run", honest, "--recheck")
    assert done.code == 0
    assert "not rechecked, INCOMPLETE: says UNAVAILABLE: nothing was computed" in done.stdout


def test_a_run_that_is_not_known_here_is_not_rechecked(cli: Cli, tmp_path: Path, mine: Statement) -> None:
    done = cli("attest", "check", *files(tmp_path, (ALICE, mine)), "--recheck")
    assert done.code == 9
    assert "not rechecked, INCOMPLETE: not replayed: run" in done.stdout and "--run names it" in done.stdout
