"""What may have gone otherwise in the passes of a micro-batch: its batch, weights, settings, numerics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from auditkit.errors import AuditkitError
from auditkit.explain.bench import Variant
from auditkit.explain.update_guesses import flushed
from auditkit.formats.recipe import Recipe
from auditkit.model.composed import ComposedOps
from auditkit.model.ops import Ops
from auditkit.model.state import State
from auditkit.numerics.arrays import IntArray

Z_LOSSES = (0.0, 1e-4, 1e-3, 1e-5)
THETAS = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0)
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)


class Around(Protocol):
    """What lies around the step: batches and states of its neighbours, each None where it cannot be had."""

    def tokens(self, step: int, /) -> IntArray | None: ...
    def previous(self) -> State | None: ...
    def after(self) -> State | None: ...


@dataclass(frozen=True)
class MicroGuess:
    """A micro-batch computed otherwise: the key of its kind, what was done in words, and how.

    whole: it is only meant for all micro-batches that are not explained, not for some of them.
    """

    key: str
    words: str
    variant: Variant
    whole: bool = False


def guesses(step: int, plain: Variant, around: Around, quick: bool) -> Iterator[MicroGuess]:
    """All guesses but those that are searched for, likely ones first."""
    yield from _batches(step, plain, around, (1,))
    yield from _targets(plain)
    yield from _division(plain)
    yield from _recipes(plain)
    yield from _orders(plain)
    yield from _stale(step, plain, around, quick)
    yield MicroGuess("flush-to-zero", "subnormal numbers flushed to zero", replace(plain, ops=flushing))
    if not quick:
        yield from _batches(step, plain, around, range(2, 20))


def _batches(step: int, plain: Variant, around: Around, distances: Any) -> Iterator[MicroGuess]:
    for distance in distances:
        for number in (step - distance, step + distance):
            tokens = around.tokens(number)
            if tokens is not None and tokens[:, :-1].shape == plain.inputs.shape:
                yield MicroGuess("batch", f"the batch of step {number}", plain.with_tokens(tokens))


def _targets(plain: Variant) -> Iterator[MicroGuess]:
    same = replace(plain, targets=plain.inputs)
    yield MicroGuess("targets", "targets that are not shifted: each token predicts itself", same)
    swapped = replace(plain, inputs=plain.targets, targets=plain.inputs)
    yield MicroGuess("targets", "inputs and targets exchanged", swapped)
    tokens = np.concatenate([plain.inputs, plain.targets[:, -1:]], axis=1)
    rolled = plain.with_tokens(np.roll(tokens, 1, axis=1))
    yield MicroGuess("targets", "windows that begin one token later or earlier", rolled)
    further = np.concatenate([plain.targets[:, 1:], plain.targets[:, -1:]], axis=1)
    yield MicroGuess("targets", "targets shifted by one token too many", replace(plain, targets=further))
    yield MicroGuess("targets", "windows read backwards", plain.with_tokens(tokens[:, ::-1]))


def _division(plain: Variant) -> Iterator[MicroGuess]:
    sequences, tokens = plain.inputs.shape
    each = plain.recipe.batch.micro_batch_sequences
    counts = {
        each * tokens: "the tokens of one micro-batch",
        sequences * (tokens + 1): "all tokens instead of all targets",
        sequences * max(tokens - 1, 1): "one target a sequence less",
        plain.recipe.batch.micro_batches: "the number of micro-batches",
        plain.recipe.batch.micro_batches * each * tokens: "as many tokens as full micro-batches have",
        sequences: "the number of sequences",
        tokens: "the tokens of one sequence",
        1: "nothing",
    }
    for count, words in counts.items():
        if count != plain.total_targets:
            said = f"the gradient divided by {count} ({words}) instead of {plain.total_targets}"
            yield MicroGuess("divided", said, replace(plain, total_targets=count))


def _recipes(plain: Variant) -> Iterator[MicroGuess]:
    for key, words, change in _changes(plain.recipe):
        try:
            recipe = change()
        except AuditkitError:
            continue
        if recipe != plain.recipe:
            yield MicroGuess(key, words, replace(plain, recipe=recipe))


def _changes(recipe: Recipe) -> Iterator[tuple[str, str, Callable[[], Recipe]]]:
    model, numerics, loss = recipe.model, recipe.numerics, recipe.loss
    for value in Z_LOSSES:
        z = float(np.float32(value))
        words = f"a z-loss of {value:g} instead of {loss.z_loss:g}" if value else "z-loss off"
        yield "z-loss", words, lambda z=z: replace(recipe, loss=replace(loss, z_loss=z))  # type: ignore[misc]
    for body, head in ((14, 14), (14, 21), (21, 14), (21, 21), (24, 24)):
        product = "f32" if body == 24 else "fx"
        made = replace(numerics, product=product, body_bits=body, head_bits=head)
        now = f"{numerics.product} of {numerics.body_bits} and {numerics.head_bits} bits"
        said = f"products {product} of {body} bits in the body and {head} in the head instead of {now}"
        yield "numerics", said, lambda made=made: replace(recipe, numerics=made)  # type: ignore[misc]
    for window in sorted({0, model.context_length // 2, model.context_length // 4}):
        if window != model.sliding_window:
            words = f"a sliding window of {window} (0: none) instead of {model.sliding_window}"
            yield "model", words, lambda w=window: replace(recipe, model=replace(model, sliding_window=w))  # type: ignore[misc]
    for theta in THETAS:
        words = f"a rope_theta of {theta:g} instead of {model.rope_theta:g}"
        yield "model", words, lambda t=theta: replace(recipe, model=replace(model, rope_theta=t))  # type: ignore[misc]
    for value in EPSILONS:
        eps = float(np.float32(value))
        words = f"a norm_eps of {value:g} instead of {model.norm_eps:g}"
        yield "model", words, lambda e=eps: replace(recipe, model=replace(model, norm_eps=e))  # type: ignore[misc]


def _orders(plain: Variant) -> Iterator[MicroGuess]:
    """Other orders of the sequences of the batch that are likely; any other is searched for by the losses."""
    count = plain.inputs.shape[0]
    orders: dict[tuple[int, ...], str] = {tuple(range(count))[::-1]: "in reverse order"}
    for ranks in (r for r in range(2, count) if count % r == 0):
        dealt = tuple(i for rank in range(ranks) for i in range(rank, count, ranks))
        orders.setdefault(dealt, f"dealt out to {ranks} ranks one by one")
    for shift in (1, count - 1):
        orders.setdefault((*range(shift, count), *range(shift)), f"rotated by {shift}")
    for order, words in orders.items():
        if order != tuple(range(count)):
            chosen = list(order)
            made = replace(plain, inputs=plain.inputs[chosen], targets=plain.targets[chosen])
            yield MicroGuess("permuted", f"the sequences of the batch {words}", made, whole=True)


def _stale(step: int, plain: Variant, around: Around, quick: bool) -> Iterator[MicroGuess]:
    after = around.after()
    if after is not None:
        words = f"weights that are too new, those of state {step + 1}"
        yield MicroGuess("stale-weights", words, replace(plain, params=after.params))
    previous = around.previous()
    if previous is None:
        return
    words = f"stale weights, those of state {step - 1}"
    yield MicroGuess("stale-weights", words, replace(plain, params=previous.params))
    for name in () if quick else plain.params:
        params = {**plain.params, name: previous.params[name]}
        yield MicroGuess("stale-weights", f"a stale {name}, that of state {step - 1}", replace(plain, params=params))


class _Flushing:
    """Ops whose results have no subnormal numbers, as with flush-to-zero on; only of results that are NumPy arrays."""

    rms_norm_backward_add = ComposedOps.rms_norm_backward_add  # whose sums are flushed, each

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._ops, name)
        if not callable(plain):
            return plain

        def small(*args: Any, **options: Any) -> Any:
            return _flush(plain(*args, **options))

        return small


def _flush(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return flushed(value)
    if type(value) is tuple:
        return tuple(_flush(item) for item in value)
    return [_flush(item) for item in value] if type(value) is list else value


def flushing(ops: Ops) -> Ops:
    """The ops with flush-to-zero."""
    return cast(Ops, _Flushing(ops))
