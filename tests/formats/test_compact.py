"""Compact records: what is left of a step, and that the rest comes back."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.compact import MAGIC, CompactRecords, file_bytes, parse_all, row_bytes
from auditkit.formats.leaves import micro_root
from tests.formats import segmented
from tests.formats.samples import COMPACT, LEAVES, RECORDS, compact_rows, digest_of

ROW = COMPACT.steps[0]
NORM = 16 + 148 + 188 + 64  # where that of step 2 lies in the file of segments
INFINITE = segmented.COMPACT_BIN[:NORM] + struct.pack("<f", float("inf")) + segmented.COMPACT_BIN[NORM + 4 :]


def test_a_row_is_two_digests_a_norm_and_the_leaves() -> None:
    head = bytes.fromhex(ROW.state_after + ROW.gradient) + struct.pack("<I", ROW.norm)
    assert ROW.encode() == head + b"".join(leaf.encode() for leaf in LEAVES.steps[0])
    assert len(ROW.encode()) == row_bytes(2) == 148
    assert len(COMPACT.encode()) == file_bytes(3, 6) == 16 + 3 * 148


def test_the_rows_come_back() -> None:
    """State, gradient, norm and micro-batch root are those of the other layout; the rest is as given."""
    for row, whole, leaves in zip(compact_rows(), RECORDS.rows, LEAVES.steps, strict=True):
        assert (row.state_after, row.gradient, row.norm) == (whole.state_after, whole.gradient, whole.norm)
        assert row.micro_root == whole.micro_root == micro_root(leaves)
    given = COMPACT.rows(batches=[digest_of("a")] * 3, losses=[1, 2, 3], rates=[4, 5, 6])
    assert [(row.batch, row.loss, row.lr) for row in given] == [(digest_of("a"), n, n + 3) for n in (1, 2, 3)]


def test_the_loss_is_the_mean_over_the_targets() -> None:
    """The sample's leaves have (step + 1) * 2^32 each, two a step, and 24 targets."""
    losses = [np.uint32(row.loss).view(np.float32) for row in compact_rows()]
    assert losses == [np.float32(2 * (step + 1) / 24) for step in range(3)]


def test_one_of_each_for_each_step() -> None:
    with pytest.raises(ValueError, match="shorter"):
        COMPACT.rows(batches=[digest_of("a")] * 2, losses=[1, 2, 3], rates=[4, 5, 6])


@pytest.mark.parametrize("micro_batches", [0, (1 << 20) + 1])
def test_an_impossible_number_of_micro_batches_is_refused(micro_batches: int) -> None:
    with pytest.raises(BadArtifact, match="micro-batches a step"):
        CompactRecords.parse(MAGIC, micro_batches=micro_batches)


def test_another_number_of_leaves_is_refused() -> None:
    fewer = dataclasses.replace(ROW, leaves=ROW.leaves[:1])
    with pytest.raises(BadArtifact, match="a step does not have 2 leaves"):
        CompactRecords(2, (ROW, fewer)).encode()
    with pytest.raises(BadArtifact, match="after the last whole row"):
        CompactRecords.parse(COMPACT.encode(), micro_batches=3)


@pytest.mark.parametrize("change", [{"norm": 0x7F800000}, {"gradient": "A" * 64}, {"state_after": "x"}])
def test_digests_and_norms_are_checked_when_a_row_is_written(change: dict[str, object]) -> None:
    with pytest.raises(BadArtifact, match="record row"):
        dataclasses.replace(ROW, **change).encode()  # type: ignore[arg-type]


def test_rows_of_several_segments_have_leaves_of_their_own_number() -> None:
    layout = [(1, 2), (2, 3)]
    assert len(segmented.COMPACT_BIN) == file_bytes(3, 8) == 16 + 148 + 2 * 188
    assert parse_all(segmented.COMPACT_BIN, layout) == segmented.COMPACT
    assert parse_all(COMPACT.encode(), [(3, 2)]) == (COMPACT,)


@pytest.mark.parametrize(
    ("data", "layout", "error"),
    [
        (segmented.COMPACT_BIN[:-1], [(1, 2), (2, 3)], "records: 539 bytes end within steps 1 to 2"),
        (segmented.COMPACT_BIN + b"x", [(1, 2), (2, 3)], "records: 1 bytes after step 2"),
        (segmented.COMPACT_BIN, [(1, 2)], "records: 80 bytes after the last whole row"),
        (b"x" + segmented.COMPACT_BIN[1:], [(1, 2), (2, 3)], "records: does not begin with AUDITKIT-REC-v2"),
        (INFINITE, [(1, 2), (2, 3)], "records: norm of step 2 is not finite"),
    ],
)
def test_rows_of_several_segments_are_checked_as_those_of_one(
    data: bytes, layout: list[tuple[int, int]], error: str
) -> None:
    with pytest.raises(BadArtifact, match=error):
        parse_all(data, layout)
