"""How much of a run has been verified, by whom: the status of every step from many attestations and one policy.

What a key says. Of one key's attestations of one step the latest decides (`finished`, which the signer states; of
several with the same time the worst), so a correction replaces what it corrects, and repeating a result adds nothing.
A key can change only its own word by that, and one that said two different things is listed in `contradictions`,
whatever it says now. Attestations without a result (UNAVAILABLE and the like) replace nothing: not to have reached a
file takes no earlier MATCH or MISMATCH back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import UsageError
from auditkit.trust.parts import StepParts, step_parts
from auditkit.trust.rows import AUTOMATION, Rows
from auditkit.verdict import Verdict

Array = NDArray[Any]
Flags = NDArray[np.bool_]

MAX_FLAGS = 1 << 26  # bytes of a table of steps and families

_MATCH, _MISMATCH = Verdict.MATCH.code, Verdict.MISMATCH.code


class Status(enum.IntEnum):
    """What the attestations that count say of one step, worst first."""

    MISMATCH = 0  # `threshold` keys or more computed one and the same other result, none says MATCH
    DISPUTED = 1  # any other step with a MISMATCH
    OPEN = 2  # no MATCH
    PARTIAL = 3  # fewer keys or families than the policy asks for, or of some micro-batches only
    COVERED = 4


class Voters(Protocol):
    """What `cover` asks of a policy (trust/policy.py)."""

    @property
    def threshold(self) -> int: ...

    @property
    def families(self) -> int: ...

    def why_not(self, keyid: str, automation: str) -> str: ...


@dataclass(frozen=True, eq=False)
class Coverage:
    """The status of every step of a run of `size` steps, and what it follows from.

    `status` u8, `matches`, `mismatches` and `families` i32 are (size,): keys that count and say so, and different
    hardware families among the matches. `counts` and `stands` are (rows,) bool: whether an attestation may count, and
    whether it is (or repeats) what its key says now. `reasons` tells why those of a (key, automation) do not count.
    `by_family` is the number of steps with a MATCH that stands, for each hardware family.

    All of this is of attestations of whole steps. Those of some micro-batches are `part_rows`, `part_counts` which of
    them may count, and `parts` what they say, by step; they make no step covered.
    """

    rows: Rows
    size: int
    threshold: int
    families_needed: int
    status: NDArray[np.uint8]
    matches: NDArray[np.int32]
    mismatches: NDArray[np.int32]
    families: NDArray[np.int32]
    counts: Flags
    stands: Flags
    reasons: dict[tuple[int, int], str]
    votes: Votes
    by_family: dict[str, int]
    part_rows: Rows
    part_counts: Flags
    parts: dict[int, StepParts]

    @cached_property
    def totals(self) -> dict[Status, int]:
        """How many steps have each status; they add up to `size`."""
        found = np.bincount(self.status, minlength=len(Status))
        return {status: int(found[status]) for status in Status}

    @property
    def verdict(self) -> Verdict:
        """MISMATCH if any step is one, else INCOMPLETE if any is not covered, else MATCH."""
        if self.totals[Status.MISMATCH]:
            return Verdict.MISMATCH
        return Verdict.MATCH if self.size and self.totals[Status.COVERED] == self.size else Verdict.INCOMPLETE

    def steps(self, status: Status) -> Array:
        """The steps with a status, ascending, i64."""
        return np.flatnonzero(self.status == status)

    def ranges(self, status: Status) -> list[tuple[int, int]]:
        """The steps with a status as ranges (first, stop), half-open, ascending."""
        return ranges(self.status == status)

    @cached_property
    def gaps(self) -> list[tuple[int, int]]:
        """The steps for which no key that counts says anything decided, as half-open ranges."""
        return self.ranges(Status.OPEN)

    def not_verifiable(self, verdict: Verdict) -> Array:
        """Open steps for which a key that counts reports `verdict` (UNAVAILABLE, BAD_ARTIFACT), ascending."""
        reported = np.zeros(self.size, np.bool_)
        for rows, counts in ((self.rows, self.counts), (self.part_rows, self.part_counts)):
            reported[rows.step[counts & (rows.verdict == verdict.code)]] = True
        return np.flatnonzero(reported & (self.status == Status.OPEN))

    @property
    def contradictions(self) -> list[tuple[int, int]]:
        """(step, index of the key) of keys that count and said two different things of one step."""
        votes = self.votes
        found = set(zip(votes.step[votes.torn].tolist(), votes.key[votes.torn].tolist(), strict=True))
        return sorted(found | {(step, key) for step, part in self.parts.items() for key in part.torn})

    @cached_property
    def by_key(self) -> dict[str, Array]:
        """For each key, (keys,) i64: attestations of whole steps, those of them that count, those without a result;
        steps that it says MATCH and MISMATCH of; attestations of parts of steps, those of them that count.
        """
        votes, keys = self.votes, len(self.rows.keys)
        return {
            "attestations": np.bincount(self.rows.key, minlength=keys),
            "counted": np.bincount(self.rows.key[self.counts], minlength=keys),
            "match": np.bincount(votes.key[votes.statement == 0], minlength=keys),
            "mismatch": np.bincount(votes.key[votes.statement > 0], minlength=keys),
            "undecided": np.bincount(self.rows.key[~self.rows.decided], minlength=keys),
            "parts": np.bincount(self.part_rows.key, minlength=keys),
            "parts_counted": np.bincount(self.part_rows.key[self.part_counts], minlength=keys),
        }

    def why_not(self, key: int) -> str:
        """Why attestations of a key do not count, where some do not."""
        found = [self.reasons[key, a] for a in range(len(AUTOMATION)) if (key, a) in self.reasons]
        return "; ".join(dict.fromkeys(found))

    def not_counted(self, key: int) -> str:
        """How many attestations of a key count and how many do not, and why, in words; "" if all count."""
        why = self.why_not(key)
        if not why:
            return ""
        found = {name: int(column[key]) for name, column in self.by_key.items()}
        counted, total = found["counted"] + found["parts_counted"], found["attestations"] + found["parts"]
        if not counted:
            return f"does not count: {why}"
        not_counted = total - counted
        verbs = ("counts" if counted == 1 else "count", "does not" if not_counted == 1 else "do not")
        return f"{counted:,} {verbs[0]}, {not_counted:,} {verbs[1]}: {why}"


@dataclass(frozen=True, eq=False)
class Votes:
    """What each key says of each step now: (votes,) arrays ordered by step, then key.

    `statement` i64 is 0 for MATCH and 1 + outcome for MISMATCH; `torn` whether the key ever said anything else.
    """

    step: NDArray[np.int64]
    key: NDArray[np.int64]
    statement: NDArray[np.int64]
    torn: Flags


def cover(rows: Rows, trust: Voters, size: int) -> Coverage:
    """The coverage of a run of `size` steps. UsageError: a row of a step that the run does not have."""
    if len(rows.step) and not (0 <= int(rows.step.min()) and int(rows.step.max()) < size):
        raise UsageError(f"an attestation is about a step outside 0 to {size - 1}")
    all_counts, reasons = _counting(rows, trust)
    parts, of_part = step_parts(rows, all_counts, trust.threshold), rows.part >= 0
    part_rows, part_counts = rows.take(of_part), all_counts[of_part]
    rows, counts = rows.take(~of_part), all_counts[~of_part]
    votes, stands = _votes(rows, counts & rows.decided)
    matches = _per_step(votes.step[votes.statement == 0], size)
    mismatches = _per_step(votes.step[votes.statement > 0], size)
    matched, kinds = _matched_families(rows, stands, size), max(len(rows.families), 1)
    families = _per_step(matched // kinds, size)
    agreeing = _agreeing(votes, size)
    status = np.full(size, Status.PARTIAL, np.uint8)
    status[(matches >= trust.threshold) & (families >= trust.families)] = Status.COVERED
    status[matches == 0] = Status.OPEN
    status[mismatches > 0] = Status.DISPUTED
    status[(agreeing >= trust.threshold) & (matches == 0)] = Status.MISMATCH
    for step, part in parts.items():
        status[step] = _with_part(Status(int(status[step])), part, int(matches[step]))
        against = votes.key[(votes.step == step) & (votes.statement > 0)].tolist() if part.accusing else ()
        mismatches[step] += len(part.accusing.difference(against))
    return Coverage(
        rows=rows,
        size=size,
        threshold=trust.threshold,
        families_needed=trust.families,
        status=status,
        matches=matches,
        mismatches=mismatches,
        families=families,
        counts=counts,
        stands=stands,
        reasons=reasons,
        votes=votes,
        by_family=dict(zip(rows.families, np.bincount(matched % kinds, minlength=kinds).tolist(), strict=False)),
        part_rows=part_rows,
        part_counts=part_counts,
        parts=parts,
    )


def _with_part(status: Status, part: StepParts, matches: int) -> Status:
    """The status of a step of which audits of some micro-batches speak too: it gets worse, or not open any more."""
    if part.agreed and not matches:
        return Status.MISMATCH
    if part.accusing:
        return min(status, Status.DISPUTED)
    return Status.PARTIAL if status is Status.OPEN and any(span.keys for span in part.spans) else status


def ranges(flags: Flags) -> list[tuple[int, int]]:
    """Where `flags` (n,) is true, as half-open ranges, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(first, stop) for first, stop in edges.reshape(-1, 2).tolist()]


def _counting(rows: Rows, trust: Voters) -> tuple[Flags, dict[tuple[int, int], str]]:
    """Whether each row counts; a policy is asked once for each key and kind of automation that there are."""
    kinds = len(AUTOMATION)
    combined = rows.key.astype(np.int64) * kinds + rows.automation
    table = np.zeros(len(rows.keys) * kinds, np.bool_)
    reasons = {}
    for code in np.flatnonzero(np.bincount(combined, minlength=len(table))).tolist():
        key, automation = divmod(code, kinds)
        reason = trust.why_not(rows.keys[key], AUTOMATION[automation])
        table[code] = not reason
        if reason:
            reasons[key, automation] = reason
    return table[combined], reasons


def _votes(rows: Rows, used: Flags) -> tuple[Votes, Flags]:
    """What each key says of each step, from the rows in `used`, and which rows say the same as their key does now."""
    index = np.flatnonzero(used)
    keys = max(len(rows.keys), 1)
    pair = rows.step[index] * keys + rows.key[index]
    order = np.argsort(pair)
    index, pair = index[order], pair[order]
    begins = np.flatnonzero(np.concatenate(([True], pair[1:] != pair[:-1]))) if len(pair) else np.zeros(0, np.int64)
    # 0 for MATCH, so that among attestations of the same second a MISMATCH wins
    said = np.where(rows.verdict[index] == _MISMATCH, rows.outcome[index].astype(np.int64) + 1, 0)
    finished = rows.finished[index]
    group = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(pair))))
    if len(begins) == len(pair):
        statement, torn = said, np.zeros(len(pair), np.bool_)
    else:
        last = finished == np.maximum.reduceat(finished, begins)[group]
        statement = np.maximum.reduceat(np.where(last, said, -1), begins)
        torn = np.maximum.reduceat(said, begins) != np.minimum.reduceat(said, begins)
    stands = np.zeros(len(rows.step), np.bool_)
    stands[index] = said == statement[group]
    return Votes(pair[begins] // keys, pair[begins] % keys, statement, torn), stands


def _per_step(steps: Array, size: int) -> NDArray[np.int32]:
    return np.bincount(steps, minlength=size).astype(np.int32)


def _matched_families(rows: Rows, stands: Flags, size: int) -> Array:
    """Each (step, family) with a MATCH that stands, once, as step * families + family, ascending.

    Of a key that repeated a result on other hardware each family is there, or doing more would count for less.
    """
    kinds = max(len(rows.families), 1)
    chosen = stands & (rows.verdict == _MATCH)
    pairs = rows.step[chosen] * kinds + rows.family[chosen]
    if size * kinds > MAX_FLAGS:
        return np.unique(pairs)
    flags = np.zeros(size * kinds, np.bool_)  # a table of all pairs is faster than sorting those that there are
    flags[pairs] = True
    return np.flatnonzero(flags)


def _agreeing(votes: Votes, size: int) -> Array:
    """For each step how many keys say MISMATCH with the same result, at most; (size,) i64."""
    against = votes.statement > 0
    most = np.zeros(size, np.int64)
    if against.any():
        width = int(votes.statement.max()) + 1
        found, counts = np.unique(votes.step[against] * width + votes.statement[against], return_counts=True)
        np.maximum.at(most, found // width, counts)
    return most


def share(part: int, whole: int) -> str:
    """`part` of `whole` in per cent, two digits, cut off: 100 % and 0 % are said only where they are exact."""
    if not whole or part == 0 or part == whole:
        return "100 %" if whole and part == whole else "0 %"
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d} %" if hundredths else "below 0.01 %"


def span(first: int, stop: int) -> str:
    """A half-open range of steps in words: `step 7`, `steps 7 to 9`."""
    return f"step {first:,}" if stop == first + 1 else f"steps {first:,} to {stop - 1:,}"
