"""Token embedding: a gather forward, an exact scatter-add backward (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.exact_sum import GRADIENT_UNIT, add_sums, is_tame, sum_segments, to_fixed


def embedding_forward(tokens: IntArray, table: F32) -> F32:
    """Row table[token] for each token. tokens (N,) integers below V, table (V, C) float32 -> (N, C)."""
    return table[tokens]


def embedding_backward(dx: F32, tokens: IntArray, vocab_size: int, total: I64 | None = None) -> I64:
    """Exact sum of the rows of dx over the positions of each token: (N, C) float32 -> (V, C) int64 in units 2^-56.

    Integers, so repeated tokens may be added in any order. total: (V, C) int64 to add the sums to, not changed here; a
    back end may add in place. Raises NonFinite; of a tied table only the sum with `total` must be in range.
    """
    if tokens.size == 0 and total is not None:
        return total
    terms = to_fixed(dx, GRADIENT_UNIT)
    if total is not None and not is_tame(terms):
        present = np.unique(tokens)
        return _sums(np.concatenate([terms, total[present]]), np.concatenate([tokens, present]), total.copy())
    grad = _sums(terms, tokens, np.zeros((vocab_size, dx.shape[1]), np.int64))
    return grad if total is None else add_sums(total, grad)


def _sums(terms: I64, tokens: IntArray, grad: I64) -> I64:
    """grad (V, C), with the rows of `tokens` replaced by the sums of their terms (N, C)."""
    if tokens.size:
        order = np.argsort(tokens, kind="stable")
        ids, starts = np.unique(tokens[order], return_index=True)
        grad[ids] = sum_segments(terms[order], starts)
    return grad
