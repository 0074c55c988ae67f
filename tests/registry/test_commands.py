"""`auditkit submit` and `auditkit claim` as users type them, against `auditkit registry serve`: processes all."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from auditkit.audit.submit import Served
from auditkit.cli.claim import _next
from auditkit.registry.folder import init
from auditkit.registry.runs import KnownRun
from auditkit.replay.selection import select
from auditkit.trust.keys import save_private, save_public
from tests.registry.inprocess import ORIGIN
from tests.registry.makers import Maker, key
from tests.registry.server import running
from tests.registry.test_server import auditkit


def test_submit_takes_files_and_folders_and_what_cannot_be_read_keeps_nothing_back(
    maker: Maker, tmp_path: Path
) -> None:
    init(tmp_path / "registry", ORIGIN)
    sound, mixed = tmp_path / "sound", tmp_path / "mixed"
    (mixed / "deeper").mkdir(parents=True)
    sound.mkdir()
    for step in range(3):
        (sound / f"{step}.json").write_bytes(maker.signed(step, key(1)))
    (mixed / "big.json").write_bytes(b"x" * 1_048_590)
    (mixed / "deeper" / "7.json").write_bytes(maker.signed(7, key(1)))
    (mixed / "two.jsonl").write_bytes(
        b"\n".join([maker.signed(8, key(1)), b"y" * 70_000, maker.signed(9, key(2))]) + b"\n"
    )
    (mixed / "no-key.pem").write_text("no key", encoding="utf-8")
    with running(tmp_path / "registry") as server:
        there = ("--registry", server.url)
        code, out, err = auditkit("submit", sound / "0.json", sound, *there)
        assert (code, err) == (0, "")
        assert "3 taken, 1 known before, 0 refused" in out
        code, out, err = auditkit("submit", mixed, sound / "1.json", *there)
        assert (code, err) == (4, "")
        assert "3 taken, 1 known before, 3 refused" in out
        for name in ("big.json: not sent: 1,048,590 bytes", "two.jsonl, byte ", "no-key.pem: not sent: "):
            assert name in out
        (mixed / "forged.json").write_bytes(maker.signed(10, key(77)))
        code, out, err = auditkit("submit", mixed, *there, "--json")
        assert (code, err) == (8, "")
        said = json.loads(out)
        assert said["counts"] == {"taken": 0, "known": 3, "refused": 4, "later": 0}
        assert [result["envelope"] for result in said["results"]].count("") == 3
        code, out, _ = auditkit("submit", mixed / "big.json", *there)
        assert (code, "0 taken" in out) == (4, True)


def test_claim_prints_commands_that_work(run: KnownRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(tmp_path / "registry", ORIGIN)
    (tmp_path / "my keys").mkdir()
    mine = tmp_path / "my keys" / "mine.key"
    save_private(mine, key(1))
    save_public(tmp_path / "mine.pem", key(1).public)
    with running(tmp_path / "registry") as server:
        code, out, err = auditkit("claim", "--registry", server.url, "--key", mine, "--count", 2)
        assert (code, err) == (0, "")
        monkeypatch.chdir(tmp_path)
        commands = [shlex.split(line) for line in out.splitlines() if line.startswith("auditkit ")]
        verify, submit = commands
        assert verify[:5] == ["auditkit", "verify", "--run", run.name, "--steps"]
        steps = {int(step) for step in re.findall(r"^step (\d+),", out, flags=re.MULTILINE)}
        assert len(steps) == 2
        assert set(select(steps=verify[5]).resolve(run.size)) == steps
        # as it stands, but of a step that is soon reached
        code, _, err = auditkit(*verify[1:4], "--step", 0, *verify[6:])
        assert code == 0, err
        code, out, err = auditkit(*submit[1:])
        assert (code, "1 taken" in out) == (0, True), out + err


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([7], "--step 7"), ([332, 957], "--steps 332,957"), ([4, 5, 6], "--steps 4:7"), ([4, 5, 9], "--steps 4:6,9")],
)
def test_steps_are_named_as_verify_takes_them(run: KnownRun, tmp_path: Path, steps: list[int], expected: str) -> None:
    served = Served(run.run_id, run.name, run.size)
    verify, _ = _next(served, steps, tmp_path / "my.key", "http://127.0.0.1:8440")
    option, value = shlex.split(verify)[4:6]
    assert f"{option} {value}" == expected
    found = select(step=int(value)) if option == "--step" else select(steps=value)
    assert list(found.resolve(run.size)) == steps


def test_a_run_of_the_same_name_is_not_taken_for_the_registrys(run: KnownRun, tmp_path: Path) -> None:
    for served in (Served("ab" * 32, run.name, run.size), Served(run.run_id, "elsewhere; rm -r .", run.size)):
        first, command, _ = _next(served, [3], tmp_path / "my.key", "http://127.0.0.1:8440")
        assert first.startswith("RUN ")
        assert command.startswith("auditkit verify --run RUN --step 3 --attest ")


def test_the_documented_recovery_of_an_open_registry(maker: Maker, tmp_path: Path) -> None:
    """Backup, more attestations of new keys, then only the backup, the log's key and a copy of the log are left."""
    old, new, files = tmp_path / "old", tmp_path / "new", tmp_path / "files"
    init(old, ORIGIN)
    files.mkdir()
    with running(old, "--open") as server:
        assert auditkit("registry", "backup", old, tmp_path / "backup")[0] == 0
        for number in range(50, 55):
            (files / f"{number}.json").write_bytes(maker.signed(3, key(number)))
            save_public(files / f"{number}.pem", key(number).public)
        assert auditkit("submit", files, "--registry", server.url)[0] == 0
        server.stop()
    log_key = ("--origin", ORIGIN, "--log-key", old / "log.key")
    assert auditkit("registry", "init", new, *log_key)[0] == 0
    assert auditkit("registry", "restore", new, tmp_path / "backup")[0] == 0
    shutil.copytree(old / "log", new / "log")
    with running(new, "--open") as server:
        assert "5 attestations were stored again from the log" in server.told
        code, out, err = auditkit("submit", files, "--registry", server.url)
        assert (code, "0 taken, 5 known before" in out) == (0, True), out + err
