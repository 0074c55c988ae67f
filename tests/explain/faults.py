"""Training faults: each is planted in the code of the trainer or of the arithmetic while it takes one step.

Nothing is edited after the fact: the run goes on from what came out, and is published and signed as any other.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.model.state import State, initial_state
from auditkit.model.totals import ExactTotals, FoldedTotals
from auditkit.numerics import operands, reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT

STEP = 5  # the step of the fault; the states before and after it are published
UP = "model.layers.0.mlp.up_proj.weight"
step_module = importlib.import_module("auditkit.model.step")

Context = contextlib.AbstractContextManager[Any]


@dataclass
class Now:
    """What a fault may use: the state and the batch that its step begins from, and those of the step before."""

    state: State
    tokens: Any
    recipe: Recipe
    previous: State
    previous_tokens: Any


@dataclass(frozen=True)
class Fault:
    """A fault: what it is, how it is planted, and what an explanation of it must say.

    key      the kind of cause that must be named and confirmed; "" where only the first quantity can be told
    words    must occur in what is said: in the causes, or where there is none in the first quantity and the notes
    op       what the trace of the spoilt step must name, "" without one
    hidden   the state after the step is not published
    at_start the fault is in state 0
    publish  planted while the run is published: the publisher's own checks have the same fault
    """

    name: str
    plant: Callable[[Now], Context]
    key: str
    words: Sequence[str]
    op: str = ""
    hidden: bool = False
    at_start: bool = False
    publish: Callable[[Any], Context] = contextlib.nullcontext


def _patch(target: Any, name: str, make: Callable[[Any], Any]) -> Context:
    return mock.patch.object(target, name, make(getattr(target, name)))


@contextlib.contextmanager
def _ops(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An op of the reference, also where others are made of it."""
    changed = make(getattr(reference, name))
    with contextlib.ExitStack() as patches:
        for module in (reference, operands):
            if hasattr(module, name):
                patches.enter_context(mock.patch.object(module, name, changed))
        yield


# Learning rate


def rate_doubled(now: Now) -> Context:
    return _ops("learning_rate", lambda plain: lambda schedule, step: float(np.float32(2 * plain(schedule, step))))


def rate_of_next_step(now: Now) -> Context:
    lr = np.float32(reference.learning_rate(now.recipe.schedule, STEP + 1))
    return _ops("adamw_scalars", lambda plain: lambda **options: plain(**{**options, "lr": lr}))


def rate_odd(now: Now) -> Context:
    return _ops("adamw_scalars", lambda plain: lambda **o: plain(**{**o, "lr": np.float32(float(o["lr"]) * 1.2345)}))


# The other numbers of the update


def scalars(**changes: Any) -> Callable[[Now], Context]:
    return lambda now: _ops("adamw_scalars", lambda plain: lambda **options: plain(**{**options, **changes}))


def decay_everywhere(now: Now) -> Context:
    def make(plain: Any) -> Any:
        return lambda *lists, decayed, **options: plain(*lists, decayed=[True] * len(decayed), **options)

    return _ops("adamw", make)


def clip_off(now: Now) -> Context:
    return _ops("clip_factor", lambda plain: lambda norm, clip_norm: np.float32(1))


def norm_without_embedding(now: Now) -> Context:
    return _ops("squares", lambda plain: lambda grads, each=map: plain(grads[1:], each))


# State and buffers of the update


def update_from(change: Callable[[Now, State], State]) -> Callable[[Now], Context]:
    def plant(now: Now) -> Context:
        def make(plain: Any) -> Any:
            return lambda state, *args, **options: plain(change(now, state), *args, **options)

        return _patch(step_module, "update", make)

    return plant


def momentum_zeroed(now: Now, state: State) -> State:
    return replace(state, adam_m={name: np.zeros_like(array) for name, array in state.adam_m.items()})


def stale_parameters(now: Now, state: State) -> State:
    return replace(state, params=now.previous.params)


def result(change: Callable[[Now, State], State]) -> Callable[[Now], Context]:
    """Changes the state that the update gives."""

    def plant(now: Now) -> Context:
        def make(plain: Any) -> Any:
            def update(*args: Any, **options: Any) -> Any:
                new, result = plain(*args, **options)
                return change(now, new), result

            return update

        return _patch(step_module, "update", make)

    return plant


def frozen(now: Now, new: State) -> State:
    old = now.state
    roles = ((new.params, old.params), (new.adam_m, old.adam_m), (new.adam_v, old.adam_v))
    return State(new.step, *({**made, UP: held[UP]} for made, held in roles))


def one_bit(now: Now, new: State) -> State:
    array = new.params[UP].copy()
    array.view(np.uint32)[3, 5] ^= 1 << 20
    return replace(new, params={**new.params, UP: array})


def bfloat16(now: Now, new: State) -> State:
    cut = {name: (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for name, array in new.params.items()}
    return replace(new, params=cut)


# The batch


def tokens(change: Callable[[Now, Any], Any]) -> Callable[[Now], Context]:
    def plant(now: Now) -> Context:
        return _patch(step_module, "micro_batches", lambda plain: lambda tokens, r: plain(change(now, tokens), r))

    return plant


def one_token(now: Now, tokens: Any) -> Any:
    changed = tokens.copy()
    changed[4, 7] = (int(changed[4, 7]) + 101) % now.recipe.model.vocab_size
    return changed


def one_sequence(now: Now, tokens: Any) -> Any:
    changed = tokens.copy()
    changed[3] = tokens[0]
    return changed


def one_target(now: Now) -> Context:
    def make(plain: Any) -> Any:
        def sums(prepared: Any, inputs: Any, targets: Any, *args: Any, **options: Any) -> Any:
            if np.array_equal(inputs, now.tokens[2:4, :-1]):
                targets = targets.copy()
                targets[1, 3] = (int(targets[1, 3]) + 57) % now.recipe.model.vocab_size
            return plain(prepared, inputs, targets, *args, **options)

        return sums

    return _patch(step_module, "gradient_sums", make)


# Sums over micro-batches, as ranks make them


def added(add: Callable[[Any, int, Any, Any], Any]) -> Callable[[Now], Context]:
    """`add` is given the plain addition, the number of the micro-batch, the totals and its sums."""

    def plant(now: Now) -> Context:
        count = iter(range(1 << 10))
        return _patch(
            ExactTotals, "take", lambda plain: lambda self, grads, each=map: add(plain, next(count), self, grads)
        )

    return plant


def one_left_out(plain: Any, number: int, totals: Any, grads: Any) -> Any:
    return plain(totals if number != 1 else ExactTotals(reference), grads)


def one_twice(plain: Any, number: int, totals: Any, grads: Any) -> Any:
    if number == 2:
        plain(totals, grads)
    return plain(totals, grads)


def folded(now: Now) -> Context:
    return _patch(step_module, "totals", lambda plain: lambda recipe, ops: FoldedTotals((), ops))


def _older(now: Now) -> list[Any]:
    """The gradient sums of the step before."""
    total: list[Any] = []
    prepared = step_module.prepare(now.previous.params, now.recipe, reference)
    targets = now.tokens.shape[0] * (now.tokens.shape[1] - 1)
    for part in step_module.micro_batches(now.previous_tokens, now.recipe):
        terms = list(step_module.grads(prepared, part, targets, now.recipe, reference).grads.values())
        total = [a + b for a, b in zip(total, terms, strict=True)] if total else terms
    return total


def not_cleared(now: Now) -> Context:
    older = _older(now)
    return _patch(
        ExactTotals,
        "rounded",
        lambda plain: (
            lambda self, each=map: reference.from_fixed(
                [a + b for a, b in zip(self._sums, older, strict=True)], GRADIENT_UNIT
            )
        ),
    )


def stale_gradient(now: Now) -> Context:
    older = reference.from_fixed(_older(now), GRADIENT_UNIT)
    return _patch(ExactTotals, "rounded", lambda plain: lambda self, each=map: older)


# Forward and backward


def stale_rank(now: Now) -> Context:
    """One of three ranks has not received the last update."""

    def make(plain: Any) -> Any:
        def grads(prepared: Any, tokens: Any, *args: Any, **options: Any) -> Any:
            if np.array_equal(tokens, now.tokens[4:6]):
                prepared = step_module.prepare(now.previous.params, now.recipe, reference)
            return plain(prepared, tokens, *args, **options)

        return grads

    return _patch(step_module, "grads", make)


def stale_rows(now: Now) -> Context:
    """The fixed-point rows of one weight were not made again after the update."""

    def make(plain: Any) -> Any:
        return lambda params, *args: plain({**params, UP: now.previous.params[UP]}, *args)

    return _patch(step_module, "prepare", make)


def own_tokens(now: Now) -> Context:
    """The gradient is divided by the tokens of the micro-batch, not by those of the step."""

    def make(plain: Any) -> Any:
        def sums(prepared: Any, inputs: Any, targets: Any, total: int, *args: Any, **options: Any) -> Any:
            return plain(prepared, inputs, targets, inputs.size, *args, **options)

        return sums

    return _patch(step_module, "gradient_sums", make)


def recipe(change: Callable[[Recipe], Recipe]) -> Callable[[Now], Context]:
    def plant(now: Now) -> Context:
        other = change(now.recipe)
        stack = contextlib.ExitStack()
        stack.enter_context(_patch(step_module, "prepare", lambda plain: lambda p, r, ops: plain(p, other, ops)))
        stack.enter_context(
            _patch(step_module, "Network", lambda plain: lambda p, r, *args, **more: plain(p, other, *args, **more))
        )
        return stack

    return plant


def head_14(recipe: Recipe) -> Recipe:
    return replace(recipe, numerics=replace(recipe.numerics, head_bits=14))


def z_off(recipe: Recipe) -> Recipe:
    return replace(recipe, loss=replace(recipe.loss, z_loss=0.0))


def one_op_forward(now: Now) -> Context:
    """A kernel that is wrong in the last element of its twelfth call."""
    return _ops("rms_norm_forward", lambda plain: _after(plain, 11, 0))


def one_op_backward(now: Now) -> Context:
    """A kernel whose second output is wrong in one element of its first call, that is in the last layer."""
    return _ops("swiglu_backward", lambda plain: _after(plain, 0, 1))


def _after(plain: Any, call: int, output: int) -> Any:
    count = iter(range(1 << 20))

    def spoilt(*args: Any, **options: Any) -> Any:
        made = list(plain(*args, **options))
        if next(count) == call:
            made[output] = made[output].copy()
            made[output].reshape(-1)[-1] *= np.float32(1.25)
        return tuple(made)

    return spoilt


def loss_of_last(now: Now) -> Context:
    """Only the last micro-batch's loss is told."""

    def make(plain: Any) -> Any:
        def total(leaves: Any) -> int:
            return int(leaves[-1].loss_sum)

        return total

    return _patch(step_module, "loss_total", make)


def as_recorded(rows: Any) -> Context:
    """The publisher's check of losses and rates finds what the run has recorded."""
    recheck = importlib.import_module("trainer.recheck")
    return _patch(recheck, "_derived", lambda plain: lambda *args: [(row.loss, row.lr) for row in rows])


def other_seed(module: str) -> Callable[[Any], Context]:
    def plant(now: Any) -> Context:
        place = importlib.import_module(module)
        other = lambda plain: lambda r: initial_state(replace(r, init=replace(r.init, seed=42)))  # noqa: E731
        return _patch(place, "initial_state", other)

    return plant


@contextlib.contextmanager
def planted(fault: Fault, recipe: Recipe, now: list[Now]) -> Iterator[None]:
    """Have the trainer take step STEP, or make state 0, under a fault; `now` is given what that step began from."""
    runner = importlib.import_module("trainer.runner").OneProcess
    plain = runner.step
    seen: list[tuple[State, Any]] = []

    def step(self: Any, state: State, tokens: Any, asked: bool) -> Any:
        seen.append((state, tokens))
        if state.step != STEP or fault.at_start:
            return plain(self, state, tokens, asked)
        now.append(Now(state, tokens, recipe, *seen[-2]))
        with fault.plant(now[0]):
            return plain(self, state, tokens, asked)

    with fault.plant(None) if fault.at_start else contextlib.nullcontext():  # type: ignore[arg-type]
        with mock.patch.object(runner, "step", step):
            yield
