"""Trace a step of a run, and find the first op at which two traces part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from auditkit.errors import UsageError
from auditkit.explain.subject import Start
from auditkit.explain.tape import Tape, traced, traced_gradients
from auditkit.formats.trace import Trace, TracedOp
from auditkit.model.params import parameter_table
from auditkit.model.state import State
from auditkit.model.step import micro_batches, step
from auditkit.replay.backend import Backend
from auditkit.replay.compare import Array, TensorDifference, compare_tensors


def record(
    start: Start,
    backend: Backend,
    *,
    micro_batch: int | None = None,
    on_micro_batch: Callable[[int], None] | None = None,
) -> Trace:
    """The trace of a step on a back end, of one micro-batch alone or of all with the sum and the update.

    Raises UsageError for a micro-batch that the step has not, NonFinite where the step has no result, Unsupported for a
    step of too many ops.
    """
    return _trace(start, backend, _play(start, backend, micro_batch, None, on_micro_batch), micro_batch)


def _play(
    start: Start,
    backend: Backend,
    micro_batch: int | None,
    keep: int | None,
    on_micro_batch: Callable[[int], None] | None = None,
) -> Tape:
    recipe, tokens = start.recipe, start.tokens
    tape = Tape([spec.name for spec in parameter_table(recipe.model)], keep)
    ops = traced(backend.ops, tape)
    parts = list(micro_batches(tokens, recipe))
    if micro_batch is not None and not 0 <= micro_batch < len(parts):
        raise UsageError(f"micro-batch {micro_batch} is outside 0..{len(parts) - 1}")
    targets = tokens.shape[0] * (tokens.shape[1] - 1)
    state = backend.place(start.state)

    def one() -> None:
        backend.reset()
        run = traced_gradients(state, targets, recipe, ops, tape, micro_batch or 0)
        if micro_batch is not None:
            run(parts[micro_batch])
            ops.check_finite({})  # what went wrong on a device is only told here
        else:
            step(state, tokens, recipe, ops, gradients=run, on_micro_batch=on_micro_batch)

    backend.on_device(one)
    return tape


def _trace(start: Start, backend: Backend, tape: Tape, micro_batch: int | None) -> Trace:
    count = start.recipe.batch.micro_batches
    return Trace(
        run_id=start.run_id,
        step=start.step,
        recipe=start.recipe.digest(),
        numerics=start.recipe.numerics.version,
        state_before=start.root,
        batch=start.batch,
        micro_batches=tuple(range(count)) if micro_batch is None else (micro_batch,),
        whole=micro_batch is None,
        backend=backend.ops.name,
        ops=tuple(tape.ops),
    )


@dataclass(frozen=True)
class Parting:
    """How two traces of a step compare.

    `fields` are the facts before the first op that differ: start state, batch, recipe. `number` is the first op that
    does, None if none does; `left` and `right` are that op in either trace, None where one has ended; `outputs` says
    which of its outputs differ. `compared` ops have their counterpart, `differing` of those differ. `tensors` are
    the outputs themselves side by side, where both could be made here.
    """

    fields: tuple[tuple[str, str, str], ...]
    number: int | None
    left: TracedOp | None
    right: TracedOp | None
    outputs: tuple[int, ...]
    compared: int
    differing: int
    before: TracedOp | None = None
    tensors: tuple[TensorDifference, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.fields and self.number is None

    def describe(self) -> str:
        """The first departure in words."""
        if self.fields:
            return f"the traces begin from another {', another '.join(name for name, _, _ in self.fields)}"
        if self.number is None:
            return f"all {self.compared} ops gave the same"
        if self.left is None or self.right is None:
            return f"one trace ends after {self.number} ops"
        if self.left.name != self.right.name:
            return f"op {self.number} is another: {self.left.describe()} against {self.right.describe()}"
        return f"op {self.number} is the first to give something else: {self.left.describe()}"

    def to_dict(self) -> dict[str, object]:
        """The comparison as JSON values."""
        return {
            "equal": self.equal,
            "fields": [{"field": name, "left": a, "right": b} for name, a, b in self.fields],
            "op": self.number,
            "left": self.left.to_value() if self.left else None,
            "right": self.right.to_value() if self.right else None,
            "outputs": list(self.outputs),
            "before": self.before.describe() if self.before else "",
            "compared": self.compared,
            "differing": self.differing,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "message": self.describe(),
        }


def compare(left: Trace, right: Trace) -> Parting:
    """The first op at which two traces of one step part. Where one is of fewer micro-batches, only those are compared.

    UsageError: they are of different steps, or have no micro-batch in common.
    """
    if (left.run_id, left.step) != (right.run_id, right.step):
        raise UsageError(
            f"the traces are of different steps: step {left.step} of run {left.run_id}, "
            f"step {right.step} of run {right.run_id}"
        )
    mine, theirs = _common(left, right)
    pairs = list(zip(mine, theirs, strict=False))
    different = [number for number, (a, b) in enumerate(pairs) if a != b]
    number = different[0] if different else (len(pairs) if len(mine) != len(theirs) else None)
    a, b = (ops[number] if number is not None and number < len(ops) else None for ops in (mine, theirs))
    outputs: tuple[int, ...] = ()
    if a is not None and b is not None and a.name == b.name:
        outputs = tuple(i for i, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False)) if x != y)
    facts = (("start state", "state_before"), ("batch", "batch"), ("recipe", "recipe"))
    fields = tuple(
        (words, getattr(left, name), getattr(right, name))
        for words, name in facts
        if getattr(left, name) != getattr(right, name)
    )
    before = mine[number - 1] if number else None
    return Parting(fields, number, a, b, outputs, len(pairs), len(different), before)


def _common(left: Trace, right: Trace) -> tuple[list[TracedOp], list[TracedOp]]:
    """The ops of both that belong to what both traced."""
    if (left.micro_batches, left.whole) == (right.micro_batches, right.whole):
        return list(left.ops), list(right.ops)
    shared = set(left.micro_batches) & set(right.micro_batches)
    if not shared:
        raise UsageError("the traces have no micro-batch in common")
    mine, theirs = ([op for op in trace.ops if op.micro_batch in shared] for trace in (left, right))
    return mine, theirs


def compare_backends(start: Start, backends: tuple[Backend, Backend], micro_batch: int | None = None) -> Parting:
    """The first op at which two back ends part, with the elements of its outputs that differ. Raises as `record`."""
    traces = [record(start, backend, micro_batch=micro_batch) for backend in backends]
    found = compare(*traces)
    if found.number is None or found.left is None or found.right is None or found.left.name != found.right.name:
        return found
    kept = [_kept(start, backend, micro_batch, found.number) for backend in backends]
    tensors = (
        compare_tensors(f"{found.left.op} output {i}", found.left.place, kept[0][i], kept[1][i])
        for i in found.outputs
        if i < len(kept[0]) and i < len(kept[1])
    )
    return Parting(**{**vars(found), "tensors": tuple(tensor for tensor in tensors if tensor)})


def _kept(start: Start, backend: Backend, micro_batch: int | None, number: int) -> list[Array]:
    arrays = _play(start, backend, micro_batch, number).kept
    held = State(0, {str(i): array for i, array in enumerate(arrays)}, {}, {})
    return list(backend.host(held).params.values())
