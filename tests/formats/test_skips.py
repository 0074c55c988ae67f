"""Records of skipped steps: how one is told by recipe and row, and what compact rows do not hold."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from auditkit.formats.compact import CompactRow
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.formats.skips import NO_RESULT, NO_RESULT_LEAF, NORM, rates, skip_of
from tests.formats.samples import RECIPE, digest_of


def ruled(action: str, bound: float) -> Recipe:
    return dataclasses.replace(RECIPE, divergence=DivergenceConfig(action, bound))


def pattern(value: float) -> int:
    found: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return found


@pytest.mark.parametrize(
    ("action", "bound", "norm", "reason"),
    [
        ("skip", 2.0, 2.0, ""),
        ("skip", 2.0, 2.0000002, NORM),
        ("skip", 2.0, -3.0, ""),
        ("skip", 0.0, 3.0e38, ""),
        ("stop", 2.0, 3.0, ""),
        ("stop", 0.0, 3.0, ""),
    ],
)
def test_a_norm_tells_one(action: str, bound: float, norm: float, reason: str) -> None:
    assert skip_of(ruled(action, bound), digest_of("g"), pattern(norm)) == reason


@pytest.mark.parametrize(("action", "reason"), [("skip", NO_RESULT), ("stop", "")])
def test_no_gradient_tells_one_whatever_the_norm(action: str, reason: str) -> None:
    for norm in (0.0, 5.0):
        assert skip_of(ruled(action, 2.0), ZERO_DIGEST, pattern(norm)) == reason


def test_a_leaf_without_a_result_is_zeros() -> None:
    assert NO_RESULT_LEAF.encode() == bytes(40)


def test_compact_rows_of_skipped_steps_have_no_rate() -> None:
    rows = [
        CompactRow(digest_of("s"), gradient, pattern(norm), (NO_RESULT_LEAF,) * 2)
        for gradient, norm in ((digest_of("g"), 1.0), (digest_of("g"), 3.0), (ZERO_DIGEST, 0.0))
    ]
    assert rates(ruled("skip", 2.0), rows, [7, 8, 9]) == [7, 0, 0]
    assert rates(RECIPE, rows, [7, 8, 9]) == [7, 8, 9]
    with pytest.raises(ValueError, match="shorter"):
        rates(RECIPE, rows, [7, 8])
