"""Proof of work of a step: made of the very gradients whose digest is in the record, and no bit of the step changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from blake3 import blake3

from auditkit.formats.tensors import TensorEntry, gradient_root
from auditkit.formats.work import work_key
from auditkit.model.network import prepare
from auditkit.model.params import parameter_table
from auditkit.model.state import document, initial_state
from auditkit.model.step import grads, micro_batches, step
from auditkit.numerics import reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from tests.golden.make_training import RECIPES, tokens_of

RECIPE = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]
KEY = work_key(bytes(range(32)), "ab" * 32, 0)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_key_changes_nothing_but_the_work(name: str) -> None:
    recipe = RECIPES[name]
    start, tokens = initial_state(recipe), tokens_of(recipe, 0)
    plain_state, plain = step(start, tokens, recipe, reference)
    keyed_state, keyed = step(start, tokens, recipe, reference, work_key=KEY)
    assert plain.work == "" and len(keyed.work) == 64
    assert dataclasses.replace(keyed, work="") == plain
    assert document(keyed_state, recipe) == document(plain_state, recipe)


def rounded_gradients() -> dict[str, np.ndarray]:
    """The step's binary32 gradients, summed here micro-batch by micro-batch."""
    start, tokens = initial_state(RECIPE), tokens_of(RECIPE, 0)
    prepared = prepare(start.params, RECIPE, reference)
    targets = tokens[:, 1:].size
    parts = [grads(prepared, part, targets, RECIPE, reference).grads for part in micro_batches(tokens, RECIPE)]
    names = [spec.name for spec in parameter_table(RECIPE.model)]
    sums = [sum(part[name] for part in parts) for name in names]
    return dict(zip(names, reference.from_fixed(sums, GRADIENT_UNIT), strict=True))


def test_the_work_is_over_the_gradients_whose_digest_the_record_holds() -> None:
    gradients = rounded_gradients()
    _, result = step(initial_state(RECIPE), tokens_of(RECIPE, 0), RECIPE, reference, work_key=KEY)
    entries = [TensorEntry.of(name, "grad", array) for name, array in gradients.items()]
    assert gradient_root(entries) == result.gradient
    assert list(gradients) != sorted(gradients)  # or the order would prove nothing
    joined = b"".join(blake3(gradients[name].astype("<f4").tobytes(), key=KEY).digest() for name in sorted(gradients))
    assert result.work == blake3(joined, key=KEY).hexdigest()


def test_threads_change_no_bit_of_it_and_every_key_gives_another() -> None:
    start, tokens = initial_state(RECIPE), tokens_of(RECIPE, 0)
    runs = [step(start, tokens, RECIPE, reference, threads=n, work_key=KEY)[1].work for n in (1, 2, 5)]
    other = step(start, tokens, RECIPE, reference, work_key=work_key(bytes(32), "ab" * 32, 0))[1].work
    assert len(set(runs)) == 1 and other != runs[0]
