"""What the coverage page carries of a run: statuses as runs, attestations as columns of fixed width, all in base64.

A million attestations take 5 bytes each (key 2, kind 1, time 2), and each step 1 or 2 for its place: 7 MB of base64.
What does not fit is left out by its rank within its step, mismatches last, and `cut` says so.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.trust.coverage import Coverage, Status
from auditkit.trust.rows import AUTOMATION, outcome_words
from auditkit.verdict import Verdict

Array = NDArray[Any]

MAX_ATTESTATIONS = 1_200_000  # listed one by one
MAX_KEYS = 20_000  # with key id and name; the busiest
MAX_FAMILIES = 100  # the commonest
MAX_OUTCOMES = 5_000  # attestations whose computed digests are shown
_UNITS = ((1, "to the second"), (60, "to the minute"), (3600, "to the hour"), (86400, "to the day"))

MEANINGS = {
    Status.MISMATCH: "as many auditors as the policy asks for computed one and the same other result, and none a match",
    Status.DISPUTED: "an auditor computed another result, and either others do not agree with it or they are too few",
    Status.OPEN: "no auditor who counts says that the step matched",
    Status.PARTIAL: "matched, by fewer auditors or kinds of hardware than the policy asks for, or in part only",
    Status.COVERED: "matched, by as many auditors and kinds of hardware as the policy asks for",
}


@dataclass(frozen=True)
class PageData:
    """The object that the page's script reads, and how many attestations and keys it had to leave out."""

    value: dict[str, Any]
    attestations_left_out: int
    keys_left_out: int


def page_data(coverage: Coverage, names: Mapping[str, str]) -> PageData:
    """The data of a page; `names` are the auditors' names by key id."""
    rows = coverage.rows
    order = _listed(coverage)
    chosen = rows.take(order)
    counts = np.bincount(chosen.step, minlength=1)
    steps = np.flatnonzero(counts)
    key, keys = _keys(coverage, chosen.key, names)
    kind, kinds = _kinds(coverage, order)
    base, unit, word = _clock(chosen.finished)
    outcomes = np.flatnonzero(chosen.outcome >= 0)[:MAX_OUTCOMES]
    width = 2 if len(keys) < 1 << 16 else 4
    left_out = len(rows) - len(order)
    value = {
        "size": coverage.size,
        "statuses": [status.name.lower() for status in Status],
        "meanings": [MEANINGS[status].capitalize() + "." for status in Status],
        "runs": _base64(varints(_runs(coverage.status))),
        "steps": _base64(varints(np.stack((np.diff(steps, prepend=0), counts[steps]), axis=1).reshape(-1))),
        "key": _base64(key.astype(f"<u{width}").tobytes()),
        "key_width": width,
        "kind": _base64(kind.astype("<u2" if len(kinds) > 256 else "u1").tobytes()),
        "kind_width": 2 if len(kinds) > 256 else 1,
        "time": _base64(((chosen.finished - base) // unit).astype("<u2").tobytes()),
        "time_base": base,
        "time_unit": unit,
        "time_word": f"UTC, {word}",
        "keys": keys,
        "kinds": kinds,
        "outcomes": [", ".join(outcome_words(text)) for text in rows.outcomes] if len(outcomes) else [],
        "outcome_of": dict(zip(map(str, outcomes.tolist()), chosen.outcome[outcomes].tolist(), strict=True)),
        "cut": left_out > 0,
    }
    return PageData(value, left_out, max(len(rows.keys) - MAX_KEYS, 0))


def varints(values: Array) -> bytes:
    """Non-negative integers, 7 bits a byte, low bits first, the high bit set where more follow (LEB128)."""
    left = values.astype(np.uint64)
    groups = np.zeros((len(left), 10), np.uint8)
    sizes = np.ones(len(left), np.int64)
    for at in range(10):
        groups[:, at] = (left & np.uint64(127)).astype(np.uint8)
        left = left >> np.uint64(7)
        more = left > 0
        if not more.any():
            break
        groups[more, at] |= 128
        sizes[more] = at + 2
    return groups[np.arange(10) < sizes[:, None]].tobytes()


def _clock(finished: Array) -> tuple[int, int, str]:
    """Where the times begin, the seconds of one unit, so that each fits in 16 bits, and in words how exact that is."""
    first, last = (int(finished.min()), int(finished.max())) if len(finished) else (0, 0)
    for unit, word in _UNITS:
        base = first // unit * unit
        if (last - base) // unit < 1 << 16:
            return base, unit, word
    return first, (last - first) // 65_535 + 1, "roughly"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _runs(status: NDArray[np.uint8]) -> Array:
    """Runs of equal status, each as 8 * length + status."""
    if not len(status):
        return np.zeros(0, np.int64)
    begins = np.flatnonzero(np.concatenate(([True], status[1:] != status[:-1])))
    return np.diff(np.append(begins, len(status))) * 8 + status[begins]


def _listed(coverage: Coverage) -> Array:
    """The indices of the rows to list, by step; within a step mismatches first, then what stands, then the rest."""
    rows = coverage.rows
    mismatch = rows.verdict == Verdict.MISMATCH.code
    rank = np.where(mismatch & coverage.counts, 0, np.where(coverage.stands, 1, np.where(coverage.counts, 2, 3)))
    order = np.argsort(rows.step * 4 + rank, kind="stable")
    if len(order) <= MAX_ATTESTATIONS:
        return order
    step = rows.step[order]
    begins = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    place = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    fitting = np.cumsum(np.bincount(place)) <= MAX_ATTESTATIONS
    deepest = int(np.count_nonzero(fitting))
    urgent = np.zeros(len(order), np.bool_)
    urgent[np.flatnonzero(mismatch[order] & (place >= deepest))[:MAX_OUTCOMES]] = True
    kept: Array = order[(place < deepest) | urgent]
    return kept


def _keys(coverage: Coverage, key: Array, names: Mapping[str, str]) -> tuple[Array, list[list[str]]]:
    """The key of each row as an index of the keys listed (one past the end: not listed), and those keys."""
    rows = coverage.rows
    busiest = np.argsort(-np.bincount(key, minlength=len(rows.keys)), kind="stable")[:MAX_KEYS]
    place = np.full(max(len(rows.keys), 1), len(busiest), np.int64)
    place[busiest] = np.arange(len(busiest))
    listed = [[rows.keys[k], names.get(rows.keys[k], ""), coverage.why_not(k)] for k in busiest.tolist()]
    return place[key], listed


def _kinds(coverage: Coverage, order: Array) -> tuple[Array, list[list[str]]]:
    """What else is told of each row, as an index of the combinations that occur: verdict, family, automation, note."""
    rows = coverage.rows
    commonest = np.argsort(-np.bincount(rows.family, minlength=len(rows.families)), kind="stable")[:MAX_FAMILIES]
    family_of = np.full(max(len(rows.families), 1), MAX_FAMILIES, np.int64)
    family_of[commonest] = np.arange(len(commonest))
    families = [rows.families[f] for f in commonest.tolist()]
    note = np.where(~coverage.counts, 1, np.where(rows.decided & ~coverage.stands, 2, 0))
    code = (
        (rows.verdict.astype(np.int64) * 3 + rows.automation) * (MAX_FAMILIES + 1) + family_of[rows.family]
    ) * 3 + note
    code = code[order]
    found = np.flatnonzero(np.bincount(code, minlength=1))
    place = np.zeros(int(found[-1]) + 1 if len(found) else 1, np.int64)
    place[found] = np.arange(len(found))
    notes = ("", "does not count", "replaced by what the same key says now")
    kinds = []
    for combined in found.tolist():
        rest, n = divmod(combined, 3)
        rest, f = divmod(rest, MAX_FAMILIES + 1)
        verdict, automation = divmod(rest, 3)
        family = families[f] if f < len(families) else "other hardware"
        kinds.append([Verdict(verdict).name, family, AUTOMATION[automation], notes[n]])
    return place[code], kinds
