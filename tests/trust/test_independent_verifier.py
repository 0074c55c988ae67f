"""A verifier of 40 lines that shares no code with this program accepts our envelopes, and nothing but them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from tests.conftest import ROOT
from tests.formats import attestations, samples
from tests.trust.independent_verifier import verify

FILE = ROOT / "tests" / "trust" / "independent_verifier.py"


def test_it_is_short_and_uses_the_standard_library_and_cryptography_only() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {a.name for i in imports if isinstance(i, ast.Import) for a in i.names}
    names |= {i.module or "" for i in imports if isinstance(i, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names) | {"cryptography"}


@pytest.mark.parametrize("name", attestations.AUDITS)
def test_it_accepts_our_envelopes(name: str, tmp_path: Path) -> None:
    audit = attestations.AUDITS[name]
    files = {
        "envelope": attestations.signed(audit),
        "key.pem": attestations.KEY.public.pem(),
        "record.json": attestations.RECORD.encode(),
    }
    assert verify(*files.values()) == audit.to_value()
    for path, data in files.items():
        (tmp_path / path).write_bytes(data)
    command = [sys.executable, str(FILE), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == f"{audit.verdict.name}\n"


def test_it_refuses_another_key_record_and_payload() -> None:
    envelope, record = attestations.signed(attestations.MATCH), attestations.RECORD.encode()
    with pytest.raises(InvalidSignature):
        verify(envelope, attestations.OTHER_KEY.public.pem(), record)
    with pytest.raises(ValueError, match="signed, but not about this record"):
        verify(envelope, attestations.KEY.public.pem(), samples.CHAIN[2].encode())
    with pytest.raises(InvalidSignature):
        verify(envelope.replace(b'"payload":"ey', b'"payload":"fy'), attestations.KEY.public.pem(), record)
