"""Verified attestations of one run as columns: a million take some 35 MB, and coverage is arithmetic on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from auditkit.verdict import Verdict

AUTOMATION = ("", "ci", "nightly")  # the column holds the index
NO_RESULT = "no result"  # the outcome of a MISMATCH whose step ends without one


def part_outcome(micro_batches: str, leaves: str, gradient: str) -> str:
    """The outcome of a MISMATCH of some micro-batches: which, root of their leaves, gradient root if it is known."""
    said = f"leaves {leaves}" + (f" gradient {gradient}" if gradient else "") if leaves else NO_RESULT
    return f"micro-batches {micro_batches}: {said}"


def outcome_words(outcome: str) -> list[str]:
    """A result in words, an item for each digest."""
    names, digests = ("state", "gradient", "micro-batches"), outcome.split(" ")
    if outcome == NO_RESULT or len(digests) != len(names):
        return [outcome]
    return [f"{name} {digest}" for name, digest in zip(names, digests, strict=True)]


class Entry(NamedTuple):
    """One attestation as texts and numbers; `outcome` is what was computed, of a MISMATCH only."""

    step: int
    keyid: str
    verdict: Verdict
    family: str
    finished: int  # seconds since 1970
    automation: str = ""
    outcome: str = ""
    part: str = ""  # of an audit of some micro-batches: which, and of how many, "0-3,7/16"


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of one length, and the sorted texts that `key`, `family`, `outcome` and `part` are indices of.

    `verdict` holds verdict codes, `automation` indices of AUTOMATION, `finished` seconds since 1970 as signed.
    `outcome` is -1 unless the verdict is MISMATCH; equal outcomes are equal results, in every digest.
    `part` is -1 for an audit of a whole step.
    """

    step: NDArray[np.int64]
    key: NDArray[np.int32]
    verdict: NDArray[np.uint8]
    family: NDArray[np.int32]
    automation: NDArray[np.uint8]
    outcome: NDArray[np.int32]
    finished: NDArray[np.int64]
    part: NDArray[np.int32]
    keys: tuple[str, ...]
    families: tuple[str, ...]
    outcomes: tuple[str, ...]
    parts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def decided(self) -> NDArray[np.bool_]:
        """Which rows are a MATCH or a MISMATCH, (rows,)."""
        return np.isin(self.verdict, (Verdict.MATCH.code, Verdict.MISMATCH.code))

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """The rows of some attestations, in their order."""
        found = list(entries)
        keys, key = _indexed([e.keyid for e in found])
        families, family = _indexed([e.family for e in found])
        outcomes, outcome = _indexed([e.outcome if e.verdict is Verdict.MISMATCH else "" for e in found], absent="")
        parts, part = _indexed([e.part for e in found], absent="")
        return cls(
            step=np.array([e.step for e in found], np.int64),
            key=key.astype(np.int32),
            verdict=np.array([e.verdict.code for e in found], np.uint8),
            family=family.astype(np.int32),
            automation=np.array([AUTOMATION.index(e.automation) for e in found], np.uint8),
            outcome=outcome.astype(np.int32),
            finished=np.array([e.finished for e in found], np.int64),
            part=part.astype(np.int32),
            keys=keys,
            families=families,
            outcomes=outcomes,
            parts=parts,
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All rows of several parts, one part after the other; the texts are those of any part, sorted."""
        keys, families, outcomes, texts = (
            tuple(sorted({text for part in parts for text in getattr(part, name)}))
            for name in ("keys", "families", "outcomes", "parts")
        )

        def column(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts]) if parts else np.zeros(0, np.int64)

        def renamed(name: str, own: str, texts: tuple[str, ...]) -> Any:
            place = {text: index for index, text in enumerate(texts)}
            found = [np.array([place[t] for t in getattr(p, own)] + [-1])[getattr(p, name)] for p in parts]
            return np.concatenate(found) if found else np.zeros(0, np.int64)

        return cls(
            step=column("step").astype(np.int64),
            key=renamed("key", "keys", keys).astype(np.int32),
            verdict=column("verdict").astype(np.uint8),
            family=renamed("family", "families", families).astype(np.int32),
            automation=column("automation").astype(np.uint8),
            outcome=renamed("outcome", "outcomes", outcomes).astype(np.int32),
            finished=column("finished").astype(np.int64),
            part=renamed("part", "parts", texts).astype(np.int32),
            keys=keys,
            families=families,
            outcomes=outcomes,
            parts=texts,
        )

    def take(self, chosen: NDArray[Any]) -> Self:
        """The rows at some indices or under a mask, with all texts."""
        return type(self)(
            self.step[chosen],
            self.key[chosen],
            self.verdict[chosen],
            self.family[chosen],
            self.automation[chosen],
            self.outcome[chosen],
            self.finished[chosen],
            self.part[chosen],
            self.keys,
            self.families,
            self.outcomes,
            self.parts,
        )

    def compact(self) -> Self:
        """The same rows, without texts that no row refers to."""
        (key, keys), (family, families), (outcome, outcomes), (part, parts) = (
            _used(getattr(self, name), getattr(self, own))
            for name, own in (("key", "keys"), ("family", "families"), ("outcome", "outcomes"), ("part", "parts"))
        )
        columns = (self.step, key, self.verdict, family, self.automation, outcome, self.finished, part)
        return type(self)(*columns, keys, families, outcomes, parts)


def _used(index: NDArray[np.int32], texts: tuple[str, ...]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    used = np.bincount(index[index >= 0], minlength=len(texts)) > 0
    place = np.append(np.cumsum(used) - 1, -1).astype(np.int32)  # the last for index -1
    return place[index], tuple(text for text, wanted in zip(texts, used.tolist(), strict=True) if wanted)


def _indexed(texts: list[str], absent: str | None = None) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different texts, sorted, and the index of each; -1 for `absent`."""
    table = tuple(sorted(set(texts) - ({absent} if absent is not None else set())))
    place = {text: index for index, text in enumerate(table)}
    return table, np.array([place.get(text, -1) for text in texts], np.int64)
