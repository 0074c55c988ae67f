"""Cross-entropy with z-loss over the rows of the logits, with its gradient (SPEC.md section 12; z-loss: PaLM, 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from auditkit.numerics.arrays import F32, I64, IntArray, ieee, row_blocks
from auditkit.numerics.attention import softmax_sum
from auditkit.numerics.exact_sum import LOSS_UNIT, BlockSums, to_fixed
from auditkit.numerics.exp import exp
from auditkit.numerics.log import log


@ieee
def cross_entropy(logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int) -> tuple[I64, F32]:
    """Loss and gradient of N rows of logits.

    loss_n = (log Z + (m - x_target)) + z_loss * lse^2, lse = m + log Z, Z = exact sum of exp(x - m).
    logits         (N, V) float32; overwritten with the gradient
    targets        (N,) integers below V
    total_targets  targets of the whole step: the gradient is of the mean over them
    Returns the exact sum of loss_n, int64 () in units 2^-32, and d(mean loss)/d(logits) (N, V) float32. Raises
    NonFinite.
    """
    loss_sum, gradient, _ = cross_entropy_rows(logits, targets, z_loss, total_targets)
    return loss_sum, gradient


@ieee
def cross_entropy_rows(logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int) -> tuple[I64, F32, F32]:
    """As `cross_entropy`, and what `cross_entropy_columns` must know of each row: (N, 2) float32, maximum, factor."""
    scale = np.float32(1.0 / float(total_targets))
    loss_sum = BlockSums(())
    kept: F32 = np.empty((logits.shape[0], 2), np.float32)
    for at in row_blocks(*logits.shape):
        loss, kept[at, 0], kept[at, 1] = _rows(logits[at], targets[at], z_loss, scale)
        loss_sum.add(to_fixed(loss, LOSS_UNIT))
    return loss_sum.total(), logits, kept


@ieee
def cross_entropy_columns(logits: F32, first: int, targets: IntArray, kept: F32, total_targets: int) -> F32:
    """The gradient of some columns of the logits alone: the same bits as those columns of `cross_entropy`'s.

    So the weights' gradient needs no array of all tokens by all of the vocabulary.

    logits  (N, k) float32, columns first .. first + k - 1 of the logits of all rows; overwritten with the gradient
    kept    (N, 2) float32, from `cross_entropy_rows` of the same rows
    """
    scale = np.float32(1.0 / float(total_targets))
    for at in row_blocks(*logits.shape):
        x, column = logits[at], targets[at].astype(np.int64) - first
        x -= kept[at, :1]
        exp(x, out=x)
        x *= kept[at, 1:]
        here = np.flatnonzero((column >= 0) & (column < x.shape[1]))
        x[here, column[here]] -= scale
    return logits


@ieee
def row_losses(logits: F32, targets: IntArray, z_loss: np.float32) -> I64:
    """The terms of the loss sum, (N,) int64 in units 2^-32: what `cross_entropy` adds up. Overwrites logits (N, V).

    Raises NonFinite.
    """
    losses = [_rows(logits[at], targets[at], z_loss, np.float32(1))[0] for at in row_blocks(*logits.shape)]
    return to_fixed(np.concatenate(losses), LOSS_UNIT)


def _rows(x: F32, targets: IntArray, z_loss: np.float32, scale: np.float32) -> tuple[F32, F32, F32]:
    """Overwrites x (n, V) with its gradient; returns losses, maxima and the factors of e in the gradient, (n,) each."""
    row = np.arange(x.shape[0])
    target_logit = x[row, targets]
    largest = x.max(axis=1)
    x -= largest[:, None]
    exp(x, out=x)
    total = softmax_sum(x)  # Z
    loss, factor = loss_and_factor(largest, total, target_logit, z_loss, scale)
    x *= factor[:, None]
    x[row, targets] -= scale
    return loss, largest, factor


@ieee
def loss_and_factor(
    largest: F32, total: F32, target_logit: F32, z_loss: np.float32, scale: np.float32
) -> tuple[F32, F32]:
    """Losses and the factors of e in the gradient, (n,) each, from each row's maximum, Z and logit of the target."""
    log_total = log(total)
    lse = largest + log_total
    loss: F32 = log_total + (largest - target_logit)
    loss += z_loss * (lse * lse)
    slope = np.float32(1) + lse * (np.float32(2) * z_loss)  # d loss / d lse
    factor: F32 = ((np.float32(1) / total) * slope) * scale
    return loss, factor


def mean_loss(loss_sum: int, total_targets: int) -> np.float32:
    """loss_sum * 2^-32 / total_targets, correctly rounded to binary64 and then to binary32."""
    return np.float32(loss_sum / (total_targets << LOSS_UNIT))


def mean_losses(loss_sums: Sequence[int], total_targets: int) -> F32:
    """mean_loss of many steps -> (n,) float32."""
    unit = total_targets << LOSS_UNIT
    with np.errstate(over="ignore"):
        return np.array([total / unit for total in loss_sums], np.float64).astype(np.float32)
