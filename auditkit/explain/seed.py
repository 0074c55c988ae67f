"""Explain a published state 0 that the seed of the recipe does not give: another seed or spread, or changed bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from auditkit.errors import AuditkitError
from auditkit.explain.findings import Standing, Story
from auditkit.explain.patterns import StatePattern, state_pattern
from auditkit.formats.canonical import MAX_INT
from auditkit.formats.recipe import Recipe
from auditkit.formats.tensors import tensor_digest
from auditkit.model.params import ParamSpec, parameter_table
from auditkit.model.state import document, initial_state
from auditkit.numerics.normal import normal
from auditkit.replay.published import StoredState, open_state
from auditkit.replay.run import Run

SEEDS = (0, 1, 2, 3, 42, 1234, 1337, 2024, 2025, 2026)
SPREADS = (0.02, 0.01, 0.006, 0.005, 0.03, 0.05, 0.1)


def explain(run: Run, story: Story, quick: bool) -> StatePattern | None:
    """Fill the story of state 0, and compare it with the one that the seed gives."""
    recipe = run.recipe
    stored = open_state(run, 0)
    found = next((words for words, other in _others(run, quick) if _tried(story, stored, other)), None)
    if found is not None:
        story.found("initialisation", found, "state 0")
    made = initial_state(recipe)
    try:
        pattern = state_pattern(stored, made, made)
    except AuditkitError as error:
        story.notes.append(f"state 0 cannot be read: {error.message}")
        pattern = None
    detail = "" if pattern is None else "; ".join(pattern.words)
    story.add("state 0", Standing.REPRODUCED if found else Standing.DIFFERENT, detail)
    return pattern


def _others(run: Run, quick: bool) -> Iterator[tuple[str, Recipe]]:
    recipe, init = run.recipe, run.recipe.init
    near = range(max(0, init.seed - 2), min(init.seed + 2, MAX_INT) + 1)
    seeds = dict.fromkeys((*near, run.manifest.data.seed, *SEEDS, *(() if quick else range(1000))))
    for seed in seeds:
        if seed != init.seed:
            words = f"seed {seed} instead of {init.seed}"
            yield words, replace(recipe, init=replace(init, seed=seed))
    for std in (init.residual_std, *SPREADS):
        words = f"a spread of {std:g} instead of {init.std:g}"
        yield words, replace(recipe, init=replace(init, std=std))
        words = f"a residual spread of {std:g} instead of {init.residual_std:g}"
        yield words, replace(recipe, init=replace(init, residual_std=std))
    yield "the residual spread as the other one", replace(recipe, init=replace(init, residual_std=init.std))


def _tried(story: Story, stored: StoredState, recipe: Recipe) -> bool:
    story.tried["state 0, initialisation"] += 1
    return _gives(stored, recipe)


def _gives(stored: StoredState, recipe: Recipe) -> bool:
    """Whether a recipe's initialisation has the published tensors; the smallest random ones are made first."""
    digests = {entry.order: entry.digest for entry in stored.document.tensors}
    specs = [spec for spec in parameter_table(recipe.model) if spec.kind != "norm"]
    for kind in ("matrix", "residual"):
        of_kind = [spec for spec in specs if spec.kind == kind]
        smallest = min(of_kind, key=lambda spec: spec.shape[0] * spec.shape[1])
        if _digest(smallest, recipe) != digests["param", smallest.name]:
            return False
    entries = document(initial_state(recipe), recipe).tensors
    return all(digests.get(entry.order) == entry.digest for entry in entries)


def _digest(spec: ParamSpec, recipe: Recipe) -> str:
    std = recipe.init.residual_std if spec.kind == "residual" else recipe.init.std
    return tensor_digest(normal(recipe.init.seed, spec.name, spec.shape, np.float32(std)))
