"""Coverage pages for the tests: small runs with every status, and texts that try to break out of the page."""

from __future__ import annotations

import functools

import numpy as np

from auditkit.trust.coverage import Coverage, cover
from auditkit.trust.page_parts import About
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.trust.voters import Anyone

HOSTILE = (
    "</script><script>window.broken=1</script>",
    "<img src=x onerror='window.broken=1'>",
    "\"'><svg onload=window.broken=1>",
    "a\u2028window.broken=1\u2029b",
    "]]><!--",
    "@@DATA@@ &amp; &#60;",
    "\u202egnorw\x00\x1b[31m",
    "javascript:window.broken=1",
)
KEYS = tuple(f"{n:08x}" + "5" * 56 for n in range(len(HOSTILE) + 2))


def about(**changes: object) -> About:
    """What a page says besides the coverage, with hostile texts wherever a text goes."""
    names = dict(zip(KEYS, HOSTILE, strict=False))
    given = {
        "run": HOSTILE[0],
        "run_id": "1" * 64,
        "manifest": "2" * 64,
        "policy": HOSTILE[1],
        "made": "2026-01-02T03:04:05Z",
        "program": HOSTILE[2],
        "signed_log": HOSTILE[3],
        "not_checked": HOSTILE[4:6],
        "warnings": HOSTILE[6:],
        "names": names,
        "refused": tuple((reason, n + 1) for n, reason in enumerate(HOSTILE)),
    }
    return About(**{**given, **changes})  # type: ignore[arg-type]


@functools.cache
def every_status(size: int, *, threshold: int = 2) -> Coverage:
    """Steps 0 to 4 covered, partial, disputed, mismatch and not verifiable, then covered to the middle, then open."""
    entries = [
        Entry(step, key, Verdict.MATCH, "cpu-x86_64", 1_700_000_000 + step) for step in (0, 2) for key in KEYS[:2]
    ]
    entries.append(Entry(1, KEYS[2], Verdict.MATCH, HOSTILE[0], 1_700_000_000))
    entries.append(Entry(2, KEYS[3], Verdict.MISMATCH, "cuda-sm_90", 1_700_000_001, outcome=HOSTILE[3]))
    entries += [Entry(3, k, Verdict.MISMATCH, "cuda-sm_90", 1_700_000_002, outcome=HOSTILE[0]) for k in KEYS[4:7]]
    entries.append(Entry(3, KEYS[4], Verdict.MATCH, "cuda-sm_90", 1_600_000_000))  # taken back since
    entries.append(Entry(4, KEYS[7], Verdict.UNAVAILABLE, "cuda-sm_90", 1_700_000_003))
    entries.append(Entry(4, KEYS[8], Verdict.MATCH, "cpu-arm64", 1_700_000_003, automation="nightly"))
    entries += [
        Entry(step, key, Verdict.MATCH, "cpu-x86_64", 1_700_000_004) for step in range(5, size // 2) for key in KEYS[:2]
    ]
    return cover(Rows.of(entries), Anyone(threshold), size)


@functools.cache
def many(count: int, size: int, keys: int, *, seed: int = 3) -> Coverage:
    """Random attestations of `keys` auditors, some of them mismatches."""
    rng = np.random.default_rng(seed)
    verdict = np.where(rng.random(count) < 0.001, Verdict.MISMATCH.code, Verdict.MATCH.code).astype(np.uint8)
    rows = Rows(
        step=rng.integers(0, size, count),
        key=rng.integers(0, keys, count).astype(np.int32),
        verdict=verdict,
        family=rng.integers(0, 3, count).astype(np.int32),
        automation=rng.integers(0, 2, count).astype(np.uint8),
        outcome=np.where(verdict == Verdict.MISMATCH.code, 0, -1).astype(np.int32),
        finished=rng.integers(1_700_000_000, 1_710_000_000, count),
        keys=tuple(f"{n:064x}" for n in range(keys)),
        families=("cpu-arm64", "cpu-x86_64", "cuda-sm_90"),
        outcomes=("state 00",),
        part=np.full(count, -1, np.int32),
        parts=(),
    )
    return cover(rows, Anyone(2), size)
