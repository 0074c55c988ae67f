"""Steps that the recipe skips, as the training loop sees them: each is told, and too many on end stop the run.

The limit is the user's and decides no bit: what was skipped up to then is in the records like any other step.
"""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.cli import console
from auditkit.errors import UsageError
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.formats.skips import skip_of
from auditkit.model.step import StepResult

MOST = 10  # skipped steps on end that a run takes by default


class Skips:
    """Counts the skipped steps on end, on every rank alike."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._count = 0

    def recall(self, recipe: Recipe, rows: Sequence[RecordRow]) -> None:
        """Count the skipped steps at the end of the rows of the steps done, as if this process had taken them."""
        self._count = 0
        for row in reversed(rows):
            if not skip_of(recipe, row.gradient, row.norm):
                break
            self._count += 1

    def look(self, step: int, result: StepResult, *, tells: bool) -> UsageError | None:
        """Count a step, and tell if it was skipped; the error that ends the run where it is one too many."""
        if not result.skipped:
            self._count = 0
            return None
        self._count += 1
        if tells:
            console.tell(f"step {step} is skipped: {result.why}")
        if self._count < self._most:
            return None
        return UsageError(
            f"{self._count} steps on end were skipped, the last of them step {step}: {result.why}",
            hint="the last complete state is kept: lower schedule.peak_lr there (python -m trainer change),"
            " or resume with a larger --max-skips",
        )
