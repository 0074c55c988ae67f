"""The decoder as a whole: strictly causal in every bit, sequences independent of each other, gradients complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.model.network import Network, prepare
from auditkit.model.params import init_params, parameter_table
from auditkit.numerics import reference
from tests.golden.make_training import RECIPES, tokens_of
from tests.same_bits import assert_same_bits


class Spy:
    """The reference ops, keeping the logits of the last forward pass."""

    def __init__(self) -> None:
        self.logits: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def cross_entropy(self, logits: Any, *rest: Any) -> Any:
        self.logits = logits.copy()
        return reference.cross_entropy(logits, *rest)


def logits_of(name: str, tokens: Any) -> Any:
    """(B, T, V) logits of a recipe's initial parameters."""
    recipe, spy = RECIPES[name], Spy()
    network = Network(prepare(init_params(recipe), recipe, spy), recipe, spy)
    network.gradient(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:].size)
    return spy.logits.reshape(tokens.shape[0], tokens.shape[1] - 1, -1)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_no_bit_of_a_position_depends_on_later_tokens_or_other_sequences(name: str) -> None:
    tokens = tokens_of(RECIPES[name], 0).astype(np.int64)
    vocab = RECIPES[name].model.vocab_size
    before = logits_of(name, tokens)
    for position in (1, tokens.shape[1] // 2, tokens.shape[1] - 2):
        changed = tokens.copy()
        changed[0, position:] = (changed[0, position:] + 1 + np.arange(tokens.shape[1] - position)) % vocab
        after = logits_of(name, changed)
        assert_same_bits(after[0, :position], before[0, :position])
        assert_same_bits(after[1:], before[1:])
        assert (after[0, position:] != before[0, position:]).any()


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_sequence_gives_the_same_logits_alone(name: str) -> None:
    tokens = tokens_of(RECIPES[name], 0).astype(np.int64)
    together = logits_of(name, tokens)
    for i in range(tokens.shape[0]):
        assert_same_bits(logits_of(name, tokens[i : i + 1])[0], together[i])


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_parameter_gets_a_gradient(name: str) -> None:
    recipe = RECIPES[name]
    tokens = tokens_of(recipe, 0).astype(np.int64)
    network = Network(prepare(init_params(recipe), recipe, reference), recipe, reference)
    grads, loss_sum = network.gradient(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:].size)
    assert set(grads) == {spec.name for spec in parameter_table(recipe.model)}
    for spec in parameter_table(recipe.model):
        assert grads[spec.name].shape == spec.shape
        assert grads[spec.name].dtype == np.int64
        assert grads[spec.name].any(), spec.name
    assert int(loss_sum) > 0
