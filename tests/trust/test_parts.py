"""Audits of micro-batches in the coverage: against a slow reading of the rules, and each rule by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditkit.formats.micro_batches import MicroBatches
from auditkit.trust.assignment import NEVER, needs
from auditkit.trust.coverage import Coverage, Status, cover
from auditkit.trust.page import page
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.trust.pages import about
from tests.trust.voters import Anyone

MATCH, MISMATCH = Verdict.MATCH, Verdict.MISMATCH
CPU, GPU = "cpu-x86_64", "cuda-sm_90"
A, B, C = "a" * 64, "b" * 64, "c" * 64
COUNT = 8


def part(
    text: str, keyid: str, verdict: Verdict = MATCH, *, at: int = 0, family: str = CPU, step: int = 1, got: str = "x"
) -> Entry:
    outcome = f"micro-batches {text}: leaves {got}" if verdict is MISMATCH else ""
    return Entry(step, keyid, verdict, family, at, "", outcome, f"{text}/{COUNT}")


def whole(keyid: str, verdict: Verdict = MATCH, *, at: int = 0, step: int = 1) -> Entry:
    return Entry(step, keyid, verdict, CPU, at, "", "other" if verdict is MISMATCH else "")


def covered(*entries: Entry, threshold: int = 1, families: int = 1) -> Coverage:
    return cover(Rows.of(entries), Anyone(threshold, families), 3)


def spans(coverage: Coverage) -> list[tuple[int, int, int, int]]:
    return [(s.first, s.stop, s.keys, s.families) for s in coverage.parts[1].spans]


def test_a_part_makes_a_step_partial_and_says_which() -> None:
    found = covered(part("0-3", A), part("2-5", B, family=GPU), threshold=2)
    assert found.status[1] == Status.PARTIAL and found.matches[1] == 0
    assert spans(found) == [(0, 2, 1, 1), (2, 4, 2, 2), (4, 6, 1, 1), (6, 8, 0, 0)]
    assert found.parts[1].by(2, 1).text == "2-3"


def test_all_parts_by_enough_keys_are_not_the_step() -> None:
    found = covered(part("0-3", A), part("4-7", A), part("0-7", B), threshold=2)
    assert found.parts[1].by(2, 1).all
    assert found.status[1] == Status.PARTIAL
    assert found.totals[Status.COVERED] == 0 and found.verdict is Verdict.INCOMPLETE


def test_whole_audits_count_for_each_micro_batch_and_parts_not_for_the_step() -> None:
    found = covered(whole(A), part("0", B), threshold=2)
    assert found.status[1] == Status.PARTIAL and found.matches[1] == 1
    assert spans(found) == [(0, 1, 2, 1), (1, 8, 1, 1)]
    assert covered(whole(A), whole(B), part("0", C), threshold=2).status[1] == Status.COVERED


def test_the_same_key_counts_once() -> None:
    assert spans(covered(part("0-7", A), part("0-3", A, at=1), whole(A, at=2))) == [(0, 8, 1, 1)]


def test_a_mismatch_of_a_part_disputes_the_step() -> None:
    found = covered(whole(A), whole(B), part("3", C, MISMATCH), threshold=2)
    assert found.status[1] == Status.DISPUTED and found.mismatches[1] == 1
    assert list(found.parts[1].mismatches) == ["micro-batches 3: leaves x"]


def test_enough_keys_with_the_same_other_result_and_no_match_are_a_mismatch() -> None:
    two = (part("3", A, MISMATCH), part("3", B, MISMATCH))
    assert covered(*two, threshold=2).status[1] == Status.MISMATCH
    assert covered(*two, threshold=3).status[1] == Status.DISPUTED
    assert covered(two[0], part("3", B, MISMATCH, got="y"), threshold=2).status[1] == Status.DISPUTED
    assert covered(*two, part("2-3", C), threshold=2).status[1] == Status.DISPUTED
    assert covered(*two, part("4", C), threshold=2).status[1] == Status.MISMATCH
    assert covered(*two, whole(C), threshold=2).status[1] == Status.DISPUTED


def test_a_key_corrects_itself_by_what_it_says_later_of_the_same_micro_batch() -> None:
    assert covered(part("3", A, MISMATCH), whole(A, at=1)).status[1] == Status.COVERED
    assert covered(part("3", A, MISMATCH, at=1), whole(A)).status[1] == Status.DISPUTED
    assert covered(part("3", A, MISMATCH), part("4", A, at=1)).status[1] == Status.MISMATCH
    corrected = covered(part("3", A, MISMATCH), part("2-3", A, at=1))
    assert corrected.status[1] == Status.PARTIAL
    assert corrected.contradictions == [(1, corrected.rows.keys.index(A))]


def test_a_mismatch_of_the_whole_step_takes_no_part_back() -> None:
    found = covered(part("0-7", A), whole(A, MISMATCH, at=1))
    assert found.parts[1].by(1, 1).all and found.status[1] == Status.MISMATCH


def test_who_audited_a_part_may_still_be_asked_for_the_step() -> None:
    found = covered(part("0-7", A), whole(B, step=2))
    assert needs(found, A)[1] != NEVER and needs(found, B)[2] == NEVER


def test_the_page_names_who_accuses_of_a_part_and_counts_what_was_verified() -> None:
    found = page(covered(part("0", A, MISMATCH), whole(B, step=2)), about(names={A: "ann"})).decode("utf-8")
    row = found.partition("computed another result")[2].partition("</table>")[0]
    assert "ann" in row and "leaves x" in row
    assert "2 verified, from 2 keys" in found


def test_what_counts_of_a_key_are_its_audits_of_parts_too() -> None:
    ci = part("1", A)._replace(automation="ci")
    assert cover(Rows.of([part("0", A), ci]), Anyone(), 3).not_counted(0) == "1 counts, 1 does not: automation (ci)"
    assert cover(Rows.of([whole(A), ci]), Anyone(), 3).not_counted(0) == "1 counts, 1 does not: automation (ci)"
    assert cover(Rows.of([ci]), Anyone(), 3).not_counted(0) == "does not count: automation (ci)"


def test_rows_keep_the_part() -> None:
    rows = Rows.of([part("0", A), whole(B), part("3-4", A)])
    joined = Rows.join([rows, Rows.of([part("1", C)])])
    assert [joined.parts[p] if p >= 0 else "" for p in joined.part.tolist()] == ["0/8", "", "3-4/8", "1/8"]
    assert joined.take(joined.part >= 0).compact().parts == ("0/8", "1/8", "3-4/8")


SETS = st.sets(st.integers(0, COUNT - 1), min_size=1).map(lambda numbers: MicroBatches.of(numbers, COUNT).text)
ENTRIES = st.lists(
    st.one_of(
        st.builds(
            lambda text, key, verdict, at, family: part(text, key, verdict, at=at, family=family),
            SETS,
            st.sampled_from([A, B, C]),
            st.sampled_from([MATCH, MATCH, MISMATCH]),
            st.integers(0, 3),
            st.sampled_from([CPU, GPU]),
        ),
        st.builds(lambda key, verdict, at: whole(key, verdict, at=at), st.sampled_from([A, B, C]),
                  st.sampled_from([MATCH, MISMATCH]), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


@given(ENTRIES)
def test_against_the_rules_one_micro_batch_after_the_other(entries: list[Entry]) -> None:
    found = covered(*entries, threshold=2)
    if not any(entry.part for entry in entries):
        assert found.parts == {}
        return
    for number in range(COUNT):
        matching, families = _slowly(entries, number)
        (span,) = (s for s in found.parts[1].spans if s.first <= number < s.stop)
        assert (span.keys, span.families) == (matching, families)
    assert found.parts[1].spans[0].first == 0 and found.parts[1].spans[-1].stop == COUNT


def _slowly(entries: list[Entry], number: int) -> tuple[int, int]:
    keys, families = 0, set()
    for keyid in (A, B, C):
        own = [
            entry
            for entry in entries
            if entry.keyid == keyid
            and (number in MicroBatches.parse(entry.part[:-2], COUNT, "x") if entry.part else entry.verdict is MATCH)
        ]
        if not own:
            continue
        last = max(own, key=lambda entry: (entry.finished, entry.verdict is MISMATCH))
        if last.verdict is MATCH:
            keys += 1
            families |= {entry.family for entry in own if entry.verdict is MATCH}
    return keys, len(families)
