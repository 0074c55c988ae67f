"""Token embedding on the device (cuda/embedding.cu); SPEC.md section 11."""

from __future__ import annotations

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.elementwise import BLOCK
from auditkit.kernels.exact_sum import small_term
from auditkit.kernels.row_sum import padded_width

CHUNK = 64  # positions of a block of embedding_backward
_THREADS = 128  # the most that it may have
COLUMNS = 4  # of one of its threads


def embedding_forward(device: Device, status: Array, tokens: Array, table: Array, *, block: int | None = None) -> Array:
    """Row table[token] for each token. tokens (N,) uint32, table (V, C) float32 -> (N, C).

    A token that is not below V sets bit 2 of `status`.
    """
    vocab, width = table.shape
    n = int(tokens.shape[0])
    x = device.empty((n, width), np.float32)
    step, threads = 4 if width % 4 == 0 else 1, block or BLOCK
    args = (tokens, table, x, status, np.int64(n), np.int64(vocab), np.int64(width))
    device.launch("embedding", f"embedding_forward_{step}", blocks_for(n * width, step * threads), threads, args)
    return x


def embedding_backward(
    device: Device,
    status: Array,
    dx: Array,
    tokens: Array,
    vocab_size: int,
    *,
    total: Array | None = None,
    block: int | None = None,
) -> Array:
    """Exact sum of the rows of dx over the positions of each token: (N, C) float32 -> (V, C) int64 in units 2^-56.

    total: int64 (V, C) to which the sums are added in place; it is then the result, e.g. the head's terms of a tied
    table, each in [-2^62, 2^62). Terms out of range, sums that may be, and tokens not below V set bits 0, 1 and 2 of
    `status`. A sum out of range that sets no bit is the true one.
    """
    n, width = dx.shape
    grad = device.zeros((vocab_size, width), np.int64) if total is None else total
    threads = block or _THREADS
    lanes = min(threads, padded_width(blocks_for(width, COLUMNS)))
    tiles = blocks_for(width, lanes * COLUMNS)
    sizes = (np.int64(n), np.int64(vocab_size), np.int64(width), np.int64(tiles), np.int64(small_term(n)))
    grid = blocks_for(n, CHUNK) * tiles
    device.launch("embedding", "embedding_backward", grid, threads, (dx, tokens, grad, status, *sizes, np.int32(lanes)))
    return grad
