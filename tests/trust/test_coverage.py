"""Coverage against a slow reading of the definition, and each rule of the definition by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.trust import coverage as coverage_module
from auditkit.trust.coverage import Coverage, Status, cover, ranges
from auditkit.trust.rows import AUTOMATION, Entry, Rows
from auditkit.verdict import Verdict
from tests.trust.voters import Anyone

MATCH, MISMATCH, UNAVAILABLE = Verdict.MATCH, Verdict.MISMATCH, Verdict.UNAVAILABLE
CPU, GPU = "cpu-x86_64", "cuda-sm_90"
A, B, C = "a" * 64, "b" * 64, "c" * 64


def entry(
    step: int,
    keyid: str,
    verdict: Verdict = MATCH,
    family: str = CPU,
    at: int = 0,
    automation: str = "",
    got: str = "x",
) -> Entry:
    """One attestation; `got` is the result of a MISMATCH."""
    return Entry(step, keyid, verdict, family, at, automation, got if verdict is MISMATCH else "")


def covered(*entries: Entry, size: int = 4, threshold: int = 1, families: int = 1, publisher: str = "") -> Coverage:
    """The coverage of some attestations under the rule that anyone counts."""
    return cover(Rows.of(entries), Anyone(threshold, families, publisher), size)


def slow_status(entries: list[Entry], rule: Anyone, step: int) -> Status:
    """The definition, one sentence after the other."""
    here = [e for e in entries if e.step == step and not rule.why_not(e.keyid, e.automation)]
    decided = [e for e in here if e.verdict in (MATCH, MISMATCH)]
    matching, families, against = 0, set(), {}
    for keyid in {e.keyid for e in decided}:
        own = [e for e in decided if e.keyid == keyid]
        last = max(own, key=lambda e: (e.finished, e.verdict is MISMATCH, e.outcome))
        if last.verdict is MATCH:
            matching += 1
            families |= {e.family for e in own if e.verdict is MATCH}
        else:
            against[last.outcome] = against.get(last.outcome, 0) + 1
    if not matching and max(against.values(), default=0) >= rule.threshold:
        return Status.MISMATCH
    if against:
        return Status.DISPUTED
    if not matching:
        return Status.OPEN
    return Status.COVERED if matching >= rule.threshold and len(families) >= rule.families else Status.PARTIAL


ENTRIES = st.lists(
    st.builds(
        entry,
        step=st.integers(0, 3),
        keyid=st.sampled_from([A, B, C]),
        verdict=st.sampled_from([MATCH, MATCH, MISMATCH, UNAVAILABLE, Verdict.BAD_ARTIFACT]),
        family=st.sampled_from([CPU, GPU]),
        at=st.integers(0, 2),
        automation=st.sampled_from(["", "", "", "ci", "nightly"]),
        got=st.sampled_from(["x", "y"]),
    ),
    max_size=24,
)
RULES = st.builds(Anyone, st.integers(1, 3), st.integers(1, 2), st.sampled_from(["", A]))


@given(ENTRIES, RULES)
def test_every_status_is_the_one_of_the_definition(entries: list[Entry], rule: Anyone) -> None:
    found = cover(Rows.of(entries), rule, 4)
    assert [Status(s) for s in found.status] == [slow_status(entries, rule, step) for step in range(4)]
    assert sum(found.totals.values()) == 4


@given(ENTRIES, RULES, st.randoms(use_true_random=False))
def test_neither_order_nor_parts_nor_repeats_change_a_status(
    entries: list[Entry], rule: Anyone, random: object
) -> None:
    expected = cover(Rows.of(entries), rule, 4)
    shuffled = [*entries, *entries[:5]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = cover(Rows.join([Rows.of(shuffled[:7]), Rows.of([]), Rows.of(shuffled[7:])]), rule, 4)
    assert found.status.tolist() == expected.status.tolist()
    assert found.matches.tolist() == expected.matches.tolist()
    assert found.by_family == expected.by_family
    assert found.contradictions == expected.contradictions


@given(ENTRIES, RULES, st.integers(0, 3), st.sampled_from([B, C]))
def test_one_more_match_never_uncovers_a_step(entries: list[Entry], rule: Anyone, step: int, keyid: str) -> None:
    before = cover(Rows.of(entries), rule, 4)
    after = cover(Rows.of([*entries, entry(step, keyid, family=GPU, at=9)]), rule, 4)
    assert after.status[step] >= before.status[step] or before.status[step] == Status.MISMATCH
    assert after.matches[step] >= before.matches[step]


@given(ENTRIES, RULES, st.integers(0, 24))
def test_rows_without_unused_texts_are_the_same_rows(entries: list[Entry], rule: Anyone, cut: int) -> None:
    some = Rows.of(entries).take(np.arange(len(entries)) < cut)
    found, plain = some.compact(), Rows.of(entries[:cut])
    assert (found.keys, found.families, found.outcomes) == (plain.keys, plain.families, plain.outcomes)
    for name in ("step", "key", "verdict", "family", "automation", "outcome", "finished"):
        assert getattr(found, name).tolist() == getattr(plain, name).tolist()


def test_the_statuses_of_a_small_run() -> None:
    found = covered(
        entry(0, A, MISMATCH),
        entry(0, B, MISMATCH),
        entry(1, A, MISMATCH),
        entry(1, B),
        entry(3, A),
        entry(4, A),
        entry(4, B, family=GPU),
        entry(5, A),
        entry(5, B),
        size=6,
        threshold=2,
        families=2,
    )
    names = ["MISMATCH", "DISPUTED", "OPEN", "PARTIAL", "COVERED", "PARTIAL"]
    assert [Status(s).name for s in found.status] == names
    assert found.verdict is MISMATCH
    assert found.gaps == [(2, 3)]
    assert found.ranges(Status.PARTIAL) == [(3, 4), (5, 6)]
    assert found.by_family == {CPU: 4, GPU: 1}
    assert found.by_key["match"].tolist() == [3, 3]
    assert found.by_key["mismatch"].tolist() == [2, 1]


def test_keys_with_different_results_do_not_agree_on_a_mismatch() -> None:
    found = covered(entry(0, A, MISMATCH, got="x"), entry(0, B, MISMATCH, got="y"), threshold=2)
    assert found.status[0] == Status.DISPUTED
    agreed = covered(*[entry(0, k, MISMATCH, got="x") for k in (A, B)], entry(0, C, MISMATCH, got="y"), threshold=2)
    assert agreed.status[0] == Status.MISMATCH


def test_one_key_is_one_voice_however_often_it_speaks() -> None:
    found = covered(*[entry(0, A, at=n) for n in range(3)], threshold=2)
    assert found.status[0] == Status.PARTIAL
    assert found.matches[0] == 1
    assert found.by_key["match"].tolist() == [1]
    assert found.contradictions == []
    assert covered(*[entry(0, A, MISMATCH, at=n) for n in range(3)], threshold=2).status[0] == Status.DISPUTED


def test_the_latest_word_of_a_key_decides_and_the_contradiction_is_shown() -> None:
    corrected = covered(entry(0, A, MISMATCH, at=1), entry(0, A, MATCH, at=2))
    assert corrected.status[0] == Status.COVERED
    assert corrected.contradictions == [(0, 0)]
    assert corrected.stands.tolist() == [False, True]
    withdrawn = covered(entry(0, A, MATCH, at=1), entry(0, A, MISMATCH, at=2))
    assert withdrawn.status[0] == Status.MISMATCH
    assert withdrawn.contradictions == [(0, 0)]
    together = covered(entry(0, A, MATCH, at=1), entry(0, A, MISMATCH, at=1))
    assert together.status[0] == Status.MISMATCH
    two_results = covered(entry(0, A, MISMATCH, at=1, got="x"), entry(0, A, MISMATCH, at=2, got="y"))
    assert two_results.contradictions == [(0, 0)]


def test_an_attestation_without_a_result_takes_nothing_back() -> None:
    found = covered(entry(0, A, MATCH, at=1), entry(0, A, UNAVAILABLE, at=2))
    assert found.status[0] == Status.COVERED
    assert found.contradictions == []
    assert found.not_verifiable(UNAVAILABLE).tolist() == []


def test_what_is_not_served_is_open_and_listed_as_not_verifiable() -> None:
    bad = Verdict.BAD_ARTIFACT
    found = covered(entry(0, A, UNAVAILABLE), entry(1, A, bad), entry(2, A, UNAVAILABLE), entry(2, B))
    assert [Status(s).name for s in found.status] == ["OPEN", "OPEN", "COVERED", "OPEN"]
    assert found.not_verifiable(UNAVAILABLE).tolist() == [0]
    assert found.not_verifiable(bad).tolist() == [1]
    assert found.by_key["undecided"].tolist() == [3, 0]
    assert found.verdict is Verdict.INCOMPLETE


def test_automation_and_the_publisher_do_not_count_and_it_says_why() -> None:
    found = covered(entry(0, A), entry(0, B, automation="ci"), entry(1, B, MISMATCH, automation="nightly"), publisher=A)
    assert [Status(s).name for s in found.status] == ["OPEN"] * 4
    assert not found.counts.any()
    assert [found.why_not(key) for key in (0, 1)] == ["the publisher's key", "automation (ci); automation (nightly)"]


def test_a_key_that_also_runs_automation_counts_for_what_it_did_itself() -> None:
    found = covered(entry(0, A, automation="ci", at=5), entry(0, A, MISMATCH, at=1), entry(1, A))
    assert [Status(s).name for s in found.status[:2]] == ["MISMATCH", "COVERED"]
    assert found.counts.tolist() == [False, True, True]


def test_a_run_is_a_match_only_when_every_step_is_covered() -> None:
    assert covered(*[entry(step, A) for step in range(4)]).verdict is MATCH
    assert covered(*[entry(step, A) for step in range(3)]).verdict is Verdict.INCOMPLETE
    assert covered().verdict is Verdict.INCOMPLETE
    assert covered(size=0).verdict is Verdict.INCOMPLETE
    assert covered().gaps == [(0, 4)]


@pytest.mark.parametrize("step", [-1, 4, 10**12])
def test_a_step_that_the_run_does_not_have_is_refused(step: int) -> None:
    with pytest.raises(UsageError, match="outside 0 to 3"):
        covered(entry(step, A))


def test_a_table_and_sorting_find_the_same_families(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(n % 7, f"{n:064x}", family=f"family-{n % 5}") for n in range(100)]
    table = covered(*entries, size=9, families=3)
    monkeypatch.setattr(coverage_module, "MAX_FLAGS", 0)
    sorted_ = covered(*entries, size=9, families=3)
    assert table.families.tolist() == sorted_.families.tolist() == [5] * 7 + [0] * 2
    assert table.by_family == sorted_.by_family


def test_more_families_than_a_small_integer_holds() -> None:
    found = covered(*[entry(0, A, family=f"family-{n}") for n in range(40_000)], families=40_000)
    assert found.families[0] == 40_000
    assert found.status[0] == Status.COVERED


@given(st.lists(st.booleans(), max_size=20))
def test_ranges_are_maximal_and_hold_exactly_what_is_set(flags: list[bool]) -> None:
    found = ranges(np.array(flags, np.bool_))
    assert sorted(n for first, stop in found for n in range(first, stop)) == [n for n, set_ in enumerate(flags) if set_]
    assert all(stop < first for (_, stop), (first, _) in zip(found, found[1:], strict=False))


def test_a_million_attestations_against_the_slow_reading_of_some_steps() -> None:
    """100,000 steps, 1,000 keys: the columns that a large run has, and thirty steps of it by the definition."""
    rng, count, size = np.random.default_rng(7), 1_000_000, 100_000
    verdict = np.where(rng.random(count) < 0.02, MISMATCH.code, MATCH.code).astype(np.uint8)
    rows = Rows(
        step=rng.integers(0, size, count),
        key=rng.integers(0, 1000, count).astype(np.int32),
        verdict=verdict,
        family=rng.integers(0, 5, count).astype(np.int32),
        automation=rng.integers(0, 3, count).astype(np.uint8),
        outcome=np.where(verdict == MISMATCH.code, rng.integers(0, 2, count), -1).astype(np.int32),
        finished=rng.integers(0, 50, count),
        keys=tuple(f"{n:064x}" for n in range(1000)),
        families=tuple("abcde"),
        outcomes=("x", "y"),
        part=np.full(count, -1, np.int32),
        parts=(),
    )
    rule = Anyone(3, 2)
    found = cover(rows, rule, size)
    for step in range(0, size, size // 30):
        here = np.flatnonzero(rows.step == step).tolist()
        entries = [
            entry(
                step,
                rows.keys[rows.key[i]],
                Verdict(int(rows.verdict[i])),
                rows.families[rows.family[i]],
                int(rows.finished[i]),
                AUTOMATION[rows.automation[i]],
                rows.outcomes[rows.outcome[i]],
            )
            for i in here
        ]
        assert Status(found.status[step]) == slow_status(entries, rule, step)
    assert sum(found.totals.values()) == size
