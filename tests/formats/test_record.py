"""Records: written directly but equal to RFC 8785, chained from rows, all of them quickly."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import numpy as np
import pytest
import rfc8785
from hypothesis import given

from auditkit.errors import BadArtifact
from auditkit.formats import merkle
from auditkit.formats.digest import ZERO_DIGEST, content_digest
from auditkit.formats.record import MAGIC, ROW_BYTES, RecordFile, StepRecord, expand, log_root
from tests.formats.samples import CHAIN, MICRO_BATCHES, RECORDS, RUN_ID, digest_of
from tests.formats.strategies import step_records

STATE0 = digest_of("state 0")


def chain(rows: tuple[Any, ...], **changes: Any) -> list[StepRecord]:
    """The sample's chain with other rows or other facts of the manifest."""
    facts = {"run_id": RUN_ID, "numerics": 1, "micro_batches": MICRO_BATCHES, "state0": STATE0, **changes}
    return expand(rows, **facts)


@given(step_records())
def test_the_direct_writer_writes_what_rfc8785_writes(record: StepRecord) -> None:
    encoded = record.encode()
    assert encoded == rfc8785.dumps(json.loads(encoded))
    assert StepRecord.parse(encoded) == record


def test_the_chain_is_rebuilt_from_rows() -> None:
    assert CHAIN[0].previous == ZERO_DIGEST
    assert CHAIN[0].state_before == STATE0
    for before, after in zip(CHAIN, CHAIN[1:], strict=False):
        assert after.previous == before.digest() == content_digest(before.encode())
        assert after.state_before == before.state_after
        assert after.step == before.step + 1
    assert tuple(record.row() for record in CHAIN) == RECORDS.rows


def test_the_log_root_is_the_tree_over_the_texts() -> None:
    leaves = [merkle.leaf_hash(record.encode()) for record in CHAIN]
    assert log_root(CHAIN) == merkle.tree_root(leaves).hex()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RECORDS.rows[0])])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_every_bit_of_every_row_changes_the_log_root(field: str, step: int) -> None:
    value = getattr(RECORDS.rows[step], field)
    changed = value ^ 1 if isinstance(value, int) else digest_of("other")
    rows = list(RECORDS.rows)
    rows[step] = dataclasses.replace(rows[step], **{field: changed})
    assert log_root(chain(tuple(rows))) != log_root(CHAIN)


def test_swapped_missing_and_repeated_rows_change_the_log_root() -> None:
    a, b, c = RECORDS.rows
    roots = {log_root(chain(rows)) for rows in ((a, b, c), (b, a, c), (a, c, b), (a, b), (a, b, b), (a, b, c, c))}
    assert len(roots) == 6


@pytest.mark.parametrize(
    "change", [{"run_id": digest_of("other")}, {"numerics": 2}, {"micro_batches": 3}, {"state0": digest_of("other")}]
)
def test_the_facts_of_the_manifest_are_in_every_record(change: dict[str, Any]) -> None:
    assert log_root(chain(RECORDS.rows, **change)) != log_root(CHAIN)


def test_fifty_thousand_records_take_no_more_than_seconds() -> None:
    body = np.random.default_rng(1).integers(0, 256, (50_000, ROW_BYTES), dtype=np.uint8)
    body[:, [131, 135, 139]] = 0x3F  # exponents of finite numbers
    data = MAGIC + body.tobytes()
    began = time.process_time()
    records = chain(RecordFile.parse(data).rows)
    log_root(records)
    assert time.process_time() - began < 10  # 0.75 s where this was written; 10 s would be a wrong algorithm
    assert len(records) == 50_000
    assert RecordFile(tuple(record.row() for record in records)).encode() == data


def test_digests_and_numbers_are_checked_when_a_row_is_written() -> None:
    row = RECORDS.rows[0]
    for field, value in (("batch", "A" * 64), ("loss", 0x7F800000), ("lr", -1), ("norm", 1 << 32)):
        with pytest.raises(BadArtifact):
            dataclasses.replace(row, **{field: value}).encode()


def test_the_chain_starts_from_digests() -> None:
    with pytest.raises(BadArtifact, match="state root of step 0"):
        chain(RECORDS.rows, state0="x")
    with pytest.raises(BadArtifact, match="run id"):
        chain(RECORDS.rows, run_id="X" * 64)


def test_a_record_that_is_not_canonical_is_another_entry_of_the_log_and_refused() -> None:
    text = CHAIN[1].encode()
    for other in (text + b"\n", text.replace(b":", b": ", 1), b" " + text):
        with pytest.raises(BadArtifact, match="not canonical JSON"):
            StepRecord.parse(other)
