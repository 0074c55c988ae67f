"""cuda/cross_entropy.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.cross_entropy import (
    cross_entropy,
    cross_entropy_columns,
    cross_entropy_largest,
    cross_entropy_rows,
)
from auditkit.numerics import cross_entropy as reference
from auditkit.numerics.nonfinite import NonFinite
from tests.kernels.variants import NOT_FINITE, SUM_RANGE, TOKEN_RANGE, runs
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.ops.cases import SMALLEST, floats, normals, with_value
from tests.same_bits import assert_same_bits

# (threads, elements of a row in shared memory, most blocks)
LAUNCHES = ((None, None, None), (32, 0, None), (64, 12, 1), (256, 1 << 12, 2))
VOCABS = (1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 255, 256, 260, 1023, 1028)
Z_LOSS = np.float32(1e-4)


def check(device: Any, logits: Any, targets: Any, z_loss: np.float32 = Z_LOSS, launches: Any = LAUNCHES) -> None:
    n = max(1, 3 * len(targets))
    loss, gradient = reference.cross_entropy(logits.copy(), targets, z_loss, n)
    for run in runs(device):
        for block, held, blocks in launches:
            on_device, on_targets = run.up(logits), run.up(targets.astype(np.uint32))
            got_loss, got = cross_entropy(
                run.device, run.status, on_device, on_targets, z_loss, n, block=block, held=held, blocks=blocks
            )
            assert got is on_device
            assert_same_bits(run.down(got), gradient)
            assert_same_bits(run.down(got_loss), np.asarray(loss))
        assert run.bits() == 0


@pytest.mark.parametrize("vocab", VOCABS)
def test_vocabularies(device: Any, vocab: int) -> None:
    rows = 4
    check(device, normals(1, rows, vocab, scale=4.0), np.array([0, vocab - 1, vocab // 2, vocab // 3]))


def test_a_large_vocabulary(device: Any) -> None:
    """Longer than what a block keeps in shared memory."""
    check(device, normals(1, 2, 30_001), np.array([7, 29_999]), launches=[(None, None, None)])
    check(device, normals(2, 1, 29_000), np.array([28_999]), launches=[(None, None, None), (128, 28_160, None)])


def test_less_and_more_shared_memory_in_turns(device: Any) -> None:
    """What a kernel was once allowed it may have again."""
    launches = [(None, 28_160, None), (None, 14_000, None), (None, 28_160, None), (None, 0, None), (None, 20_000, None)]
    check(device, normals(3, 1, 29_000), np.array([5]), launches=launches)


@pytest.mark.parametrize("rows", [0, 1, 2, 33])
def test_rows(device: Any, rows: int) -> None:
    check(device, normals(2, rows, 20), np.arange(rows) * 7 % 20)


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.5])
def test_awkward_logits(device: Any, z_loss: float) -> None:
    """All equal, zeros of either sign, one far above, far apart, subnormal, minus infinity beside the target."""
    for width in (5, 8):
        rows = np.zeros((8, width), np.float32)
        rows[1] = 1e4
        rows[2, ::2] = -0.0
        rows[3, 1] = 200
        rows[4] = np.linspace(-300, 300, width)
        rows[5] = SMALLEST * np.arange(width, dtype=np.float32)
        rows[6, 2:] = -np.inf
        rows[7] = floats(9, width, low=-149, high=9)
        check(device, rows, np.array([0, width - 1, 1, 0, width - 1, 2, 1, 3]), np.float32(z_loss))


@pytest.mark.parametrize("vocab", [7, 64])
def test_a_row_without_a_loss_sets_status(device: Any, vocab: int) -> None:
    targets = np.array([1, 2, 3])
    good = normals(3, 3, vocab)
    bad = [with_value(good, value) for value in (BAD_VALUES[0], BAD_VALUES[2])]
    bad += [np.full_like(good, -np.inf), np.full_like(good, np.inf), np.full_like(good, np.nan)]
    target_out_of_reach = good.copy()
    target_out_of_reach[1, 2] = -np.inf
    far = good.copy()
    far[1, 0] = 2.0**31
    for logits in [*bad, target_out_of_reach, far]:
        with pytest.raises(NonFinite):
            reference.cross_entropy(logits.copy(), targets, Z_LOSS, 9)
        for run in runs(device):
            cross_entropy(run.device, run.status, run.up(logits), run.up(targets.astype(np.uint32)), Z_LOSS, 9)
            assert run.bits() == NOT_FINITE


def test_the_sum_of_the_losses_is_checked(device: Any) -> None:
    """Each row's loss is 2^29; the range is +-2^30."""
    logits = np.zeros((3, 4), np.float32)
    logits[:, 0] = 2.0**29
    targets = np.ones(3, np.uint32)
    for run in runs(device):
        for count, bits in ((1, 0), (2, SUM_RANGE), (3, SUM_RANGE)):
            run.status = run.device.zeros((1,), np.uint32)
            got, _ = cross_entropy(
                run.device, run.status, run.up(logits[:count]), run.up(targets[:count]), np.float32(0), 3
            )
            assert run.bits() == bits
            if not bits:
                assert int(run.down(got)) == count << 61


def test_a_target_beyond_the_vocabulary_sets_status(device: Any) -> None:
    for bad in (8, 2**32 - 1):
        for run in runs(device):
            targets = run.up(np.array([1, bad], np.uint32))
            cross_entropy(run.device, run.status, run.up(normals(1, 2, 8)), targets, Z_LOSS, 2)
            assert run.bits() == TOKEN_RANGE


@pytest.mark.parametrize(("rows", "vocab", "cut"), [(3, 33, 7), (5, 300, 128), (1, 4, 4)])
def test_columns_made_again_are_those_of_the_whole(device: Any, rows: int, vocab: int, cut: int) -> None:
    logits, targets = normals(11, rows, vocab, scale=6.0), np.arange(rows) * 17 % vocab
    _, want, want_kept = reference.cross_entropy_rows(logits.copy(), targets, Z_LOSS, 7)
    for run in runs(device):
        on_targets = run.up(targets.astype(np.uint32))
        _, got, kept = cross_entropy_rows(run.device, run.status, run.up(logits), on_targets, Z_LOSS, 7)
        assert_same_bits(run.down(got), want)
        assert_same_bits(run.down(kept), want_kept)
        *_, largest = cross_entropy_largest(run.device, run.status, run.up(logits), on_targets, Z_LOSS, 7)
        assert_same_bits(run.down(largest), np.abs(want).max(axis=1).view(np.uint32))
        for first in range(0, vocab, cut):
            part = run.up(np.ascontiguousarray(logits[:, first : first + cut]))
            made = cross_entropy_columns(run.device, part, first, on_targets, kept, 7)
            assert_same_bits(run.down(made), want[:, first : first + cut])
        assert run.bits() == 0
