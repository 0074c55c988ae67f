"""Whether a step is skipped, and what is left of one that is (SPEC.md section 18): the one place that decides."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.formats.skips import NO_GRADIENT, NO_RESULT, NO_RESULT_LEAF
from auditkit.model.ops import Ops
from auditkit.model.result import StepResult
from auditkit.model.state import State, host_digests
from auditkit.numerics.nonfinite import NonFinite


def check_known(recipe: Recipe, ops: Ops) -> None:
    """Before a norm decides: learn what a device may have left to tell, for then the norm means nothing.

    Raises NonFinite, or Unsupported where the device cannot tell whether there is a result.
    """
    if recipe.divergence.max_norm:
        ops.check_finite({})


def exceeds(norm: np.float32, recipe: Recipe) -> str:
    """In words, that the norm of a step exceeds the recipe's bound and the step is skipped; "" where it does not.

    Raises NonFinite where such a step has no result.
    """
    bound = np.float32(recipe.divergence.max_norm)
    if not bound or not norm > bound:
        return ""
    why = f"the gradient's norm {float(norm):.9g} exceeds max_norm {float(bound):.9g}"
    if not recipe.divergence.skips:
        raise NonFinite(why)
    return why


def check_certain(ops: Ops) -> None:
    """After NonFinite: where a device has left to tell that a sum may have wrapped, it is not known after all.

    Raises Unsupported.
    """
    with contextlib.suppress(NonFinite):
        ops.check_finite({})


def without_result(recipe: Recipe, why: str) -> StepResult:
    """The result of a skipped step that has no finite one: declared values, the same wherever and why ever it ended."""
    leaves = (NO_RESULT_LEAF,) * recipe.batch.micro_batches
    return StepResult(np.float32(0), np.float32(0), np.float32(0), NO_GRADIENT, leaves, skipped=NO_RESULT, why=why)


def passed(state: State, recipe: Recipe, *, on_host: bool = False) -> State:
    """The state after a skipped step: the same arrays, one step further.

    on_host: the arrays are the host's, also where the ops compute elsewhere.
    """
    found = host_digests(state, recipe) if on_host and state.found is None else state.found
    return replace(state, step=state.step + 1, found=found)
