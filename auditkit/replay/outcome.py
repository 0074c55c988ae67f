"""What one replay of one step gave, and where it differs from the published record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from auditkit.formats.bits import f32_from_bits
from auditkit.formats.cursor import START, Cursor
from auditkit.formats.leaves import MicroBatchLeaf, micro_root
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import StepRecord
from auditkit.formats.skips import NO_RESULT
from auditkit.formats.step_audit import Digests
from auditkit.model.state import State, StateDigests, state_digests
from auditkit.model.step import NonFinite, StepResult
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.compare import ulp_distance
from auditkit.replay.report import FieldDifference


@dataclass(frozen=True)
class Fingerprint:
    """What two replays of one step must have in common, without their arrays: root, values, work, or how they ended.

    place: the ops that computed and where they ended, of a replay without a result; None for one that may end elsewhere
    the next time. Other ops look for values that are not finite in other places, so that only the same ones must name
    the same place.
    """

    root: str
    values: tuple[object, ...]
    said: str = field(compare=False)
    place: tuple[str, str] | None = field(default=None, compare=False)

    def agrees(self, other: Fingerprint) -> bool:
        """Whether both can be replays of one step by machines without a fault."""
        if self.place is None or other.place is None or self.place[0] != other.place[0]:
            return self == other
        return self == other and self.place == other.place

    def describe(self) -> str:
        """The digests that stand for a replay in messages, or the reason why it has none."""
        return self.said


@dataclass(frozen=True)
class Computed:
    """A replayed step: the state after it, the digests of its tensors and its root, and the values of the record."""

    state: State
    digests: StateDigests
    root: str
    result: StepResult

    @property
    def fingerprint(self) -> Fingerprint:
        """Every tensor, by its digest, every value of the record, and the work."""
        work = f", work {self.result.work}" if self.result.work else ""
        return Fingerprint(self.root, _values(self), f"state {self.root}, gradient {self.result.gradient}{work}")

    @property
    def obtained(self) -> Digests:
        """The digests that the step's record claims, as they came out here."""
        return Digests(self.root, self.result.gradient, micro_root(self.result.leaves))


@dataclass(frozen=True)
class Stopped:
    """A replay that met a value outside the arithmetic, so that the step has no result.

    ops: their name; "" for a replay that may end in another place the next time.
    """

    error: NonFinite
    ops: str

    @property
    def fingerprint(self) -> Fingerprint:
        """That it has no result, and the place where it stopped."""
        place = (self.ops, self.error.message) if self.ops else None
        return Fingerprint("", (NO_RESULT,), self.error.message, place)


@dataclass(frozen=True)
class Broken:
    """A replay that ended in an error that no data cause: a flipped index or size, or a fault of this program.

    A second replay tells them apart.
    """

    error: Exception

    @property
    def fingerprint(self) -> Fingerprint:
        """The error."""
        said = f"{type(self.error).__name__}: {self.error}"
        return Fingerprint("", (said,), said)


Outcome = Computed | Stopped | Broken


def replay(
    backend: Backend,
    state: State,
    tokens: IntArray,
    recipe: Recipe,
    on_micro_batch: Callable[[int], None] | None = None,
    *,
    work_key: bytes | None = None,
    cursor: Cursor = START,
) -> Outcome:
    """Replay one step; a value that is not finite is an outcome of its own, which a second replay must repeat.

    work_key: 32 bytes, for the result's proof of work; cursor: where the steps under this recipe begin in their data.
    """
    try:
        new, result = backend.step(state, tokens, recipe, on_micro_batch=on_micro_batch, work_key=work_key)
        digests = state_digests(new, recipe, backend.ops, cursor=cursor)
        return Computed(new, digests, digests.root(new.step), result)
    except NonFinite as error:
        return Stopped(error, backend.ops.name if backend.repeats(recipe) else "")
    except (ArithmeticError, LookupError, ValueError) as error:
        return Broken(error)


def differences(
    record: StepRecord, leaves: Sequence[MicroBatchLeaf], computed: Computed
) -> tuple[FieldDifference, ...]:
    """Every field of a record that came out differently, in the order in which a step computes them.

    `leaves` are the published micro-batch leaves, or none where they cannot be had; only the first differing one is
    named.
    """
    result = computed.result
    found = [*_leaf_differences(leaves, result.leaves)]
    pairs = (
        ("micro_batches.root", record.micro_root, micro_root(result.leaves)),
        ("loss", *_scalars(record.loss, result.loss)),
        ("gradient", record.gradient, result.gradient),
        ("norm", *_scalars(record.norm, result.norm)),
        ("lr", *_scalars(record.lr, result.lr)),
        ("state_after", record.state_after, computed.root),
    )
    found += [FieldDifference(name, published, own) for name, published, own in pairs if published != own]
    return tuple(found)


def _leaf_differences(
    published: Sequence[MicroBatchLeaf], computed: Sequence[MicroBatchLeaf]
) -> tuple[FieldDifference, ...]:
    for i, (theirs, ours) in enumerate(zip(published, computed, strict=False)):  # none, or as many
        pairs = (
            ("loss_sum", str(theirs.loss_sum), str(ours.loss_sum)),
            ("gradient", theirs.gradient, ours.gradient),
        )
        found = [FieldDifference(f"micro_batches[{i}].{name}", a, b) for name, a, b in pairs if a != b]
        if found:
            return tuple(found)
    return ()


def scalar_difference(name: str, published: int, computed: np.float32) -> tuple[FieldDifference, ...]:
    """The difference of a number of the record by its bits; none where they are equal."""
    theirs, ours = _scalars(published, computed)
    return () if theirs == ours else (FieldDifference(name, theirs, ours),)


def _scalars(published: int, computed: np.float32) -> tuple[str, str]:
    """A published bit pattern and a computed number as texts that are equal where the bits are."""
    bits = int(np.float32(computed).view(np.uint32))  # a computed value need not be finite, so no parser of ours
    if bits == published:
        return f"f32:{bits:08x}", f"f32:{bits:08x}"
    theirs, ours = f32_from_bits(published), float(computed)
    ulps = ulp_distance(theirs, ours)
    away = "no number" if ulps is None else f"{ulps} ulp away"
    return f"f32:{published:08x} ({theirs:.9g})", f"f32:{bits:08x} ({ours:.9g}, {away})"


def _values(computed: Computed) -> tuple[object, ...]:
    result = computed.result
    scalars = np.array([result.loss, result.norm, result.lr], dtype=np.float32).tobytes()
    return scalars, result.gradient, result.leaves, result.work, result.skipped
