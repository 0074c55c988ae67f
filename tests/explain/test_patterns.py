"""Patterns of differing tensors, and distances in ulp that no floating-point subtraction could tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.explain.patterns import tensor_pattern

OURS = np.arange(1, 25, dtype=np.float32).reshape(4, 6)


def changed(where: Any, word: int | None = None, flip: int = 1) -> np.ndarray:
    """OURS with other words at a place."""
    made = OURS.copy()
    view = made.view(np.uint32)
    view[where] = view[where] ^ flip if word is None else word
    return made


def said(theirs: np.ndarray, ours: np.ndarray = OURS, before: np.ndarray | None = None) -> list[str]:
    """What is said of a tensor."""
    found = tensor_pattern("w", "param", theirs, ours, ours - 1 if before is None else before)
    assert found is not None
    return [*found.shapes, *found.bits]


def test_equal_tensors_have_no_pattern() -> None:
    assert tensor_pattern("w", "param", OURS, OURS.copy(), OURS) is None


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (changed((2, 3), flip=1 << 7), ["one element, [2, 3]", "bit 7 flipped in each"]),
        (changed((2, slice(1, 4))), ["all in row 2", "bit 0 flipped in each"]),
        (changed((slice(0, 3), 5)), ["all in column 5", "bit 0 flipped in each"]),
        (changed([1, 3], flip=6), ["all of 2 rows: 1, 3", "bits 1, 2 flipped in each"]),
        (changed((slice(None), [0, 4])), ["all of 2 columns: 0, 4", "bit 0 flipped in each"]),
        (changed(...), ["every element", "bit 0 flipped in each"]),
        (-OURS, ["every element", "bit 31 flipped in each"]),
        (OURS - 1, ["every element", "as before the step: not updated"]),
        (np.zeros_like(OURS), ["every element", "all zero"]),
    ],
)
def test_patterns(theirs: np.ndarray, words: list[str]) -> None:
    assert said(theirs) == words


def test_rounded_and_flushed() -> None:
    ours = (OURS / 3).astype(np.float32)
    cut = (ours.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert "rounded to bfloat16: the low 16 bits of every word are zero" in said(cut, ours)
    small = np.array([1e-39, -1e-40, 1.0], np.float32)
    assert "subnormal numbers are flushed to zero" in said(np.array([0.0, -0.0, 1.0], np.float32), small)
    assert "subnormal numbers are flushed to zero" not in said(np.array([0.0, 0.0, 2.0], np.float32), small)


@pytest.mark.parametrize(
    ("theirs", "ours", "ulps"),
    [
        (0x3F800000, 0x3F7FFFFF, 1),  # across a change of exponent
        (0x00800000, 0x007FFFFF, 1),  # the least normal and the largest subnormal number
        (0x00000001, 0x80000001, 3),  # the least numbers of either sign: two zeros lie between
        (0x80000000, 0x00000000, 1),  # the two zeros
        (0x7F7FFFFF, 0xFF7FFFFF, 2 * 0x7F7FFFFF + 1),
        (0x7FC00000, 0x3F800000, None),  # a NaN is no distance away
    ],
)
def test_distances(theirs: int, ours: int, ulps: int | None) -> None:
    a, b = (np.array([word], np.uint32).view(np.float32) for word in (theirs, ours))
    found = tensor_pattern("w", "param", a, b, b)
    assert found is not None and found.difference.ulps == ulps
