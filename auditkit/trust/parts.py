"""What audits of single micro-batches say of a step: which micro-batches match, by how many keys, and what is left.

They never make a step covered: whether the update follows from the gradients only an audit of the whole step tells. A
MATCH of the whole step is one of each of its micro-batches; a MISMATCH of the whole step says nothing about which.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.micro_batches import MicroBatches
from auditkit.trust.rows import Rows
from auditkit.verdict import Verdict

Flags = NDArray[np.bool_]

_END = 1 << 62  # beyond all micro-batches


@dataclass(frozen=True)
class Span:
    """Micro-batches `first` to `stop` - 1: how many keys that count say MATCH of each, on how many families."""

    first: int
    stop: int
    keys: int
    families: int


@dataclass(frozen=True)
class StepParts:
    """The micro-batches of one step, in spans from 0 to `count`.

    mismatches  keys (indices) that say MISMATCH of some micro-batch now, by outcome
    agreed      whether enough of them computed one and the same other result of micro-batches of which none says MATCH
    torn        keys that said two different things of one micro-batch
    """

    step: int
    count: int
    spans: tuple[Span, ...]
    mismatches: dict[str, tuple[int, ...]]
    agreed: bool
    torn: tuple[int, ...]

    def by(self, keys: int, families: int) -> MicroBatches:
        """The micro-batches that so many keys on so many families say MATCH of; may be none."""
        enough = [span for span in self.spans if span.keys >= keys and span.families >= families]
        return MicroBatches.of((n for span in enough for n in range(span.first, span.stop)), self.count)

    @property
    def accusing(self) -> set[int]:
        """The keys that say MISMATCH of some micro-batch."""
        return {key for keys in self.mismatches.values() for key in keys}


@dataclass(frozen=True)
class _Said:
    """One attestation that counts: 0 or 1 + outcome, as in the votes of whole steps."""

    key: int
    statement: int
    family: int
    finished: int
    ranges: tuple[tuple[int, int], ...]
    count: int  # micro-batches of the step, 0 where the whole step was audited


def step_parts(rows: Rows, counts: Flags, threshold: int) -> dict[int, StepParts]:
    """The steps of which some attestation of a part counts, by step; `counts` (rows,) says which do."""
    used = counts & rows.decided
    steps = np.unique(rows.step[used & (rows.part >= 0)])
    if not len(steps):
        return {}
    sets = [_parse(text) for text in rows.parts]
    index = np.flatnonzero(used & np.isin(rows.step, steps) & ((rows.part >= 0) | _matching(rows)))
    index = index[np.argsort(rows.step[index], kind="stable")]
    cuts = np.searchsorted(rows.step[index], steps, side="right").tolist()
    found = {}
    for step, first, stop in zip(steps.tolist(), [0, *cuts[:-1]], cuts, strict=True):
        found[step] = _of_step(
            step, [_said(rows, i, sets) for i in index[first:stop].tolist()], rows.outcomes, threshold
        )
    return found


def _matching(rows: Rows) -> Flags:
    matches: Flags = rows.verdict == Verdict.MATCH.code
    return matches


def _parse(text: str) -> MicroBatches:
    micro_batches, _, count = text.partition("/")
    return MicroBatches.parse(micro_batches, int(count), "part")


def _said(rows: Rows, i: int, sets: list[MicroBatches]) -> _Said:
    part = int(rows.part[i])
    statement = int(rows.outcome[i]) + 1 if rows.verdict[i] == Verdict.MISMATCH.code else 0
    ranges, count = (sets[part].ranges, sets[part].count) if part >= 0 else (((0, _END),), 0)
    return _Said(int(rows.key[i]), statement, int(rows.family[i]), int(rows.finished[i]), ranges, count)


def _of_step(step: int, said: list[_Said], outcomes: Sequence[str], threshold: int) -> StepParts:
    count = max(one.count for one in said)
    edges = sorted({0, count, *(edge for one in said for pair in one.ranges for edge in pair if edge < _END)})
    spans: list[Span] = []
    mismatches: dict[str, set[int]] = collections.defaultdict(set)
    torn: set[int] = set()
    agreed = False
    for first, stop, here in _pieces(edges, said):
        now = _latest(here)
        torn.update(key for key, ones in _by_key(here).items() if len({one.statement for one in ones}) > 1)
        matching = {key for key, statement in now.items() if statement == 0}
        families = {one.family for one in here if one.statement == 0 and one.key in matching}
        against = collections.Counter(statement for statement in now.values() if statement)
        for key, statement in now.items():
            if statement:
                mismatches[outcomes[statement - 1]].add(key)
        agreed = agreed or (not matching and max(against.values(), default=0) >= threshold)
        if spans and (spans[-1].keys, spans[-1].families) == (len(matching), len(families)):
            spans[-1] = Span(spans[-1].first, stop, len(matching), len(families))
        else:
            spans.append(Span(first, stop, len(matching), len(families)))
    by_outcome = {outcome: tuple(sorted(keys)) for outcome, keys in sorted(mismatches.items())}
    return StepParts(step, count, tuple(spans), by_outcome, agreed, tuple(sorted(torn)))


def _pieces(edges: list[int], said: list[_Said]) -> Iterator[tuple[int, int, list[_Said]]]:
    """Micro-batches of which the same attestations speak, and these; one sweep over where they begin and end."""
    begins, ends = collections.defaultdict(list), collections.defaultdict(list)
    for number, one in enumerate(said):
        for first, stop in one.ranges:
            begins[first].append(number)
            ends[stop].append(number)
    here: dict[int, _Said] = {}
    for first, stop in zip(edges, edges[1:], strict=False):
        for number in ends[first]:
            del here[number]
        for number in begins[first]:
            here[number] = said[number]
        yield first, stop, list(here.values())


def _by_key(said: list[_Said]) -> dict[int, list[_Said]]:
    found: dict[int, list[_Said]] = collections.defaultdict(list)
    for one in said:
        found[one.key].append(one)
    return found


def _latest(said: list[_Said]) -> dict[int, int]:
    """What each key says now; of several of the same second a MISMATCH."""
    return {key: max((one.finished, one.statement) for one in ones)[1] for key, ones in _by_key(said).items()}
