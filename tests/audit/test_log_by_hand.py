"""What docs/formats.md says about checking a signed log by hand, done by other programs."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from auditkit.audit.signed_log import origin_of
from tests.audit.signed_runs import copy, key_of, manifest_of, records_of, sign

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
PROGRAMS = ("bash", "openssl", "xxd", "base64", "sha256sum", "python3")
(BLOCK,) = re.findall(r"```sh\n(head -3 .*?)```", PAGE, re.DOTALL)


def by_hand(run: Path, vkey: str, folder: Path) -> list[str]:
    """The lines that the commands of the page print."""
    done = subprocess.run(
        ["bash", "-c", BLOCK],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "R": str(run), "VKEY": vkey},
        capture_output=True,
        encoding="utf-8",
        cwd=folder,
        timeout=60,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.optional("the programs of the page are not on every machine")
@pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="a program of the page is not here")
@pytest.mark.parametrize("which", ["signed", "long"])
def test_the_commands_of_the_page(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run: Path = request.getfixturevalue(which)
    leaf = hashlib.sha256(b"\0" + records_of(run)[5]).hexdigest()
    root = manifest_of(run).log.root
    lines = by_hand(run, key_of(run).text, tmp_path)
    assert lines == ["Signature Verified Successfully", root, root, f"{leaf}  -", leaf]
    assert (tmp_path / "record.json").read_bytes() == records_of(run)[5]


@pytest.mark.optional("the programs of the page are not on every machine")
@pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="a program of the page is not here")
def test_the_commands_of_the_page_notice_another_key(signed: Path, tmp_path: Path) -> None:
    run = copy(signed, tmp_path / "run")
    place = run / "log" / "checkpoint"
    place.write_bytes(place.read_bytes().replace(b"\n8\n", b"\n7\n"))
    assert "Signature Verification Failure" in by_hand(run, key_of(run).text, tmp_path)[0]


def test_the_layout_that_the_page_describes(signed: Path, tmp_path: Path) -> None:
    """A vkey and a checkpoint taken apart with the standard library alone."""
    name, hashed, encoded = key_of(signed).text.split("+", 2)
    typed = base64.b64decode(encoded)
    assert (typed[0], len(typed)) == (1, 33)
    assert hashlib.sha256(name.encode() + b"\n" + typed).digest()[:4].hex() == hashed
    assert name == origin_of(manifest_of(signed).run_id()) == f"auditkit-run/{manifest_of(signed).run_id()}"
    lines = (signed / "log" / "checkpoint").read_text(encoding="utf-8").split("\n")
    assert lines[:2] == [name, "8"]
    assert base64.b64decode(lines[2]).hex() == manifest_of(signed).log.root
    assert lines[3] == "" and lines[4].startswith(f"\u2014 {name} ") and lines[5:] == [""]
    # the same key and records give the same bytes
    again = sign(copy(signed, tmp_path / "again"))
    assert (again / "log" / "checkpoint").read_bytes() == (signed / "log" / "checkpoint").read_bytes()
