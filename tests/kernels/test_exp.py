"""cuda/exp.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

from auditkit.kernels import exp as kernel
from auditkit.numerics import exp as reference
from tests.kernels.elementwise_checks import check_elementary, check_sweep


def test_words(device: Any) -> None:
    check_elementary(device, "exp", kernel.exp, reference.exp)


def test_vectors(device: Any) -> None:
    check_sweep(device, "exp", kernel.exp)
