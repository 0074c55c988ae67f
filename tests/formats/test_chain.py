"""The chain through all segments of a run, and the records of the segments in it."""

from __future__ import annotations

import dataclasses

from auditkit.formats import merkle
from auditkit.formats.chain import chain, log_entries, segment_record
from auditkit.formats.digest import DATA_ROOT, root
from auditkit.formats.record import StepRecord, expand
from auditkit.formats.segment import SegmentRecord, data_digest, parse_entry
from tests.formats import samples
from tests.formats.samples import RECORDS, RUN_ID
from tests.formats.segmented import CHAIN, ENTRIES, LOWER, MORE, RUN, SHORT, TIMELINE


def test_without_segments_the_chain_is_that_of_the_rows() -> None:
    rows = expand(RECORDS.rows, run_id=RUN_ID, numerics=1, micro_batches=2, state0=samples.RUN.states[0].root)
    assert chain(RECORDS.rows, samples.RUN.timeline(), RUN_ID) == rows == samples.CHAIN
    assert list(log_entries(rows, samples.RUN.timeline())) == rows


def test_a_segment_record_lies_between_two_steps() -> None:
    kinds = [type(entry) for entry in ENTRIES]
    assert kinds == [StepRecord, SegmentRecord, StepRecord, SegmentRecord, StepRecord]
    assert [entry.step for entry in ENTRIES] == [0, 1, 1, 2, 2]
    for before, after in zip(ENTRIES, ENTRIES[1:], strict=False):
        assert after.previous == before.digest()
        assert after.state_before == before.state_after
        assert after.run == RUN_ID
    assert [record.micro_batches for record in CHAIN] == [2, 3, 3]
    assert [TIMELINE.entry(record.step) for record in CHAIN] == [ENTRIES.index(record) for record in CHAIN]


def test_it_says_what_holds_from_there_on() -> None:
    first, second = (entry for entry in ENTRIES if isinstance(entry, SegmentRecord))
    assert (first.recipe, first.data, first.sequence) == (LOWER.digest(), data_digest(samples.DATA), 3)
    assert (second.recipe, second.data, second.sequence) == (SHORT.digest(), data_digest(MORE), 0)
    assert [record.state_after for record in (first, second)] == [change.state for change in RUN.changes]
    assert segment_record(TIMELINE.segments[2], CHAIN[1]) == second


def test_a_data_digest_is_that_of_the_section() -> None:
    assert data_digest(MORE) == root(DATA_ROOT, RUN.encode()[RUN.encode().index(_section()) :][: len(_section())])
    assert data_digest(MORE) != data_digest(dataclasses.replace(MORE, seed=8))


def _section() -> bytes:
    from auditkit.formats import canonical

    return canonical.dumps(MORE.to_value())


def test_the_log_holds_both_kinds_of_records() -> None:
    leaves = [merkle.leaf_hash(entry.encode()) for entry in ENTRIES]
    assert merkle.tree_root(leaves).hex() == RUN.log.root
    assert [parse_entry(entry.encode()) for entry in ENTRIES] == list(ENTRIES)
