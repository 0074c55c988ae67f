"""How a published state differs from a computed one: which tensors and elements, by what bits, and in what pattern.

Everything is by words. Distances are integers: the words in numeric order, so that 1 ulp at a change of exponent, among
subnormal numbers and across zero is one step; a NaN has no distance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.formats.tensors import tensor_digest
from auditkit.model.state import State
from auditkit.numerics.arrays import F32
from auditkit.replay.compare import Array, TensorDifference, compare_tensors, words
from auditkit.replay.published import StoredState

MOST_LISTED = 200  # tensors told in full


@dataclass(frozen=True)
class TensorPattern:
    """One tensor that differs: the first element and the counts of `difference`, and what all its differences share."""

    difference: TensorDifference
    shapes: tuple[str, ...]  # "one element, [3]", "all in row 3", ..., "every element"
    bits: tuple[str, ...]  # "one bit, number 0", ...

    def to_dict(self) -> dict[str, object]:
        """The pattern as JSON values."""
        return {**self.difference.to_dict(), "where": list(self.shapes), "bits": list(self.bits)}

    def describe(self) -> str:
        """The pattern in words."""
        return "; ".join((*self.shapes, *self.bits))


@dataclass(frozen=True)
class StatePattern:
    """A published state beside the computed one: `same` tensors are equal, `tensors` are not; `words` sums it up."""

    step: int
    same: int
    tensors: tuple[TensorPattern, ...]
    left_out: int
    words: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The pattern as JSON values."""
        return {
            "state": self.step,
            "same": self.same,
            "different": len(self.tensors) + self.left_out,
            "words": list(self.words),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def state_pattern(published: StoredState, computed: State, before: State) -> StatePattern:
    """Every tensor of a published state that differs from the computed one. Raises Unavailable, BadArtifact.

    `before` is the state that the step began from: a tensor may have stayed as it was.
    """
    ours, old = by_key(computed), by_key(before)
    found: list[TensorPattern] = []
    different: list[tuple[str, str]] = []
    same = 0
    for entry in published.document.tensors:
        if tensor_digest(ours[entry.order]) == entry.digest:
            same += 1
            continue
        different.append(entry.order)
        if len(found) < MOST_LISTED:
            theirs = published.tensor(entry.order)
            pattern = tensor_pattern(entry.name, entry.role, theirs, ours[entry.order], old[entry.order])
            found += [pattern] if pattern else []
    said = _summary(different, found, same, sorted({name for _, name in ours}))
    return StatePattern(published.document.step, same, tuple(found), len(different) - len(found), said)


def tensor_pattern(name: str, role: str, theirs: Array, ours: Array, before: Array) -> TensorPattern | None:
    """How one published tensor differs from the computed one, None if it does not."""
    difference = compare_tensors(name, role, theirs, ours)
    if difference is None or not difference.elements:
        return TensorPattern(difference, (difference.note,), ()) if difference else None
    a, b, old = words(theirs), words(ours), words(before)
    where = np.argwhere(a != b)
    return TensorPattern(difference, tuple(_shapes(where, theirs.shape)), tuple(_bits(a, b, old)))


def _shapes(where: Array, shape: tuple[int, ...]) -> Sequence[str]:
    count, total = len(where), int(np.prod(shape))
    if count == 1:
        return [f"one element, {where[0].tolist()}"]
    if count == total:
        return ["every element"]
    said: list[str] = []
    if len(shape) == 2:
        for axis, word, other in ((0, "row", 1), (1, "column", 0)):
            hit = np.unique(where[:, axis])
            if len(hit) == 1:
                said.append(f"all in {word} {int(hit[0])}")
            elif len(hit) * shape[other] == count:
                said.append(f"all of {len(hit)} {word}s: {_some(hit.tolist())}")
    return said


def _some(numbers: Sequence[int], most: int = 8) -> str:
    return ", ".join(map(str, numbers[:most])) + (", .." if len(numbers) > most else "")


def _bits(a: Array, b: Array, old: Array) -> Sequence[str]:
    """What the words of all differing elements share; `a` published, `b` computed, `old` before the step."""
    mask = a != b
    flipped = np.unique(a[mask] ^ b[mask])
    said = []
    if len(flipped) == 1:
        bits = [bit for bit in range(a.dtype.itemsize * 8) if int(flipped[0]) >> bit & 1]
        said.append(f"bit {bits[0]} flipped in each" if len(bits) == 1 else f"bits {_some(bits)} flipped in each")
    if np.array_equal(a, old):
        said.append("as before the step: not updated")
    if not a.any():
        said.append("all zero")
    elif a.dtype.itemsize == 4:
        low = np.uint32(0xFFFF)
        if not (a & low).any() and (b & low).any():
            said.append("rounded to bfloat16: the low 16 bits of every word are zero")
        if _flushed(a, b):
            said.append("subnormal numbers are flushed to zero")
    return said


def _flushed(a: Array, b: Array) -> bool:
    """Whether the words differ only where the computed one is subnormal and the published one zero."""
    mask = a != b
    magnitude = b[mask] & np.uint32(0x7FFFFFFF)
    subnormal = bool(((magnitude > 0) & (magnitude < 0x00800000)).all())
    return subnormal and not (a[mask] & np.uint32(0x7FFFFFFF)).any()


_ROLES = {"param": "parameters", "adam_m": "first moments", "adam_v": "second moments"}


def _summary(
    different: Sequence[tuple[str, str]], found: Sequence[TensorPattern], same: int, names: Sequence[str]
) -> tuple[str, ...]:
    """What the differing tensors have in common."""
    if not different:
        return ("every tensor is as computed",)
    by_role = Counter(role for role, _ in different)
    said = [f"{len(different)} of {len(different) + same} tensors differ"]
    whole = [words for role, words in _ROLES.items() if by_role[role] == len(names)]
    none = [words for role, words in _ROLES.items() if not by_role[role]]
    if whole:
        said.append(f"all {' and all '.join(whole)}")
    if none:
        said.append(f"no {' and no '.join(none)}")
    touched = sorted({name for _, name in different})
    if len(touched) == 1:
        said.append(f"only those of {touched[0]}")
    ulps = [t.difference.max_ulps for t in found if t.difference.max_ulps is not None]
    if ulps:
        said.append(f"at most {max(ulps)} ulp apart")
    shared = set(found[0].bits).intersection(*(t.bits for t in found)) if found else set()
    return (*said, *sorted(shared))


def by_key(state: State) -> Mapping[tuple[str, str], F32]:
    """The arrays of a state by role and name."""
    return {(role, name): array for name, role, array in state.tensors()}
