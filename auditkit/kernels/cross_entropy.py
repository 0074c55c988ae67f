"""Cross-entropy with z-loss on the device (cuda/cross_entropy.cu); SPEC.md section 12."""

from __future__ import annotations

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_sum import small_term
from auditkit.kernels.row_sum import WARP, padded_width

_WIDEST = 512  # threads of a block
# Bytes of a row that a block keeps in shared memory: two blocks fit on a multiprocessor beside each other.
_KEPT = {"75": 30 << 10, "80": 80 << 10, "90": 110 << 10, "100": 110 << 10}
_KEPT_ELSE = 47 << 10
_COLUMNS_BLOCK = 256
_NONE = np.uint64(0)  # a null pointer


def cross_entropy(
    device: Device,
    status: Array,
    logits: Array,
    targets: Array,
    z_loss: np.float32,
    total_targets: int,
    *,
    block: int | None = None,
    held: int | None = None,
    blocks: int | None = None,
    kept: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Loss and gradient of N rows of logits.

    logits (N, V) float32, overwritten with the gradient of the mean over `total_targets`; targets (N,) uint32.
    kept: (N, 2) float32 is given the rows' maxima and factors, (N,) uint32 the largest magnitudes of the gradient's
    rows as bits. block, held and blocks change the launch, never a bit.
    Returns the exact sum of the losses, int64 () in units 2^-32, and the gradient. A row without a finite loss sets
    bit 0 of `status`, a sum that may be out of range bit 1, a target not below V bit 2. A sum out of range that sets no
    bit is the true one.
    """
    rows, vocab = logits.shape
    loss = device.zeros((), np.int64)
    threads = block or min(_WIDEST, max(WARP, padded_width(vocab) // 8))
    near = min(vocab, _KEPT.get(device.architecture, _KEPT_ELSE) // 4 if held is None else held) // 4 * 4
    scale = np.float32(1.0 / float(total_targets))
    sizes = (np.int64(rows), np.int64(vocab), np.int64(near), np.int64(small_term(rows)))
    keep, known = np.int32(kept is not None), (_NONE, _NONE) if kept is None else kept
    args = (logits, targets, loss, status, *known, *sizes, keep, np.float32(z_loss), scale)
    kernel = "cross_entropy_4" if vocab % 4 == 0 else "cross_entropy_1"
    device.launch("cross_entropy", kernel, min(rows, blocks or rows), threads, args, shared=near * 4)
    return loss, logits


def cross_entropy_rows(
    device: Device, status: Array, logits: Array, targets: Array, z_loss: np.float32, total_targets: int
) -> tuple[Array, Array, Array]:
    """As `cross_entropy`, and the rows' maxima and factors for `cross_entropy_columns`: (N, 2) float32."""
    loss, gradient, kept, _ = cross_entropy_largest(device, status, logits, targets, z_loss, total_targets)
    return loss, gradient, kept


def cross_entropy_largest(
    device: Device, status: Array, logits: Array, targets: Array, z_loss: np.float32, total_targets: int
) -> tuple[Array, Array, Array, Array]:
    """As `cross_entropy_rows`, and the largest magnitudes of the gradient's rows as bits: (N,) uint32."""
    rows = int(logits.shape[0])
    kept, largest = device.empty((rows, 2), np.float32), device.empty((rows,), np.uint32)
    found = cross_entropy(device, status, logits, targets, z_loss, total_targets, kept=(kept, largest))
    return *found, kept, largest


def cross_entropy_columns(
    device: Device, logits: Array, first: int, targets: Array, kept: Array, total_targets: int
) -> Array:
    """The gradient of columns first .. first + k - 1 of the logits alone: logits (N, k) float32, overwritten."""
    rows, columns = logits.shape
    scale = np.float32(1.0 / float(total_targets))
    args = (logits, targets, kept, np.int64(rows), np.int64(columns), np.int64(first), scale)
    grid = min(blocks_for(rows * columns, _COLUMNS_BLOCK), 1 << 20)
    device.launch("cross_entropy", "cross_entropy_columns", grid, _COLUMNS_BLOCK, args)
    return logits
