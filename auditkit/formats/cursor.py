"""The data cursor: how many sequences of its data a run has consumed, a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where some steps begin in their data: before step `step`, `sequence` sequences of these data were consumed."""

    step: int = 0
    sequence: int = 0

    def at(self, step: int, sequences: int) -> int:
        """The sequences consumed before step `step`, if each step takes `sequences` of them."""
        return self.sequence + (step - self.step) * sequences


START = Cursor()  # a run begins with step 0 and sequence 0
