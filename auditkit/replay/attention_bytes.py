"""How many bytes attention needs besides what enters and leaves it: pairs of queries and keys, and on a CPU the rows of
the groups that are worked on together (auditkit/numerics/attention.py), which is much where heads are wide or many.
"""

from __future__ import annotations

from auditkit.formats.recipe import ModelConfig, Recipe
from auditkit.kernels import attention_chunks
from auditkit.numerics.arrays import row_blocks
from auditkit.numerics.exact_dot import depth_limit

SPAN = 64  # tokens of a span of queries on a CPU


def kept_weights(model: ModelConfig, tokens: int) -> int:
    """Bytes of the attention weights that the reference keeps: of short sequences only."""
    span = min(model.sliding_window or model.context_length, model.context_length)
    if model.context_length > 8 * model.head_dim:
        return 0
    return 4 * tokens * model.num_heads * (span + SPAN if model.sliding_window else span // 2 + SPAN)


def row_bytes_kept(model: ModelConfig, tokens: int) -> int:
    """Bytes of one number a row that a CPU keeps: exponents of q, k and v, maxima and sums of q; scales of QK-norm."""
    queries, keys = model.num_heads, model.num_kv_heads
    return 4 * tokens * (3 * queries + 2 * keys + (queries + keys if model.qk_norm else 0))


def backward_on_card(recipe: Recipe, key_heads: int, element: int) -> int:
    """Bytes of the scores of a chunk and of what becomes of them; element: bytes of one in fixed point."""
    model = recipe.model
    share, length = model.num_heads // model.num_kv_heads, model.context_length
    groups = key_heads or model.num_kv_heads * recipe.batch.micro_batch_sequences
    if recipe.numerics.body_bits == 24:
        return groups * share * length * length * (8 + 2 * element)  # scores, dS, and two of them turned
    sizes = attention_chunks.Sizes(groups, share, length, min(model.sliding_window, length))
    queries = max(chunk.scores for chunk in attention_chunks.query_chunks(sizes))
    keys = max(chunk.scores for chunk in attention_chunks.key_chunks(sizes))
    return max(queries * (8 + element), keys * (8 + 2 * element))  # dots, and weights of one or two results


def backward_on_processor(recipe: Recipe) -> int:
    """Bytes of the pairs of the groups that are worked on together, of their rows in binary64, of what there is once a
    row of all groups, and of dq in another order.
    """
    model, length = recipe.model, recipe.model.context_length
    share, sequences = model.num_heads // model.num_kv_heads, recipe.batch.micro_batch_sequences
    count, rows = model.num_kv_heads * sequences, share * length
    if recipe.numerics.body_bits == 24:
        return 20 * _together(count, rows * length // 4) * rows * length  # s, e, dP, what is seen, one turned
    is_whole = rows > depth_limit(recipe.numerics.body_bits)  # a sum over all queries, which is not cut then
    span = length if is_whole else min(SPAN, length)
    groups = _together(count, rows * min(SPAN, length) // 2)
    seen = model.sliding_window or length  # keys of a query; those of a span:
    keys = min(length, seen + span)
    pairs = groups * rows * (keys if model.sliding_window else (length + max(span, SPAN)) // 2)
    masks = 4 * rows * (keys if model.sliding_window else span)
    at_once = groups * share * span * keys
    scores = max(12 * pairs, 8 * pairs + 20 * at_once)  # e, dS and dP; or e, dS and the integer weights of a span
    wide = groups * model.head_dim * (12 * share * span + 16 * length)  # queries of a span, keys: operands and sums
    # Of a row of all queries: exponents, bounds, dO times the output; dq, where moving its heads takes a copy.
    each = 20 + (4 * model.head_dim if 1 < model.num_kv_heads < model.num_heads else 0)
    return scores + masks + wide + each * sequences * length * model.num_heads


def _together(count: int, share: int) -> int:
    """How many of so many groups are worked on together; share: of the pairs of one."""
    size: int = row_blocks(count, share)[0].stop
    return size
