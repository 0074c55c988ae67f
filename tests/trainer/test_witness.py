"""checks.bin: any flipped bit of a record or leaf is found, at its step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact
from tests.trainer import tiny
from trainer import witness
from trainer.log import read_rows


@pytest.mark.parametrize("name", ["state_after", "batch", "gradient", "micro_root", "loss", "norm", "lr"])
def test_every_field_of_a_record_is_witnessed(name: str, finished_once: Path) -> None:
    rows = list(read_rows(finished_once, tiny.STEPS))
    witness.check(finished_once, rows, lambda step: 2 * step)
    value = getattr(rows[12], name)
    rows[12] = dataclasses.replace(rows[12], **{name: value ^ 1 if isinstance(value, int) else "0" * 64})
    with pytest.raises(BadArtifact, match=r"records\.bin: record 12, or its leaves"):
        witness.check(finished_once, rows, lambda step: 2 * step)


def test_leaves_are_witnessed_and_short_checks_refused(finished: Path) -> None:
    rows = read_rows(finished, tiny.STEPS)
    data = bytearray((finished / "leaves.bin").read_bytes())
    data[16 + 5 * 80 + 41] ^= 4
    (finished / "leaves.bin").write_bytes(data)
    with pytest.raises(BadArtifact, match="record 5, or its leaves"):
        witness.check(finished, rows, lambda step: 2 * step)
    (finished / "checks.bin").write_bytes(b"")
    with pytest.raises(BadArtifact, match=r"checks\.bin: 0 bytes, but 24 steps fill 768"):
        witness.check(finished, rows, lambda step: 2 * step)
