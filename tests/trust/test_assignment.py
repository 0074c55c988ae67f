"""Assignments: the definition, its vectors in docs/assignment.md, the order by need, and the statistics of the draw.

The statistics have fixed seeds: each is one number that is the same for everybody, held against a bound that a fair
draw passes all but once in a million times, and beside each a draw that is not fair must fail.
"""

from __future__ import annotations

import math
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.trust import assignment
from auditkit.trust.assignment import NEVER, SETTLED, Ranks, assign, needs
from auditkit.trust.coverage import cover
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.conftest import ROOT
from tests.trust.voters import Anyone

DOCUMENT = (ROOT / "docs" / "assignment.md").read_text(encoding="utf-8")
RUN, KEY, OTHER = "11" * 32, "22" * 32, "33" * 32


def beacon(number: int) -> bytes:
    """A beacon of a test: nothing but a number spread over 32 bytes."""
    return blake3(b"beacon of a test " + struct.pack("<Q", number)).digest()


def by_definition(run: str, key: str, value: bytes, step: int) -> int:
    """The rank as docs/assignment.md defines it, one step at a time."""
    hasher = blake3(derive_key_context="auditkit assignment v1")
    for part in (bytes.fromhex(run), bytes.fromhex(key), value):
        hasher.update(part)
    return struct.unpack("<Q", hasher.digest(8 * step + 8)[-8:])[0]


@pytest.mark.parametrize("step", [0, 1, 7, 8, 127, 128, 12345])
def test_the_rank_of_a_step_is_the_one_defined(step: int) -> None:
    ranks = Ranks(RUN, KEY, beacon(0))
    expected = by_definition(RUN, KEY, beacon(0), step)
    assert ranks.of(step) == expected
    assert ranks.block(step, step + 3)[0] == expected


def test_every_input_changes_every_rank() -> None:
    base = Ranks(RUN, KEY, beacon(0)).block(0, 100)
    for changed in (Ranks(OTHER, KEY, beacon(0)), Ranks(RUN, OTHER, beacon(0)), Ranks(RUN, KEY, beacon(1))):
        assert not (changed.block(0, 100) == base).any()
    assert not (Ranks(KEY, RUN, beacon(0)).block(0, 100) == base).any()


@pytest.mark.parametrize("wrong", ["", "11" * 31, "zz" * 32, "AA" * 32])
def test_ids_that_are_none_are_refused(wrong: str) -> None:
    for ids in ((wrong, KEY), (RUN, wrong)):
        with pytest.raises(BadArtifact):
            Ranks(*ids, beacon(0))


@given(st.data())
def test_the_order_is_level_rank_step_whatever_the_blocks(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 200))
    levels = np.array(data.draw(st.lists(st.sampled_from([0, 1, 2, NEVER]), min_size=size, max_size=size)), np.uint8)
    count = data.draw(st.integers(1, size))
    block = data.draw(st.integers(1, size + 1))
    bits = data.draw(st.sampled_from([1, 3, 64]))
    ranks = _Coarse(bits)
    expected = [s for s in sorted(range(size), key=lambda s: (levels[s], ranks.of(s), s)) if levels[s] != NEVER]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "BLOCK", block)
        assert assign(ranks, size, count, levels).tolist() == expected[:count]


class _Coarse(Ranks):
    """Ranks of few bits, so that many are equal."""

    def __init__(self, bits: int) -> None:
        super().__init__(RUN, KEY, beacon(0))
        self._shift = np.uint64(64 - bits)

    def of(self, step: int) -> int:
        return super().of(step) >> int(self._shift)

    def block(self, first: int, stop: int) -> assignment.Ranked:
        return super().block(first, stop) >> self._shift


def test_without_levels_all_steps_are_equally_needy() -> None:
    ranks = Ranks(RUN, KEY, beacon(0))
    assert assign(ranks, 50, 50).tolist() == sorted(range(50), key=ranks.of)
    assert assign(ranks, 50, 9).tolist() == assign(ranks, 50, 50).tolist()[:9]


def test_fewer_steps_than_asked_for_may_be_left() -> None:
    levels = np.full(20, NEVER, np.uint8)
    assert assign(Ranks(RUN, KEY, beacon(0)), 20, 5, levels).tolist() == []
    levels[3] = 0
    assert assign(Ranks(RUN, KEY, beacon(0)), 20, 5, levels).tolist() == [3]


AUDITORS = ["a" * 64, "b" * 64, "c" * 64, "d" * 64]


def said(step: int, auditor: int, verdict: Verdict = Verdict.MATCH, outcome: str = "") -> Entry:
    """One attestation."""
    return Entry(step, AUDITORS[auditor], verdict, "cpu-x86_64", 1000, "", outcome)


def test_need_follows_from_what_counts_and_from_what_this_key_said() -> None:
    entries = [
        said(1, 0),
        said(2, 0),
        said(2, 1),
        *(said(3, auditor) for auditor in range(3)),
        said(4, 0, Verdict.MISMATCH, "x"),
        said(5, 0),
        said(5, 1, Verdict.MISMATCH, "x"),
        *(said(6, auditor, Verdict.MISMATCH, "x") for auditor in range(3)),
        said(7, 3),
        said(8, 3, Verdict.MISMATCH, "x"),
        said(9, 3, Verdict.UNAVAILABLE),
    ]
    coverage = cover(Rows.of(entries), Anyone(threshold=3), 10)
    assert needs(coverage, AUDITORS[3]).tolist() == [1, 2, 3, SETTLED, 0, 0, SETTLED, NEVER, NEVER, 1]
    assert needs(coverage, "e" * 64).tolist() == [1, 2, 3, SETTLED, 0, 0, SETTLED, 2, 0, 1]
    assert needs(coverage, AUDITORS[0]).tolist() == [1, *[NEVER] * 6, 2, 0, 1]


def test_a_step_with_very_many_matches_short_of_the_threshold_is_not_taken_for_settled() -> None:
    entries = [Entry(0, f"{auditor:064x}", Verdict.MATCH, "cpu-x86_64", 1000) for auditor in range(300)]
    coverage = cover(Rows.of(entries), Anyone(threshold=400), 2)
    assert needs(coverage, "f" * 64).tolist() == [SETTLED - 1, 1]


PEAK = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from auditkit.trust.assignment import Ranks, assign
from tests.peak_memory import peak_bytes
size = 10_000_000
levels = (np.arange(size) % 3).astype(np.uint8)
before = peak_bytes()
found = assign(Ranks("11" * 32, "22" * 32, bytes(32)), size, 1000, levels)
assert len(set(found.tolist())) == 1000 and not (found % 3).any()
print(peak_bytes() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no peak memory to be had")
@pytest.mark.optional("Windows has no resource module; the code is the same everywhere")
def test_ten_million_steps_take_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, encoding="utf-8", check=True)
    assert int(done.stdout) < 64 * 2**20  # all ranks at once would take 80 MB, and twice that to sort them


# Statistics


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic."""
    return float((((observed - expected) ** 2) / expected).sum())


def as_normal(statistic: float, degrees: int) -> float:
    """A chi-square statistic on the scale of a standard normal variable (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return ((statistic / degrees) ** (1 / 3) - (1 - part)) / math.sqrt(part)


FAIR = 4.9  # a standard normal variable is beyond this, on either side, once in a million times

Draw = Callable[[str, int], list[int]]
SIZE, COUNT, DRAWS = 120, 30, 3000


def fair(key: str, number: int) -> list[int]:
    """The real draw among equally needy steps."""
    return assign(Ranks(RUN, key, beacon(number)), SIZE, COUNT).tolist()


def favours_a_step(key: str, number: int) -> list[int]:
    """A draw whose ranks keep three bits, so that ties go to small steps more often than chance would have it."""
    ranks = Ranks(RUN, key, beacon(number))
    return sorted(range(SIZE), key=lambda step: (ranks.of(step) >> 61, step))[:COUNT]


def follows_the_key(key: str, number: int) -> list[int]:
    """A draw in which a second key gets what the first one did, once in eight times."""
    return fair(KEY if number % 8 == 0 else key, number)


def uniformity(draw: Draw) -> float:
    """How far the number of times that each step was drawn is from equal, on a normal scale."""
    counts = Counter(step for number in range(DRAWS) for step in draw(KEY, number))
    observed = np.array([counts[step] for step in range(SIZE)], float)
    # Drawing COUNT of SIZE without replacement spreads less than Poisson's law, by (SIZE - COUNT) / (SIZE - 1).
    spread = (SIZE - COUNT) / (SIZE - 1)
    return as_normal(chi_square(observed, np.full(SIZE, DRAWS * COUNT / SIZE)) / spread, SIZE - 1)


def independence(draw: Draw) -> float:
    """How far the overlap of two keys' steps is from the hypergeometric law, on a normal scale."""
    overlaps = Counter(len({*draw(KEY, number)} & {*draw(OTHER, number)}) for number in range(DRAWS))
    law = [math.comb(COUNT, k) * math.comb(SIZE - COUNT, COUNT - k) / math.comb(SIZE, COUNT) for k in range(COUNT + 1)]
    kept = [k for k in range(COUNT + 1) if DRAWS * law[k] >= 5]  # cells with fewer expected are joined into one
    observed = np.array([overlaps[k] for k in kept], float)
    expected = DRAWS * np.array([law[k] for k in kept])
    observed, expected = np.append(observed, DRAWS - observed.sum()), np.append(expected, DRAWS - expected.sum())
    return as_normal(chi_square(observed, expected), len(expected) - 1)


def same_place(draw: Draw) -> float:
    """How often two keys begin with the same step, against once in SIZE times, on a normal scale."""
    hits = sum(draw(KEY, number)[0] == draw(OTHER, number)[0] for number in range(DRAWS))
    chance = 1 / SIZE
    return (hits - DRAWS * chance) / math.sqrt(DRAWS * chance * (1 - chance))


@pytest.mark.parametrize("statistic", [uniformity, independence, same_place])
def test_the_draw_is_fair(statistic: Callable[[Draw], float]) -> None:
    assert abs(statistic(fair)) < FAIR


@pytest.mark.parametrize(
    ("statistic", "draw"),
    [(uniformity, favours_a_step), (independence, follows_the_key), (same_place, follows_the_key)],
)
def test_a_draw_that_is_not_fair_is_noticed(statistic: Callable[[Draw], float], draw: Draw) -> None:
    assert abs(statistic(draw)) > FAIR


def test_equally_needy_steps_are_equally_likely_beside_needier_ones() -> None:
    """Ten needy steps always come first; the places left over are shared out evenly among the rest."""
    levels = np.ones(SIZE, np.uint8)
    levels[:10] = 0
    counts: Counter[int] = Counter()
    for number in range(DRAWS):
        chosen = assign(Ranks(RUN, KEY, beacon(number)), SIZE, COUNT, levels).tolist()
        assert sorted(chosen[:10]) == list(range(10))
        counts.update(chosen[10:])
    observed = np.array([counts[step] for step in range(10, SIZE)], float)
    spread = (SIZE - COUNT) / (SIZE - 11)
    expected = np.full(SIZE - 10, DRAWS * (COUNT - 10) / (SIZE - 10))
    assert abs(as_normal(chi_square(observed, expected) / spread, SIZE - 11)) < FAIR


# docs/assignment.md


def test_the_vectors_of_the_document_hold() -> None:
    rows = re.findall(r"^\| `([0-9a-f]{64})` \| `([0-9a-f]{64})` \| `([0-9a-f]+)` \| (\d+) \| `([0-9a-f]{16})` \|$",
                      DOCUMENT, flags=re.MULTILINE)  # fmt: skip
    assert len(rows) >= 6
    assert {len(value) // 2 for _, _, value, _, _ in rows} >= {16, 32, 64}
    for run, key, value, step, expected in rows:
        found = Ranks(run, key, bytes.fromhex(value)).of(int(step))
        assert found.to_bytes(8, "little").hex() == expected
        assert by_definition(run, key, bytes.fromhex(value), int(step)) == found


def test_the_order_of_the_document_holds() -> None:
    (said,) = re.findall(r"first five of 1,000 equally needy steps are ([\d, ]+)\.", DOCUMENT)
    run, key, value = re.findall(r"^\| `([0-9a-f]{64})` \| `([0-9a-f]{64})` \| `([0-9a-f]+)` \|", DOCUMENT, re.M)[0]
    assert assign(Ranks(run, key, bytes.fromhex(value)), 1000, 5).tolist() == [int(s) for s in said.split(", ")]


def test_the_program_of_the_document_gives_the_same_steps(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    program = tmp_path / "who.py"
    program.write_text(code, encoding="utf-8")
    arguments = [RUN, KEY, beacon(5).hex(), "1000", "7"]
    done = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, encoding="utf-8", check=True)
    assert [int(line) for line in done.stdout.split()] == assign(Ranks(RUN, KEY, beacon(5)), 1000, 7).tolist()
