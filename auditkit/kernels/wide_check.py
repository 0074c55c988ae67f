"""The second part of a card's self-test: kernels that only larger shapes choose give the known wide answers.

`auditkit.numerics.self_test` passes through the kernels of small shapes; a step of a large model runs others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from auditkit.kernels import checksum, exact_dot, exact_dot_choice, f32_dot
from auditkit.kernels.device import Array
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.kernels.f32_dot import F32DeviceRows
from auditkit.numerics import self_test, wide_answers
from auditkit.numerics.f32_dot import BITS
from auditkit.numerics.known_inputs import floats

if TYPE_CHECKING:
    from auditkit.kernels.backend import CudaOps

_RANGES = (1, 2, 3)  # of K: how many a product may be divided into, as exact sums


def check(ops: CudaOps) -> None:
    """Compare all wide answers; products are made by each kernel that this device may choose.

    Raises MachineFault that names what is wrong.
    """
    for name in (name for name in wide_answers.PROBES if name not in wide_answers.DOTS):
        self_test.check_wide_answer(name, ops, ops.place)
    for name, (bits, length) in wide_answers.DOTS.items():
        for kernel, ranges in _ways(ops.device.architecture, bits, length):
            by = kernel if ranges == 1 else f"{kernel}, {ranges} ranges of K"
            self_test.check_wide_answer(name, _With(ops, kernel, ranges), ops.place, by)
    _check_checksums(ops)


def _check_checksums(ops: CudaOps) -> None:
    """By which what comes back from main memory is known again: no result of a step."""
    values = [floats(78, 9001), floats(79, 3)]
    found = ops.host(checksum.checksums(ops.device, [ops.place(x) for x in values])).view("<u8").tolist()
    self_test.check_equal("checksums", found, [checksum.checksum_of(x).tolist() for x in values])


def _ways(architecture: str, bits: int, length: int) -> Iterator[tuple[str, int]]:
    """Kernels and ranges of K that rows of so many elements may be given to."""
    if bits == BITS:
        yield from ((kernel, 1) for kernel in f32_dot.CHOSEN)
        return
    for ranges in _RANGES:
        if ranges == 1 or length % (ranges * exact_dot_choice.STEP) == 0:
            for kernel in exact_dot_choice.kernels(architecture, bits, length // ranges):
                yield kernel, ranges


class _With:
    """The ops, with products made by one kernel."""

    def __init__(self, ops: CudaOps, kernel: str, ranges: int) -> None:
        self._ops, self._kernel, self._ranges = ops, kernel, ranges

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def dot(self, a: DeviceRows | F32DeviceRows, b: DeviceRows | F32DeviceRows) -> Array:
        """As the op."""
        device = self._ops.device
        if isinstance(a, F32DeviceRows) and isinstance(b, F32DeviceRows):
            return f32_dot.dot(device, a, b, kernel=self._kernel)
        assert isinstance(a, DeviceRows) and isinstance(b, DeviceRows)
        if a.batch > 1 < self._ranges:  # only a single product is divided
            return exact_dot.dot(device, a, b)
        return exact_dot.dot(device, a, b, kernel=self._kernel, ranges=self._ranges)
