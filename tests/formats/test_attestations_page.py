"""docs/attestations.md against the code: fields, constants, policy, and its programs that check one by hand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.formats import digest, dsse, policy, statement, step_audit, svr
from auditkit.formats.limits import LIMITS
from auditkit.formats.policy import Policy
from auditkit.trust.policy import Trust
from tests.conftest import ROOT
from tests.formats import attestations, samples
from tests.formats.test_docs import keys

PAGE = (ROOT / "docs" / "attestations.md").read_text(encoding="utf-8")

CONSTANTS = [
    dsse.PAYLOAD_TYPE, statement.TYPE, step_audit.PREDICATE_TYPE, svr.PREDICATE_TYPE, svr.VERIFIER, svr.STEP_MATCH,
    svr.NUMERICS, digest.WORK_KEY, policy.FORMAT, f"{LIMITS.envelope_bytes:,} bytes",
    f"{LIMITS.message_characters} characters",
]  # fmt: skip


@pytest.mark.parametrize("constant", CONSTANTS)
def test_every_constant_is_on_the_page(constant: str) -> None:
    assert constant in PAGE


def test_every_field_of_the_predicate_is_described() -> None:
    table = PAGE.split("\n## The predicate\n")[1].split("\n## ")[0]
    described = set(re.findall(r"`([a-z_]+)`", table))
    assert set(keys(attestations.MATCH.to_value())) - set(map(str, step_audit.CHECKS)) <= described
    assert set(step_audit.VERDICTS) <= set(re.findall(r"`([A-Z_]+)`", table))
    assert set(step_audit.AUTOMATION) - {""} <= described


def test_every_key_of_envelope_statement_and_summary_is_on_the_page() -> None:
    for data in (attestations.signed(attestations.MATCH), attestations.signed_summary()):
        envelope = json.loads(data)
        payload = json.loads(dsse.Envelope.parse(data).payload)
        for key in {*keys(envelope), *keys({k: v for k, v in payload.items() if k != "predicate"})}:
            assert f'"{key}"' in PAGE, key
    for key in keys(svr.SimpleResult.of(attestations.MATCH).to_value()):
        assert f'"{key}"' in PAGE, key


def test_the_policy_on_the_page_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    found = Policy.parse(text.encode())
    assert found.log is not None
    assert (found.threshold, len(found.auditors), len(found.excluded), len(found.log.witnesses)) == (2, 2, 1, 1)
    assert len(Trust(found).names) == 2


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An envelope, a key and the record, as `f`, `k` and `r`."""
    (tmp_path / "f").write_bytes(attestations.signed(attestations.MATCH))
    (tmp_path / "k").write_bytes(attestations.KEY.public.pem())
    (tmp_path / "r").write_bytes(attestations.RECORD.encode())
    return tmp_path


def run_python(folder: Path) -> subprocess.CompletedProcess[str]:
    """The page's program on the files of a folder."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(program.splitlines()) <= 20
    command = [sys.executable, "-c", program, "f", "k", "r"]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)


def test_the_python_program_accepts_an_attestation_and_nothing_else(files: Path) -> None:
    assert run_python(files).stdout == f"MATCH of step 1 of run {samples.RUN_ID}\n"
    for name, other in {
        "f": attestations.signed(attestations.MATCH, attestations.OTHER_KEY),
        "k": attestations.OTHER_KEY.public.pem(),
        "r": samples.CHAIN[2].encode(),
    }.items():
        kept = (files / name).read_bytes()
        (files / name).write_bytes(other)
        done = run_python(files)
        assert (done.returncode != 0, done.stdout) == (True, ""), name
        (files / name).write_bytes(kept)


@pytest.mark.optional("needs a shell and an openssl that knows Ed25519; the Python program runs everywhere")
def test_the_shell_commands_accept_an_attestation_and_nothing_else(files: Path) -> None:
    if not all(map(shutil.which, ("sh", "sed", "base64", "sha256sum", "openssl"))):
        pytest.skip("a tool is missing here")
    version = subprocess.run(["openssl", "version"], capture_output=True, encoding="utf-8", check=True).stdout
    if not version.startswith(("OpenSSL 3", "OpenSSL 4")):
        pytest.skip(f"another kind of openssl: {version}")
    block = next(b for b in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) if "openssl pkeyutl" in b)

    def run() -> str:
        command = ["sh", "-c", f"f=f; k=k\n{block}"]
        return subprocess.run(command, cwd=files, capture_output=True, encoding="utf-8", check=False).stdout

    said = run()
    assert "Signature Verified Successfully" in said
    assert said.count(attestations.KEY.public.keyid) == 2
    assert '"verdict":"MATCH"' in said
    (files / "k").write_bytes(attestations.OTHER_KEY.public.pem())
    assert "Signature Verified Successfully" not in run()
