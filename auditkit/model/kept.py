"""What is kept from one step to the next, to save time: tables and texts that a replay may not take on trust.

A bit that flips in one of them spoils every step that follows, in the same way; the second replay before a mismatch
must not use what the first one did.
"""

from __future__ import annotations

from auditkit.model import params, state, step
from auditkit.numerics import arrays, attention


def forget() -> None:
    """Make all of them anew when they are next needed."""
    for kept in (
        arrays.row_blocks,
        attention.spans,
        params.parameter_table,
        step.gradient_texts,
        state.document_order,
        state.document_texts,
    ):
        kept.cache_clear()
