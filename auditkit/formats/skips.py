"""Skipped steps: how records tell them (docs/formats.md, "Skipped steps").

A step that is skipped by its norm has a record like any other, but no learning rate. One without a finite result has
declared values only, in leaves and record: where the arithmetic ended, and with what, may differ between programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from auditkit.formats.bits import f32_from_bits
from auditkit.formats.digest import ZERO_DIGEST, Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe

NORM, NO_RESULT = "norm", "no result"

NO_GRADIENT: Digest = ZERO_DIGEST
NO_RESULT_LEAF = MicroBatchLeaf(0, ZERO_DIGEST)


class Row(Protocol):
    """A row of records, full or compact."""

    @property
    def gradient(self) -> Digest: ...
    @property
    def norm(self) -> int: ...


def skip_of(recipe: Recipe, gradient: Digest, norm: int) -> str:
    """NORM or NO_RESULT if a record with this gradient root and norm (binary32 pattern) is that of a skipped step.

    "" for every other one, and wherever the recipe skips no step.
    """
    if not recipe.divergence.skips:
        return ""
    if gradient == NO_GRADIENT:
        return NO_RESULT
    bound = recipe.divergence.max_norm
    return NORM if 0 < bound < f32_from_bits(norm) else ""


def rates(recipe: Recipe, rows: Sequence[Row], scheduled: Sequence[int]) -> list[int]:
    """The recorded learning rates (binary32 patterns) of rows, given those of the schedule."""
    pairs = zip(rows, scheduled, strict=True)
    return [0 if skip_of(recipe, row.gradient, row.norm) else rate for row, rate in pairs]
