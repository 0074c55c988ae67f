"""`auditkit log` and `verify` with a policy: witnesses are shown with their times, and missed where there are none."""

from __future__ import annotations

import json
from pathlib import Path

from auditkit.formats.note import COSIGNATURE
from auditkit.trust.keys import PrivateKey
from auditkit.trust.notes import note_key
from tests.audit import signed_runs
from tests.cli.conftest import Cli, Signed

WITNESS = PrivateKey(bytes(range(32)))
KEY = note_key("w.example", WITNESS.public, COSIGNATURE)


def policy(path: Path, publisher: str) -> Path:
    """A policy that asks for the witness."""
    path.write_text(
        'format = "auditkit/policy/v1"\nthreshold = 1\n'
        f'[log]\npublisher = "{publisher}"\nwitnesses = ["{KEY.text}"]\nwitness_threshold = 1\n',
        encoding="utf-8",
    )
    return path


def test_a_witness_of_the_policy(main: Cli, signed: Signed, tmp_path: Path) -> None:
    asked = policy(tmp_path / "policy.toml", signed.vkey)
    run = signed_runs.copy(signed.run, tmp_path / "run")
    for command in (["log", "show"], ["log", "prove", "5", "--out", tmp_path / "none"], ["verify", "--step", "4"]):
        missed = main(*command, "--run", run, "--policy", asked)
        assert missed.code == 8
        assert "0 known witnesses cosigned the checkpoint (none), 1 are asked for" in missed.stdout + missed.stderr
    assert not (tmp_path / "none").exists()
    signed_runs.cosign(run, KEY.name, WITNESS, 1679315147)
    shown = main("log", "show", "--run", run, "--policy", asked)
    assert shown.code == 0
    assert (
        f"signed by   w.example {KEY.hash.hex()}, a witness of the policy: verified, 2023-03-20T12:25:47Z"
        in shown.stdout
    )
    unknown = main("log", "show", "--run", run)
    assert f"signed by   w.example {KEY.hash.hex()}, not a key that was asked for: not verified" in unknown.stdout
    facts = json.loads(main("log", "show", "--run", run, "--policy", asked, "--json").stdout)
    assert facts["signatures"][1] == {
        "name": "w.example", "key_hash": KEY.hash.hex(), "who": "witness", "time": "2023-03-20T12:25:47Z"
    }  # fmt: skip
    assert main("log", "prove", "5", "--run", run, "--policy", asked, "--out", tmp_path / "proof").code == 0
    checked = main("log", "check", tmp_path / "proof", "--policy", asked)
    assert checked.code == 0
    assert "cosigned by   w.example at 2023-03-20T12:25:47Z" in checked.stdout
    assert main("verify", "--step", "4", "--run", run, "--policy", asked).code == 0


def test_a_rewritten_log_is_untrusted_and_names_its_evidence(main: Cli, signed: Signed, tmp_path: Path) -> None:
    assert main("verify", "--step", "4", "--run", signed.run).code == 0
    run = signed_runs.copy(signed.run, tmp_path / "run")
    made = signed_runs.records_of(run)
    signed_runs.sign(run, [*made[:-1], made[0]])
    done = main("verify", "--step", "4", "--run", run)
    assert done.code == 8
    assert "has two histories: key auditkit-run/" in done.stdout
    (evidence,) = (tmp_path / "data" / "evidence").glob("*/*")
    assert str(evidence) in done.stdout
    assert "hint: keep that folder and show it to others" in done.stdout


def test_the_publishers_own_words_cannot_steer_a_terminal(main: Cli, signed: Signed, tmp_path: Path) -> None:
    run = signed_runs.copy(signed.run, tmp_path / "run")
    place = run / "log" / "checkpoint"
    place.write_text(
        place.read_text(encoding="utf-8") + "\u2014 \u202egnp.exe\x7f AAAAAAAA\n", encoding="utf-8", newline="\n"
    )
    shown = main("log", "show", "--run", run)
    assert shown.code == 0
    assert "\u202e" not in shown.stdout and "\x7f" not in shown.stdout


def test_the_proof_of_a_segment_is_checked_offline(main: Cli, segments: Signed) -> None:
    shown = main("log", "check", segments.proof, "--publisher", segments.vkey)
    assert (shown.code, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == "segment       from step 9 on, entry 11: 2 of the entries before are segments'"
    assert lines[1].startswith("recipe        ")
    assert lines[2].startswith("data          ")
    assert lines[2].endswith(", from sequence 0 on")
    facts = json.loads(main("log", "check", segments.proof, "--publisher", segments.vkey, "--json").stdout)
    assert (facts["step"], facts["entry"], facts["segment"]["sequence"]) == (9, 11, 0)


def test_the_proof_of_a_step_behind_segments(main: Cli, segments: Signed, tmp_path: Path) -> None:
    assert main("log", "prove", "8", "--run", segments.run, "--out", tmp_path / "proof").code == 0
    shown = main("log", "check", tmp_path / "proof", "--publisher", segments.vkey)
    assert shown.stdout.startswith("step          8, entry 10: 2 of the entries before are segments'\n")
