"""Cross-entropy with z-loss: loss sum and gradient, word for word the oracle, and close to float64."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.cross_entropy import (
    cross_entropy,
    cross_entropy_columns,
    cross_entropy_rows,
    mean_loss,
)
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import BOUNDARY_SIZES, F32, LARGEST, NOT_FINITE, awkward_rows, floats, normals, with_value
from tests.ops.oracle import layers
from tests.same_bits import assert_same_bits

Z_LOSS = pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.3])


def check(logits: F32, targets: np.ndarray, z_loss: float, total: int) -> None:
    """Loss sum and gradient are the oracle's; the logits are overwritten, the targets are not."""
    targets = targets.copy()
    targets.flags.writeable = False
    want_sum, want_dx = layers.cross_entropy(logits, targets, z_loss, total)
    given = logits.copy()
    got_sum, got_dx = cross_entropy(given, targets, np.float32(z_loss), total)
    assert int(got_sum) == want_sum
    assert_same_bits(got_dx, want_dx)
    assert got_dx is given


@Z_LOSS
@pytest.mark.parametrize("width", [w for w in BOUNDARY_SIZES if w > 1])
def test_equals_the_oracle_at_boundary_sizes(width: int, z_loss: float) -> None:
    check(normals(width, 3, width, scale=3), np.array([0, width - 1, width // 2]), z_loss, 40)


@Z_LOSS
def test_equals_the_oracle_on_awkward_rows(z_loss: float) -> None:
    """Not the row of the largest numbers (5) and of all exponents (6): with z-loss their squares have no result."""
    rows = awkward_rows(6)[[0, 1, 2, 3, 4, 7, 8]]
    check(rows, np.arange(7) % 6, z_loss, 7)
    check(floats(1, 5, 6, low=3, high=8), np.arange(5), z_loss, 1)


def test_rows_of_the_largest_numbers_without_z_loss() -> None:
    """lse * lse is infinite, and 0 * inf is NaN: such a row has no result even with z-loss off."""
    for row in (np.full((1, 3), LARGEST), np.array([[1e20, -1e20, 0]], np.float32)):
        with pytest.raises(NonFinite):
            cross_entropy(row.copy(), np.zeros(1, np.int64), np.float32(0), 1)
    check(np.array([[1e4, 0, -1e4]], np.float32), np.zeros(1, np.int64), 0.0, 1)


def test_equals_the_oracle_with_one_logit_far_above() -> None:
    row = np.full((2, 5), -40, np.float32)
    row[:, 3] = 60
    check(row, np.array([3, 0]), 1e-4, 2)
    check(row, np.array([3, 0]), 0.0, 2)


@pytest.mark.parametrize("total", [1, 3, 1000, (1 << 24) + 1, (1 << 40) + 7])
def test_equals_the_oracle_for_every_number_of_targets(total: int) -> None:
    check(normals(1, 4, 9), np.arange(4), 1e-4, total)


def test_z_loss_adds_to_loss_and_gradient() -> None:
    logits, targets = normals(1, 4, 9, scale=2), np.arange(4)
    off, on = (cross_entropy(logits.copy(), targets, np.float32(z), 4) for z in (0.0, 0.5))
    assert int(on[0]) > int(off[0])
    assert (on[1] != off[1]).any()


def test_rows_are_independent_of_each_other() -> None:
    """Blocks of rows and the other rows of a batch change no bit; the sums add up as integers."""
    logits, targets = normals(1, 1500, 40, scale=4), np.arange(1500) % 40
    total, dx = cross_entropy(logits.copy(), targets, np.float32(1e-4), 1500)
    summed = 0
    for start in range(0, 1500, 11):
        at = slice(start, start + 11)
        part, part_dx = cross_entropy(logits[at].copy(), targets[at], np.float32(1e-4), 1500)
        assert_same_bits(part_dx, dx[at])
        summed += int(part)
    assert summed == int(total)


def test_no_rows() -> None:
    loss, dx = cross_entropy(np.zeros((0, 5), np.float32), np.zeros(0, np.int64), np.float32(0), 1)
    assert (int(loss), dx.shape) == (0, (0, 5))


def test_strides_and_token_types_do_not_matter() -> None:
    logits, targets = normals(1, 4, 6), np.array([5, 0, 3, 3])
    want_sum, want_dx = cross_entropy(logits.copy(), targets, np.float32(1e-4), 4)
    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = logits
    got_sum, got_dx = cross_entropy(wide[:, ::2], targets.astype(np.uint16), np.float32(1e-4), 4)
    assert int(got_sum) == int(want_sum)
    assert_same_bits(got_dx, want_dx)


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_logits_that_are_not_finite_are_refused(bad: np.float32) -> None:
    with pytest.raises(NonFinite):
        cross_entropy(with_value(normals(1, 1, 5), bad), np.array([2]), np.float32(0), 1)


@pytest.mark.parametrize(("total", "targets"), [(0, 1), (1, 3), (-5, 7), (12345678901234567, 1536), (1 << 61, 99991)])
def test_mean_loss_equals_the_oracle(total: int, targets: int) -> None:
    got = mean_loss(total, targets)
    assert got.dtype == np.float32
    assert got.view(np.uint32) == layers.mean_loss(total, targets).view(np.uint32)


@Z_LOSS
def test_close_to_float64(z_loss: float) -> None:
    logits, targets = normals(1, 16, 300, scale=3), np.arange(16) * 7
    x, row = logits.astype(np.float64), np.arange(16)
    largest = x.max(axis=1)
    lse = largest + np.log(np.sum(np.exp(x - largest[:, None]), axis=1))
    loss = lse - x[row, targets] + z_loss * lse**2
    probability = np.exp(x - lse[:, None])
    gradient = probability * (1 + 2 * z_loss * lse)[:, None]
    gradient[row, targets] -= 1
    got_sum, got = cross_entropy(logits.copy(), targets, np.float32(z_loss), 16)
    assert abs(int(got_sum) * 2.0**-32 - np.sum(loss)) < 2e-6 * np.sum(loss)
    assert float(np.abs(got - gradient / 16).max()) < 2e-7


@Z_LOSS
@pytest.mark.parametrize("cut", [1, 7, 33])
def test_columns_made_again_are_those_of_the_whole(z_loss: float, cut: int) -> None:
    logits = np.concatenate([normals(3, 6, 33, scale=9), np.zeros((1, 33), np.float32)])
    targets = np.arange(len(logits)) * 5 % 33
    want_sum, want = cross_entropy(logits.copy(), targets, np.float32(z_loss), 48)
    got_sum, got, kept = cross_entropy_rows(logits.copy(), targets, np.float32(z_loss), 48)
    assert int(got_sum) == int(want_sum)
    assert_same_bits(got, want)
    for first in range(0, 33, cut):
        part = logits[:, first : first + cut].copy()
        assert_same_bits(cross_entropy_columns(part, first, targets, kept, 48), want[:, first : first + cut])
