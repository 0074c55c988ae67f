"""docs/formats.md against the code: limits, constants, keys, and its program that checks a run by hand."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from auditkit.formats import (
    blocks,
    compact,
    corpus,
    digest,
    leaves,
    recipe,
    record,
    run,
    segment,
    shards,
    state,
    stream,
    tensors,
    trace,
)
from auditkit.formats.limits import LIMITS
from tests.formats import samples, segmented, sources

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_the_limits_are_those_of_the_code() -> None:
    table = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    listed = {name: int(value) for name, value in re.findall(r"^\| (\w+) \| (\d+) \|$", table, re.MULTILINE)}
    assert listed == dataclasses.asdict(LIMITS)


CONSTANTS = [
    digest.STATE_ROOT, digest.GRADIENT_ROOT, digest.BATCH_ROOT, digest.RUN_ID, digest.RECIPE_ROOT,
    digest.SHARD_ROOT, digest.DATA_ROOT, run.FORMAT_2, run.FORMAT_3, segment.FORMAT, shards.FORMAT, blocks.TABLE_FORMAT,
    recipe.FORMAT, record.FORMAT, run.FORMAT, corpus.FORMAT, state.DOCUMENT_FORMAT, state.INDEX_FORMAT,
    tensors.GRADIENT_FORMAT, trace.FORMAT,
    *(magic.decode().strip() + "\\n"
      for magic in (record.MAGIC, compact.MAGIC, leaves.MAGIC, stream.MAGIC, blocks.MAGIC)),
]  # fmt: skip


@pytest.mark.parametrize("constant", CONSTANTS)
def test_every_constant_is_on_the_page(constant: str) -> None:
    assert constant in PAGE


def keys(value: Any) -> Iterator[str]:
    """All keys of a JSON value, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from keys(item)


DOCUMENTS = [
    samples.RUN, samples.WINDOWS_RUN, samples.DOCUMENT, samples.INDEX, samples.CORPUS, samples.CHAIN[0], sources.RUN,
    sources.SHARDS, segmented.RUN, segmented.SEGMENT, samples.TRACE,
]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)
def test_every_key_is_on_the_page(document: Any) -> None:
    for key in set(keys(json.loads(document.encode()))):
        assert re.search(rf"""["`.]{key}["`.]""", PAGE), key


def b3sum(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """What the program b3sum prints; it is not installed everywhere."""
    assert command[:2] == ["b3sum", "--no-names"]
    context = {"derive_key_context": command[3]} if "--derive-key" in command else {}
    output = blake3(options["input"], **context).hexdigest().encode() + b"\n"
    return subprocess.CompletedProcess(command, 0, output)


@pytest.mark.parametrize("sample", [samples, segmented])
def test_its_program_finds_the_log_root(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_bytes(sample.RUN.encode())
    (tmp_path / "records.bin").write_bytes(sample.RECORDS.encode())
    program = PAGE.split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(subprocess, "run", b3sum)
    monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path)])
    exec(compile(program, "formats.md", "exec"), {})
    root = sample.RUN.log.root
    assert capsys.readouterr().out == f"{root} {root}\n"
