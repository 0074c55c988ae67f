"""The wide answers of a card's self-test take an emulated device seconds: tests of something else do without them.

tests/kernels/test_wide_check.py asks for them, and a real card always gives them.
"""

from __future__ import annotations

from types import ModuleType

from auditkit.kernels import wide_check
from auditkit.kernels.backend import CudaOps

_check = wide_check.check


def _check_cards(ops: CudaOps) -> None:
    device = ops.device
    is_card = isinstance(getattr(device, "cupy", None), ModuleType)
    if is_card or getattr(device, "asked_for_wide_answers", False):
        _check(ops)


def pytest_configure() -> None:
    """Take the place of the check in this process."""
    wide_check.check = _check_cards
