"""THE training step (SPEC.md section 15): grads of each micro-batch, their sum or declared fold, the update.

The trainer on several ranks calls the parts of this file, and changes only where they run and how sums travel; the
replayer loops. Sums are integers, a fold has its order from the recipe: so the number of threads, ranks or machines
cannot change a bit.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.skips import NORM
from auditkit.formats.tensors import GradientTexts, tensor_digest
from auditkit.formats.work import work_of
from auditkit.model import divergence
from auditkit.model.network import Grads, Network, OnGradient, Prepared, prepare
from auditkit.model.ops import Ops
from auditkit.model.params import parameter_table
from auditkit.model.pieces_step import Room, Told, gone_on, keep, rounded, updated, walk_all
from auditkit.model.result import StepResult
from auditkit.model.state import State
from auditkit.model.totals import Totals, loss_total, totals
from auditkit.numerics.arrays import F32, I64, IntArray, give_freed_memory_back, keep_freed_memory
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite

T = TypeVar("T")

PRODUCT_PER_THREAD = 1 << 26  # multiplications that pay for waking a thread of the BLAS and waiting for it
POOL_FROM = 1 << 20  # parameters whose update pays for handing tensors to threads

__all__ = ["GradSum", "NonFinite", "StepResult", "grads", "micro_batches", "step", "update"]


@dataclass(frozen=True)
class GradSum:
    """Exact gradient sums (int64, units 2^-56) by parameter name and the exact loss sum (int64 (), units 2^-32).

    Where all that follows is to add and to hash them (`Totals.take`), float32 may stand for their terms.
    """

    grads: Grads
    loss_sum: I64


Gradients: TypeAlias = Callable[[IntArray], GradSum]  # of one micro-batch, tokens (s, T + 1)


def micro_batches(tokens: IntArray, recipe: Recipe) -> Iterator[IntArray]:
    """The step's tokens (S, T + 1) cut into micro-batches (s, T + 1) in order; the last may be short."""
    size = recipe.batch.micro_batch_sequences
    return (tokens[start : start + size] for start in range(0, tokens.shape[0], size))


def grads(
    prepared: Prepared,
    tokens: IntArray,
    total_targets: int,
    recipe: Recipe,
    ops: Ops,
    on_gradient: OnGradient = lambda name, sums: None,
    *,
    exact: bool = True,
) -> GradSum:
    """Gradient sums of one micro-batch: tokens (s, T + 1), each window's first T predict its last T.

    on_gradient: told name and sums of each parameter as soon as they are final, while the others are computed.
    exact: all of them int64; else float32 stand for terms where those are not made yet. Raises NonFinite.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return gradient_sums(prepared, inputs, targets, total_targets, recipe, ops, on_gradient, exact=exact)


def gradient_sums(
    prepared: Prepared,
    inputs: IntArray,
    targets: IntArray,
    total_targets: int,
    recipe: Recipe,
    ops: Ops,
    on_gradient: OnGradient = lambda name, sums: None,
    *,
    exact: bool = True,
) -> GradSum:
    """Gradient sums of inputs and targets, each (s, T), as `grads`. Raises NonFinite."""
    network = Network(prepared, recipe, ops, on_gradient, exact=exact)
    found, loss_sum = network.gradient(inputs, targets, total_targets)
    return GradSum({spec.name: found[spec.name] for spec in parameter_table(recipe.model)}, loss_sum)


def leaf(part: GradSum, ops: Ops) -> MicroBatchLeaf:
    """The micro-batch's leaf: its loss sum and the root of its int64 gradient sums."""
    return MicroBatchLeaf(int(part.loss_sum), gradient_digest(part.grads, ops))


def with_leaf(run: Gradients, ops: Ops) -> Callable[[IntArray], tuple[GradSum, MicroBatchLeaf]]:
    """The gradient sums of a micro-batch, all int64, and its leaf."""

    def both(tokens: IntArray) -> tuple[GradSum, MicroBatchLeaf]:
        part = run(tokens)
        return part, leaf(part, ops)

    return both


def taken(part: GradSum, total: Totals, each: Each = map) -> MicroBatchLeaf:
    """The leaf of a micro-batch whose gradient is added to the total on the way. Raises NonFinite."""
    digests = total.take(part.grads, each)
    layout = tuple((name, np.dtype(np.int64), array.shape) for name, array in part.grads.items())
    return MicroBatchLeaf(int(part.loss_sum), gradient_texts(layout).root(digests))


def gradient_digest(arrays: Mapping[str, F32 | I64], ops: Ops) -> Digest:
    """Root of gradient tensors by name: int64 sums for a micro-batch, binary32 for the whole step."""
    layout = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
    return gradient_texts(layout).root(ops.digests(list(arrays.values())))


def tensors_work(arrays: Mapping[str, F32 | I64], ops: Ops, key: bytes) -> Digest:
    """The proof of work over tensors by name, as a rule the step's binary32 gradients; key (32 bytes)."""
    return work_of(key, ops.digests([arrays[name] for name in sorted(arrays)], key))


@functools.lru_cache(maxsize=16)
def gradient_texts(layout: tuple[tuple[str, Any, tuple[int, ...]], ...]) -> GradientTexts:
    """The document of gradients of these names, dtypes and shapes, but for their digests; made once."""
    return GradientTexts(layout)


def update(
    state: State,
    rounded: list[F32],
    loss_sum: int,
    total_targets: int,
    recipe: Recipe,
    ops: Ops,
    *,
    each: Each = map,
    work_key: bytes | None = None,
) -> tuple[State, StepResult]:
    """Clip the rounded gradients (in the order of the parameters), take the AdamW step. The result's leaves are empty.

    A step whose norm exceeds the recipe's bound is skipped, or has no result. Raises NonFinite.
    """
    specs = parameter_table(recipe.model)
    names = [spec.name for spec in specs]
    norm = ops.norm_from_squares([ops.squares(rounded, each)])
    divergence.check_known(recipe, ops)
    why = divergence.exceeds(norm, recipe)
    if why:
        lr, new = np.float32(0), divergence.passed(state, recipe)
    else:
        params, ms, vs = ([role[name] for name in names] for role in (state.params, state.adam_m, state.adam_v))
        decayed = [spec.decayed for spec in specs]
        lr, made = adamw_step((params, ms, vs), rounded, decayed, norm, state.step, recipe, ops, each)
        new = State(state.step + 1, *(dict(zip(names, role, strict=True)) for role in made))
        ops.check_finite({f"{role} of {name}": array for name, role, array in new.tensors()})
    loss = ops.mean_loss(loss_sum, total_targets)
    gradients: dict[str, F32 | I64] = dict(zip(names, rounded, strict=True))
    work = "" if work_key is None else tensors_work(gradients, ops, work_key)
    return new, StepResult(loss, norm, lr, gradient_digest(gradients, ops), (), work, NORM if why else "", why)


def adamw_step(
    arrays: tuple[list[F32], list[F32], list[F32]],
    rounded: list[F32],
    decayed: list[bool],
    norm: np.float32,
    step: int,
    recipe: Recipe,
    ops: Ops,
    each: Each = map,
) -> tuple[np.float32, tuple[list[F32], list[F32], list[F32]]]:
    """The learning rate of a step, and new parameters and moments (SPEC.md sections 13 and 14).

    arrays: parameters, first and second moments, float32 each: whole tensors or any parts of them, for elements do not
    meet here; rounded: their gradients; norm: that of the whole gradient.
    """
    opt, lr = recipe.optimizer, np.float32(ops.learning_rate(recipe.schedule, step))
    scalars = ops.adamw_scalars(
        lr=lr, beta1=opt.beta1, beta2=opt.beta2, eps=opt.eps, weight_decay=opt.weight_decay, update=step + 1
    )
    clip = ops.clip_factor(norm, np.float32(opt.clip_norm))
    return lr, ops.adamw(*arrays, rounded, clip=clip, scalars=scalars, decayed=decayed, each=each)


@contextmanager
def tensor_workers(threads: int, elements: int) -> Iterator[Each]:
    """What maps a function over tensors of so many elements together: `map`, or that of a pool of threads."""
    with ThreadPoolExecutor(threads) as pool:  # starts no thread before it is used
        yield pool.map if threads > 1 and elements >= POOL_FROM else map


def step(
    state: State,
    tokens: IntArray,
    recipe: Recipe,
    ops: Ops,
    *,
    threads: int = 1,
    on_micro_batch: Callable[[int], None] | None = None,
    gradients: Gradients | None = None,
    work_key: bytes | None = None,
    room: Room | None = None,
) -> tuple[State, StepResult]:
    """Take state N to state N + 1 with batch N.

    tokens           (S, T + 1) integers below the vocabulary size
    threads          micro-batches computed side by side; cannot change a bit. With one, all ops run in this thread
    on_micro_batch   called with the number of finished micro-batches, from this thread
    gradients        another way to run `grads` on this state's parameters, e.g. recorded launches of it
    work_key         32 bytes under which the step's gradients are hashed once more, as proof of work; changes no bit
    room             a plan for little memory and the places that it needs; changes no bit
    Raises NonFinite when the step has no result (SPEC.md section 1) and the recipe does not skip it (section 18).
    """
    told = Told(on_micro_batch)
    try:
        if room is not None and room.plan.pieces:
            return _in_pieces(state, tokens, recipe, ops, room, threads, told, work_key)
        return _at_once(state, tokens, recipe, ops, threads, told, gradients, work_key, room)
    except NonFinite as error:
        divergence.check_certain(ops)
        if not recipe.divergence.skips:
            raise
        why = error.message
    told.up_to(recipe.batch.micro_batches)
    on_host = room is not None and room.plan.pieces
    work = "" if work_key is None else _state_work(state, ops, work_key, on_host)
    result = replace(divergence.without_result(recipe, why), work=work)
    return divergence.passed(state, recipe, on_host=on_host), result


def _at_once(
    state: State,
    tokens: IntArray,
    recipe: Recipe,
    ops: Ops,
    threads: int,
    told: Told,
    gradients: Gradients | None,
    work_key: bytes | None,
    room: Room | None,
) -> tuple[State, StepResult]:
    """The step with all of it in memory. Raises NonFinite."""
    total_targets = tokens.shape[0] * (tokens.shape[1] - 1)
    keep_freed_memory()
    run = gradients or _direct(state, total_targets, recipe, ops)
    total, parts = totals(recipe, ops), list(micro_batches(tokens, recipe))
    leaves = gone_on(total, recipe, room)
    told.up_to(len(leaves))
    with tensor_workers(threads, sum(p.size for p in state.params.values())) as each:
        for part in side_by_side(run, parts[len(leaves) :], recipe, threads):
            leaves.append(taken(part, total, each))
            if room is not None and len(leaves) < len(parts):
                keep(total, leaves, recipe, ops, room)
            told.up_to(len(leaves))
            del part  # as large as the model, while the next one is computed
        new, result = update(
            state, total.rounded(each), loss_total(leaves), total_targets, recipe, ops, each=each, work_key=work_key
        )
    return new, replace(result, leaves=tuple(leaves))


def _in_pieces(
    state: State,
    tokens: IntArray,
    recipe: Recipe,
    ops: Ops,
    room: Room,
    threads: int,
    told: Told,
    work_key: bytes | None,
) -> tuple[State, StepResult]:
    """The step with one layer in memory at a time. Raises NonFinite."""
    give_freed_memory_back()
    total_targets = tokens.shape[0] * (tokens.shape[1] - 1)
    with _blas().limit(limits=_blas_threads(recipe, threads)):
        parts = list(micro_batches(tokens, recipe))
        sums, leaves = walk_all(state, parts, total_targets, recipe, ops, room, told)
    loss_sum = loss_total(leaves)
    gradient = rounded(sums, recipe, ops, room.plan.cuts.rows, work_key)

    def adam(
        arrays: tuple[list[F32], list[F32], list[F32]], gradients: list[F32], decayed: list[bool]
    ) -> tuple[np.float32, tuple[list[F32], list[F32], list[F32]]]:
        return adamw_step(arrays, gradients, decayed, gradient.norm, state.step, recipe, ops)

    divergence.check_known(recipe, ops)
    why = divergence.exceeds(gradient.norm, recipe)
    if why:
        lr, new = np.float32(0), divergence.passed(state, recipe, on_host=True)
        ops.check_finite({})
    else:
        new = updated(state, sums, recipe, ops, room, adam)
        lr = np.float32(ops.learning_rate(recipe.schedule, state.step))
    loss = ops.mean_loss(loss_sum, total_targets)
    known = StepResult(loss, gradient.norm, lr, gradient.gradient, tuple(leaves), gradient.work)
    return new, replace(known, skipped=NORM if why else "", why=why)


def _state_work(state: State, ops: Ops, key: bytes, on_host: bool) -> Digest:
    """The proof of work of a step without a result: over the parameters, it proves only that the auditor had them."""
    if not on_host:
        return tensors_work(state.params, ops, key)
    return work_of(key, [tensor_digest(state.params[name], key) for name in sorted(state.params)])


def side_by_side(run: Callable[[IntArray], T], parts: Sequence[IntArray], recipe: Recipe, threads: int) -> Iterator[T]:
    """What `run` makes of each micro-batch, in order, as many computed at a time as there are threads."""
    workers = max(1, min(threads, len(parts)))
    with _blas().limit(limits=_blas_threads(recipe, threads // workers)):
        yield from _in_order(run, parts, workers)


def _in_order(function: Callable[[IntArray], T], items: Iterable[IntArray], workers: int) -> Iterator[T]:
    """function(item) of each item in order, `workers` at a time and never further ahead: each result is as large as
    the model.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[T]] = deque()
        for item in items:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()


@functools.cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes longer than a small step, so it is done once."""
    return ThreadpoolController().select(user_api="blas")


def _blas_threads(recipe: Recipe, spare: int) -> int:
    """Threads for one product, at most `spare` and at least 1.

    Its threads wait for each other by spinning: on a busy machine a step of small products took six times as long with
    two threads as with one.
    """
    model = recipe.model
    tokens = recipe.batch.micro_batch_sequences * model.context_length
    return max(1, min(spare, tokens * model.hidden_size * model.ffn_size // PRODUCT_PER_THREAD))


def _direct(state: State, total_targets: int, recipe: Recipe, ops: Ops) -> Gradients:
    prepared = prepare(state.params, recipe, ops)
    return lambda tokens: grads(prepared, tokens, total_targets, recipe, ops, exact=False)
