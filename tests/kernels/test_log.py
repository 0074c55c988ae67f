"""cuda/log.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

from auditkit.kernels import log as kernel
from auditkit.numerics import log as reference
from tests.kernels.elementwise_checks import check_elementary, check_sweep


def test_words(device: Any) -> None:
    check_elementary(device, "log", kernel.log, reference.log)


def test_vectors(device: Any) -> None:
    check_sweep(device, "log", kernel.log)
