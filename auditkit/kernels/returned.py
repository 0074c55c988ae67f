"""Arrays that were in main memory and came back to the device: whether they have the bits that left.

A bit may flip in main memory, or a cell of it be broken. So an array has its checksums taken before it leaves and
after it has come back, both on the device (checksum.py). Nobody waits for that: they are compared when the next result
is read from the device, before it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from auditkit.errors import MachineFault
from auditkit.kernels.gather import gathered

if TYPE_CHECKING:
    from auditkit.kernels.device import Array, Device

HINT = "this says nothing about the publisher: check the main memory of this machine, and try again"


@dataclass(frozen=True)
class _Pair:
    """Checksums of some arrays, (n, 8) uint32 each, from before and after."""

    what: str
    before: Array
    after: Array


class Returned:
    """Checksums that are still to be compared."""

    def __init__(self) -> None:
        self._pairs: list[_Pair] = []

    def add(self, what: str, before: Array, after: Array) -> None:
        """Compare these at the next `check`: what `checksums` makes, (n, 8) uint32."""
        self._pairs.append(_Pair(what, before, after))

    def clear(self) -> None:
        """Compare nothing: an error has ended what the arrays were for."""
        self._pairs.clear()

    def check(self, device: Device) -> None:
        """Wait for the device and compare. MachineFault: an array came back with other bits; says which one."""
        if not self._pairs:
            return
        pairs, self._pairs = self._pairs, []
        both = [pair.before for pair in pairs] + [pair.after for pair in pairs]
        before, after = np.split(device.download(gathered(device, both)), 2)
        wrong = np.flatnonzero((before != after).any(axis=1))
        if wrong.size:
            ends = np.cumsum([pair.before.shape[0] for pair in pairs])
            at = int(np.searchsorted(ends, wrong[0], side="right"))
            number = int(wrong[0] - ends[at] + pairs[at].before.shape[0])
            raise MachineFault(f"array {number} of {pairs[at].what} changed in main memory", hint=HINT)
