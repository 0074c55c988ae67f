"""cuda/sin.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

from auditkit.kernels import sin as kernel
from auditkit.numerics import sin as reference
from tests.kernels.elementwise_checks import check_elementary, check_sweep


def test_words(device: Any) -> None:
    check_elementary(device, "sin", kernel.sin, reference.sin)


def test_vectors(device: Any) -> None:
    check_sweep(device, "sin", kernel.sin)
