"""Other losses and norms that a record may name: what they would be of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from auditkit.explain.subject import Start
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.model.params import parameter_table
from auditkit.model.totals import loss_total
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32

Named = tuple[str, np.float32]


def losses(start: Start, leaves: Sequence[MicroBatchLeaf]) -> Iterator[Named]:
    """Losses of a part of the step, or divided by something else."""
    size, tokens = start.recipe.batch.micro_batch_sequences, start.tokens
    every, total = tokens.shape[0] * (tokens.shape[1] - 1), loss_total(leaves)
    yield "the sum of the losses instead of their mean", reference.mean_loss(total, 1)
    for i, one in enumerate(leaves):
        own = len(tokens[i * size : (i + 1) * size]) * (tokens.shape[1] - 1)
        yield f"the loss of micro-batch {i} alone", reference.mean_loss(one.loss_sum, own)
        yield f"the loss of micro-batch {i} over all tokens", reference.mean_loss(one.loss_sum, every)
        rest = total - one.loss_sum
        if every > own:
            yield f"the loss without micro-batch {i}", reference.mean_loss(rest, every - own)
            yield f"the loss without micro-batch {i} over all tokens", reference.mean_loss(rest, every)


def norms(start: Start, rounded: Sequence[F32], before: np.float32 | None) -> Iterator[Named]:
    """Norms of a part of the gradient, or of another kind; `before` is the recorded one of the step before."""
    specs = parameter_table(start.recipe.model)
    squares = [reference.squares([grad]) for grad in rounded]
    total = sum(squares)
    own = reference.norm_from_squares([total])
    yield "the norm after clipping", min(own, np.float32(start.recipe.optimizer.clip_norm))
    with np.errstate(all="ignore"):
        yield "the square of the norm", own * own
        flat = np.concatenate([grad.reshape(-1) for grad in rounded])
        yield "the norm summed in binary32", np.sqrt((flat * flat).sum(dtype=np.float32))
        yield "the largest element instead of the norm", np.abs(flat).max()
    for spec, square in zip(specs, squares, strict=True):
        yield f"the norm without {spec.name}", reference.norm_from_squares([total - square])
        yield f"the norm of {spec.name} alone", reference.norm_from_squares([square])
    for kind in sorted({spec.kind for spec in specs}):
        part = sum(square for spec, square in zip(specs, squares, strict=True) if spec.kind == kind)
        yield f"the norm without parameters of kind {kind}", reference.norm_from_squares([total - part])
    if before is not None:
        yield f"the norm of step {start.step - 1}", before
