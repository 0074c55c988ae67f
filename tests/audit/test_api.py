"""What `help(auditkit)` says of the Python interface runs as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import auditkit
from auditkit.trust.keys import PrivateKey, save_private, save_public


def test_the_examples_run(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = PrivateKey(bytes(range(32)))
    save_private(tmp_path / "auditor.pem", key)
    save_public(tmp_path / "auditor.pub", key.public)
    (tmp_path / "attestations").mkdir()
    monkeypatch.chdir(tmp_path)
    examples = [
        textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", auditkit.__doc__ or "", flags=re.MULTILINE)
    ]
    assert len(examples) == 3
    names: dict[str, object] = {"auditkit": auditkit, "Path": Path}
    for example in examples:
        made = tmp_path / "attestations" / f"step-7.{key.public.keyid8}.json"
        names["data"] = made.read_bytes() if made.exists() else b""
        exec(compile(example.replace('"open-nano"', repr(str(honest))), "example", "exec"), names)


def test_every_export_is_there() -> None:
    assert {name: getattr(auditkit, name).__name__ for name in auditkit.__all__} == {n: n for n in auditkit.__all__}
