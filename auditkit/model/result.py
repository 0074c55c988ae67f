"""What a step leaves besides the next state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf


@dataclass(frozen=True)
class StepResult:
    """What the step's record says besides the states: loss, norm and learning rate in binary32, digests.

    work      the proof of work over the same gradients under the caller's key, "" without one; no record holds it
    skipped   "" for a step with an update; else formats.skips.NORM or NO_RESULT: the tensors are those from before
    why       the reason in words, which may differ between back ends
    """

    loss: np.float32
    norm: np.float32
    lr: np.float32
    gradient: Digest
    leaves: tuple[MicroBatchLeaf, ...]
    work: Digest = ""
    skipped: str = ""
    why: str = field(default="", compare=False)
