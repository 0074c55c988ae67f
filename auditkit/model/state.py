"""Everything that decides the next step: parameters, AdamW moments, the step number; and its document and root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.formats.state import StateDocument
from auditkit.formats.tensors import TensorEntry, dtype_name, sorted_entries
from auditkit.model.ops import Ops
from auditkit.model.params import init_params, parameter_table
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32

ROLES = ("param", "adam_m", "adam_v")


@dataclass(frozen=True)
class State:
    """Float32 arrays by parameter name; `step` is the number of steps taken."""

    step: int
    params: dict[str, F32]
    adam_m: dict[str, F32]
    adam_v: dict[str, F32]

    def tensors(self) -> Iterator[tuple[str, str, F32]]:
        """(name, role, array), parameters in their order, the roles param, adam_m, adam_v of each together."""
        for name in self.params:
            yield name, "param", self.params[name]
            yield name, "adam_m", self.adam_m[name]
            yield name, "adam_v", self.adam_v[name]


def initial_state(recipe: Recipe) -> State:
    """State 0, from the recipe alone."""
    params = init_params(recipe)
    return State(0, params, _zeros(params), _zeros(params))


def _zeros(params: dict[str, F32]) -> dict[str, F32]:
    return {name: np.zeros_like(array) for name, array in params.items()}


def document(state: State, recipe: Recipe, ops: Ops = reference) -> StateDocument:
    """The state document; its root() is the state root of the records. `ops` hashes the arrays where they are."""
    tensors = list(state.tensors())
    found = ops.digests([array for _, _, array in tensors])
    entries = sorted_entries(
        (
            TensorEntry(name, role, dtype_name(array.dtype), array.shape, digest)
            for (name, role, array), digest in zip(tensors, found, strict=True)
        ),
        "state",
    )
    return StateDocument(
        step=state.step,
        sequence=state.step * recipe.batch.sequences,
        seed=recipe.init.seed,
        recipe=recipe.digest(),
        tensors=entries,
    )


def expected_tensors(recipe: Recipe) -> dict[tuple[str, str], tuple[int, ...]]:
    """(name, role) -> shape of every tensor that a state of this recipe must hold."""
    return {(spec.name, role): spec.shape for spec in parameter_table(recipe.model) for role in ROLES}
