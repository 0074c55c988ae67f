"""`verify --attest` where things go wrong: a mismatch, a full disk, a signal, a key that cannot be used."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditkit.formats.dsse import Envelope
from auditkit.replay.run import open_run
from auditkit.trust.attested import Attested, read_attestation
from auditkit.trust.keys import PrivateKey, save_private, save_public
from auditkit.verdict import Verdict
from tests.cli.conftest import Cli, environment
from tests.conftest import ROOT
from tests.replay.make_run import Parts, flip_state, publish

KEY = PrivateKey(bytes(range(32)))
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell and signals")
POSIX_OPTIONAL = pytest.mark.optional("there is no POSIX shell on Windows")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    save_private(tmp_path / "key.pem", KEY)
    return tmp_path / "key.pem"


def read(path: Path, run: Path) -> Attested:
    with open_run(str(run)) as opened:
        return read_attestation(path.read_bytes(), {KEY.public.keyid: KEY.public}, records=opened.records)


def test_a_mismatch_is_signed_and_keeps_its_code(cli: Cli, parts: Parts, tmp_path: Path, key: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    run = publish(lie, tmp_path / "lie")
    done = cli("verify", "--run", run, "--step", 4, "--attest", key, "--attest-dir", tmp_path / "out")
    assert done.code == 3
    (path,) = (tmp_path / "out").iterdir()
    assert done.stdout.endswith(f":\n  step 4  MISMATCH  {path}\n")
    assert read(path, run).verdict is Verdict.MISMATCH


def test_a_second_verification_gets_a_number(cli: Cli, honest: Path, tmp_path: Path, key: Path) -> None:
    command = (
        "verify",
        "--run",
        honest,
        "--step",
        4,
        "--attest",
        key,
        "--attest-dir",
        tmp_path / "out",
        "--automation",
    )
    assert cli(*command, "ci").code == 0
    done = cli(*command, "nightly")
    assert done.code == 0 and "step-4.a050837d.2.json" in done.stdout
    automation = [
        read(tmp_path / "out" / name, honest).automation for name in ("step-4.a050837d.json", "step-4.a050837d.2.json")
    ]
    assert automation == ["ci", "nightly"]


def test_without_a_folder_they_lie_here(cli: Cli, honest: Path, tmp_path: Path, key: Path) -> None:
    assert cli("verify", "--run", honest, "--step", 4, "--attest", key).code == 0
    assert read(tmp_path / "step-4.a050837d.json", honest).verdict is Verdict.MATCH


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_cannot_be_written_ends_with_6_and_tells_the_verdict(
    honest: Path, tmp_path: Path, key: Path, as_json: bool
) -> None:
    """At a limit of 512 or 1,024 bytes a file, no attestation fits."""
    command = [sys.executable, "-m", "auditkit", "verify", "--run", str(honest), "--step", "4", "--attest", str(key)]
    command += ["--attest-dir", str(tmp_path / "out"), *(["--json"] if as_json else [])]
    shell = ["sh", "-c", f"ulimit -f 1; exec {shlex.join(command)}"]
    env = environment(tmp_path / "cache", {"PYTHONDONTWRITEBYTECODE": "1"})
    done = subprocess.run(shell, capture_output=True, encoding="utf-8", env=env, cwd=tmp_path, check=False)
    assert done.returncode == 6, done.stderr
    if as_json:
        found = json.loads(done.stdout)
        assert (found["verdict"], found["code"]) == ("MATCH", 6)
        (problem,) = found["attestations"]["problems"]
        assert (problem["step"], problem["verdict"]) == (4, "UNSUPPORTED") and "larger than" in problem["message"]
        assert found["attestations"]["files"] == []
    else:
        assert "MATCH: 1 step: every claim" in done.stdout
        assert "nothing was signed\nUNSUPPORTED: step 4 is not attested: cannot write" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


@POSIX
@POSIX_OPTIONAL
def test_a_stopped_verification_keeps_what_it_has_signed(tmp_path: Path, key: Path) -> None:
    run, out = ROOT / "manifests" / "open-nano", tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "auditkit",
        "verify",
        "--run",
        str(run),
        "--steps",
        "0:20000",
        "--attest",
        str(key),
    ]
    command += ["--attest-dir", str(out), "--device", "cpu", "--threads", "1"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment(tmp_path / "cache")
    )
    try:
        deadline = time.monotonic() + 100
        while len(list(out.glob("*.svr.json")) if out.is_dir() else []) < 2:
            assert started.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 143
    names = sorted(path.name for path in out.iterdir())
    assert names[:2] == ["step-0.a050837d.json", "step-0.a050837d.svr.json"]
    assert not [name for name in names if name.startswith(".tmp-")]
    assert read(out / names[0], run).verdict is Verdict.MATCH
    for name in names:
        Envelope.parse((out / name).read_bytes())


@pytest.mark.parametrize(("kind", "code", "said"), [
    ("public", 2, "public key"),
    ("cut", 4, "key.pem"),
    ("folder", 5, "not a regular file"),
])  # fmt: skip
def test_a_key_that_cannot_sign_ends_it_before_the_replay(
    cli: Cli, honest: Path, tmp_path: Path, key: Path, kind: str, code: int, said: str
) -> None:
    place = tmp_path / "other.pem"
    if kind == "public":
        save_public(place, KEY.public)
        place.chmod(0o600)
    elif kind == "cut":
        place.write_bytes(key.read_bytes()[:-40])
        place.chmod(0o600)
        said = "other.pem"
    else:
        place.mkdir(mode=0o700)
    done = cli("verify", "--run", honest, "--step", 4, "--attest", place, "--attest-dir", tmp_path / "out")
    assert done.code == code and said in done.stderr, done.stderr
    assert done.stdout == "" and not (tmp_path / "out").exists()
    secret = "".join(key.read_text(encoding="ascii").splitlines()[1:-1])
    assert secret[:20] not in done.stderr
