"""`auditkit next` after real verifications: needier steps first, disputed ones to those who have not spoken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auditkit.formats.digest import content_digest
from auditkit.trust.assignment import Ranks, assign
from auditkit.trust.beacon import parse
from auditkit.trust.keys import PrivateKey, save_private, save_public
from tests.cli.conftest import Cli
from tests.replay import make_run

BEACON = "5a" * 32
ALICE, BOB, CAROL = (PrivateKey(bytes([number]) * 32) for number in (1, 2, 3))
STEPS = make_run.STEPS
ON_THE_WAY = 3  # is told a lie about; the steps after it follow honestly from it


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Keys, an attestation folder and a policy of three auditors, two of whom must agree."""
    lines = ['format = "auditkit/policy/v1"', "threshold = 2"]
    (tmp_path / "attested").mkdir()
    for name, key in (("alice", ALICE), ("bob", BOB), ("carol", CAROL)):
        save_private(tmp_path / f"{name}.pem", key)
        save_public(tmp_path / f"{name}.pub.pem", key.public)
        lines += ["[[auditor]]", f'name = "{name}"', f'key = """{key.public.pem().decode("ascii")}"""']
    (tmp_path / "policy.toml").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def ask(main: Cli, desk: Path, run: Path, who: str, *more: object) -> dict[str, Any]:
    """The assignment of one auditor of every step that is left."""
    done = main(
        *("next", "--run", run, "--key", desk / f"{who}.pub.pem", "--count", STEPS, "--beacon", BEACON, "--json"),
        *more,
    )
    assert done.code in (0, 9), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["code"] == done.code
    return found


def attest(main: Cli, desk: Path, run: Path, who: str, steps: str) -> int:
    """Verify and sign."""
    arguments = ("--device", "cpu", "--attest", desk / f"{who}.pem", "--attest-dir", desk / "attested")
    return main("verify", "--run", run, "--steps", steps, *arguments).code


def needs(found: dict[str, Any]) -> dict[int, str]:
    """Step to need, in the order given."""
    return {entry["step"]: entry["need"] for entry in found["steps"]}


def by_rank(run_id: str, key: PrivateKey, steps: set[int]) -> list[int]:
    """Some steps in the order of a key's ranks."""
    order = assign(Ranks(run_id, key.public.keyid, parse(BEACON).value), STEPS, STEPS).tolist()
    return [step for step in order if step in steps]


def test_needier_steps_come_first_and_ones_own_never_again(main: Cli, desk: Path, honest: Path) -> None:
    assert attest(main, desk, honest, "alice", "0:3") == 0
    assert attest(main, desk, honest, "bob", "1:5") == 0
    said = (desk / "attested", "--policy", desk / "policy.toml")

    carol = ask(main, desk, honest, "carol", *said)
    run_id = carol["run_id"]
    assert list(needs(carol)) == [
        *by_rank(run_id, CAROL, {5, 6, 7}),
        *by_rank(run_id, CAROL, {0, 3, 4}),
        *by_rank(run_id, CAROL, {1, 2}),
    ]
    assert carol["needs"] == {"disputed": 0, "open": 3, "partial": 3, "settled": 2, "spoken": 0}
    assert carol["policy"] == content_digest((desk / "policy.toml").read_bytes())
    assert carol["attestations"] == 7
    levels = bytes([2, 254, 254, 2, 2, 1, 1, 1])
    assert carol["needs_digest"] == content_digest(levels)

    alice = ask(main, desk, honest, "alice", *said)
    assert set(needs(alice)) == {3, 4, 5, 6, 7}
    assert alice["needs"]["spoken"] == 3


def test_a_disputed_step_goes_to_auditors_that_have_not_spoken_on_it(
    main: Cli, desk: Path, parts: make_run.Parts
) -> None:
    run = make_run.publish(make_run.train_with(parts, wrong_step=ON_THE_WAY), desk / "lying")
    assert attest(main, desk, run, "alice", f"{ON_THE_WAY}:{ON_THE_WAY + 1}") == 3
    said = (desk / "attested", "--policy", desk / "policy.toml")
    bob, alice = ask(main, desk, run, "bob", *said), ask(main, desk, run, "alice", *said)
    assert next(iter(needs(bob).items())) == (ON_THE_WAY, "disputed")
    assert ON_THE_WAY not in needs(alice)
    # a second auditor finds the same: it is settled, against the publisher
    assert attest(main, desk, run, "bob", f"{ON_THE_WAY}:{ON_THE_WAY + 1}") == 3
    assert list(needs(ask(main, desk, run, "carol", *said)).items())[-1] == (ON_THE_WAY, "settled")


def test_nothing_is_left_when_one_has_spoken_on_everything(main: Cli, desk: Path, honest: Path) -> None:
    assert attest(main, desk, honest, "alice", f"0:{STEPS}") == 0
    found = ask(main, desk, honest, "alice", desk / "attested", "--policy", desk / "policy.toml")
    assert (found["verdict"], found["code"], found["steps"]) == ("INCOMPLETE", 9, [])
    done = main("next", "--run", honest, "--key", desk / "alice.pem", desk / "attested", desk / "alice.pub.pem")
    assert (done.code, done.stdout.strip()) == (9, "")
    assert "0 steps are left for this key; it has spoken on 8" in done.stderr


def test_the_steps_are_what_verify_takes(main: Cli, desk: Path, honest: Path) -> None:
    arguments = ("next", "--run", honest, "--key", ALICE.public.keyid, "--count", 3, "--beacon", BEACON)
    first = main(*arguments).stdout.split()
    assert len(first) == 3
    assert main(*arguments).stdout.split() == first
    assert main("verify", "--run", honest, "--device", "cpu", "--steps", ",".join(first)).code == 0


def test_the_file_of_a_key_and_its_id_mean_the_same(main: Cli, desk: Path, honest: Path) -> None:
    answers = {
        main("next", "--run", honest, "--key", key, "--count", 5, "--beacon", BEACON).stdout
        for key in (ALICE.public.keyid, desk / "alice.pub.pem", desk / "alice.pem")
    }
    assert len(answers) == 1
