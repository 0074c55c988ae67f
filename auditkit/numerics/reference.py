"""The reference back end: every op of the specification under the name that all back ends share."""

from auditkit.numerics.adamw import adamw_scalars
from auditkit.numerics.cross_entropy import cross_entropy, cross_entropy_columns, cross_entropy_rows, mean_loss
from auditkit.numerics.embedding import embedding_backward, embedding_forward
from auditkit.numerics.exact_sum import to_fixed
from auditkit.numerics.global_norm import clip_factor, norm_from_squares
from auditkit.numerics.layout import (
    TensorDigest,
    add,
    block_nodes,
    bring,
    check_finite,
    columns,
    digests,
    host,
    join_rows,
    merge_heads,
    place,
    read_digests,
    split_heads,
)
from auditkit.numerics.lists import adamw, add_pieces, add_sums, add_terms, from_fixed, largest, squares
from auditkit.numerics.operands import (
    cross_entropy_operand,
    merge_heads_both,
    merge_heads_keep,
    quantise_columns,
    rms_norm_backward_add,
    rms_norm_keep,
    rms_norm_rows,
    rope_heads,
    swiglu_backward_both,
    swiglu_columns,
    swiglu_keep,
    swiglu_rows,
)
from auditkit.numerics.product import (
    attention_again,
    attention_backward,
    attention_forward,
    dot,
    kept_columns,
    quantise,
    quantise_both,
    quantise_keep,
    quantise_t,
    weight_rows,
    weight_rows_t,
)
from auditkit.numerics.rms_norm import rms_norm_backward, rms_norm_forward
from auditkit.numerics.rope import rope_backward, rope_forward, rope_table
from auditkit.numerics.schedule import learning_rate
from auditkit.numerics.swiglu import swiglu_backward, swiglu_forward

name = "numpy"
waiting_terms = 0

__all__ = [
    "TensorDigest",
    "add",
    "adamw",
    "adamw_scalars",
    "add_pieces",
    "add_sums",
    "add_terms",
    "attention_again",
    "attention_backward",
    "attention_forward",
    "block_nodes",
    "bring",
    "check_finite",
    "clip_factor",
    "columns",
    "cross_entropy",
    "cross_entropy_columns",
    "cross_entropy_operand",
    "cross_entropy_rows",
    "digests",
    "dot",
    "embedding_backward",
    "embedding_forward",
    "from_fixed",
    "host",
    "join_rows",
    "kept_columns",
    "largest",
    "learning_rate",
    "mean_loss",
    "merge_heads",
    "merge_heads_both",
    "merge_heads_keep",
    "name",
    "waiting_terms",
    "norm_from_squares",
    "place",
    "quantise",
    "quantise_both",
    "quantise_columns",
    "quantise_keep",
    "quantise_t",
    "read_digests",
    "rms_norm_backward",
    "rms_norm_backward_add",
    "rms_norm_forward",
    "rms_norm_keep",
    "rms_norm_rows",
    "rope_backward",
    "rope_forward",
    "rope_heads",
    "rope_table",
    "split_heads",
    "squares",
    "swiglu_backward",
    "swiglu_backward_both",
    "swiglu_forward",
    "swiglu_columns",
    "swiglu_keep",
    "swiglu_rows",
    "to_fixed",
    "weight_rows",
    "weight_rows_t",
]
