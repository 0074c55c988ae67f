"""cuda/cos.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

from auditkit.kernels import cos as kernel
from auditkit.numerics import cos as reference
from tests.kernels.elementwise_checks import check_elementary, check_sweep


def test_words(device: Any) -> None:
    check_elementary(device, "cos", kernel.cos, reference.cos)


def test_vectors(device: Any) -> None:
    check_sweep(device, "cos", kernel.cos)
