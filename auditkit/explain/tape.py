"""Recording what each op of a step gives: ops and network that write to a tape and compute as the plain ones do.

The wrapped ops hand every argument and result through untouched, and the network is the model's own with a note of
where it is; only digests are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, cast

import numpy as np

from auditkit.errors import Unsupported
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.trace import TracedOp
from auditkit.model.composed import ComposedOps
from auditkit.model.network import Network, prepare
from auditkit.model.ops import Ops
from auditkit.model.params import EMBED, HEAD, parameter_table
from auditkit.model.state import State
from auditkit.model.step import Gradients, GradSum
from auditkit.numerics.adamw import AdamWScalars
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.lists import Each

# What of an op's result is an array of the specification; rows, caches and tables are a back end's own.
_ARRAYS: Mapping[str, Callable[[Any], Sequence[Any]]] = {
    **dict.fromkeys(
        ("dot", "to_fixed", "add", "split_heads", "merge_heads", "rope_forward", "rope_backward", "embedding_forward",
         "embedding_backward"),
        lambda result: (result,),
    ),
    **dict.fromkeys(("rms_norm_forward", "attention_forward", "swiglu_forward"), lambda result: result[:1]),
    **dict.fromkeys(("rms_norm_backward", "attention_backward", "swiglu_backward", "cross_entropy"), tuple),
}  # fmt: skip
# Ops over lists of tensors: their results are noted tensor by tensor.
_LISTS: Mapping[str, Callable[[Any], Sequence[Sequence[Any]]]] = {
    "from_fixed": lambda result: [(tensor,) for tensor in result],
    "add_sums": lambda result: [(tensor,) for tensor in result],
    "adamw": lambda result: list(zip(*result, strict=True)),
}
_SCALARS = ("squares", "norm_from_squares", "clip_factor", "learning_rate", "adamw_scalars", "mean_loss")
_SUM_OPS = ("from_fixed", "add_sums", "add")
STEP = "step"  # the place of what belongs to no tensor


class Tape:
    """The ops so far. `keep` is the number of an op whose outputs are kept themselves, in `kept`."""

    def __init__(self, names: Sequence[str], keep: int | None = None) -> None:
        self.ops: list[TracedOp] = []
        self.kept: list[Any] = []
        self.stage, self.place = "sum", STEP
        self.micro_batch: int | None = None
        self.weights: dict[int, str] = {}  # the rows of a weight, by identity, and its name
        self._names = tuple(names)  # of the parameters, in their order
        self._keep = keep

    @contextmanager
    def at(self, stage: str, place: str) -> Iterator[None]:
        """What is noted meanwhile belongs to this place."""
        before = self.stage, self.place
        self.stage, self.place = stage, place.rstrip(".")
        try:
            yield
        finally:
            self.stage, self.place = before

    @contextmanager
    def inside(self, micro_batch: int) -> Iterator[None]:
        """What is noted meanwhile belongs to this micro-batch."""
        self.micro_batch = micro_batch
        try:
            with self.at("forward", EMBED):
                yield
        finally:
            self.micro_batch = None

    def note(self, op: str, outputs: Sequence[Digest], arrays: Sequence[Any] = (), place: str = "") -> None:
        """Add an op. Unsupported: more than a trace may hold."""
        if len(self.ops) == LIMITS.trace_ops:
            raise Unsupported(
                f"a trace of this step has more than {LIMITS.trace_ops:,} ops", hint="--micro-batch I traces one of it"
            )
        if len(self.ops) == self._keep:
            self.kept = list(arrays)
        stage = self.stage
        if self.micro_batch is None:
            stage = "sum" if op in _SUM_OPS else "update"
        elif op.endswith("_backward") and stage == "forward":
            stage = "backward"
        self.ops.append(TracedOp(stage, self.micro_batch, place or self.place, op, tuple(outputs)))

    def names(self, count: int) -> Sequence[str]:
        """What the tensors of a list of `count` are called."""
        return self._names if count == len(self._names) else [self.place] * count


def traced(ops: Ops, tape: Tape) -> Ops:
    """The ops with a note of every result."""
    return cast(Ops, _TracedOps(ops, tape))


class _TracedOps(ComposedOps):
    """Hands everything through; methods of the three tables above are noted, as are the parts of combined ops."""

    def __init__(self, ops: Ops, tape: Tape) -> None:
        self._ops, self._tape = ops, tape

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._ops, name)
        if name in _ARRAYS:
            return self._noting(name, plain, self._arrays)
        if name in _LISTS:
            return self._noting(name, plain, self._lists)
        return self._noting(name, plain, self._scalars) if name in _SCALARS else plain

    def add_terms(
        self,
        totals: Sequence[I64],
        terms: Sequence[F32 | I64],
        unit: int,
        each: Each = map,
        *,
        out: Sequence[I64] | None = None,
    ) -> tuple[list[I64], list[Digest]]:
        """Noted as `add_sums`: terms that were float32 would have been noted as `to_fixed` (TracedNetwork)."""
        sums, found = self._ops.add_terms(totals, terms, unit, each, out=out)
        if totals:
            self._lists("add_sums", (), sums)
        return sums, found

    @staticmethod
    def _noting(name: str, plain: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            result = plain(*args, **options)
            note(name, args, result)
            return result

        return noted

    def _arrays(self, name: str, args: Sequence[Any], result: Any) -> None:
        tape, arrays = self._tape, list(_ARRAYS[name](result))
        weight = tape.weights.get(id(args[1]), "") if name == "dot" else ""
        tape.note(name, self._ops.digests(arrays), arrays, weight)
        if name == "cross_entropy":  # everything after it in this micro-batch leads back
            tape.stage = "backward"

    def _lists(self, name: str, args: Sequence[Any], result: Any) -> None:
        groups = _LISTS[name](result)
        for place, arrays in zip(self._tape.names(len(groups)), groups, strict=True):
            self._tape.note(name, self._ops.digests(list(arrays)), arrays, place)

    def _scalars(self, name: str, args: Sequence[Any], result: Any) -> None:
        self._tape.note(name, (content_digest(_scalar_bytes(result)),), (), STEP)


def _scalar_bytes(value: Any) -> bytes:
    """A scalar as the format has it: binary32 and binary64 little-endian, an integer of 24 bytes, two's complement."""
    if isinstance(value, AdamWScalars):
        return b"".join(_scalar_bytes(getattr(value, name)) for name in AdamWScalars.__dataclass_fields__)
    if isinstance(value, np.float32):
        return struct.pack("<f", value)
    if isinstance(value, float):
        return struct.pack("<d", value)
    return int(value).to_bytes(24, "little", signed=True)


class TracedNetwork(Network):
    """The network, telling the tape where it is."""

    tape: Tape

    def _head(self, x: F32, targets: IntArray, total_targets: int) -> Any:
        with self.tape.at("forward", EMBED if self.model.tied_head else HEAD):
            return super()._head(x, targets, total_targets)

    def layer_forward(self, x: F32, prefix: str, batch: int) -> Any:
        """As the network's own."""
        with self.tape.at("forward", prefix):
            return super().layer_forward(x, prefix, batch)

    def layer_backward(self, dx: F32, prefix: str, cache: Any) -> Any:
        """As the network's own."""
        with self.tape.at("backward", prefix):
            return super().layer_backward(dx, prefix, cache)

    def _attention_forward(self, rows: Any, kept: Any, prefix: str, batch: int) -> Any:
        with self.tape.at("forward", prefix):
            return super()._attention_forward(rows, kept, prefix, batch)

    def _attention_backward(self, dy: F32, prefix: str, cache: Any) -> Any:
        """As the network's own, with the sum of its gradients, which belongs here in a trace."""
        with self.tape.at("backward", prefix):
            return [reduce(self.ops.add, super()._attention_backward(dy, prefix, cache))]

    def _heads(self, rows: Any, prefix: str, batch: int, heads: int) -> Any:
        with self.tape.at("forward", prefix):
            return super()._heads(rows, prefix, batch, heads)

    def _heads_backward(self, dx: F32, prefix: str, cache: Any) -> Any:
        with self.tape.at("backward", prefix):
            return super()._heads_backward(dx, prefix, cache)

    def _gate_and_up(self, rows: Any, prefix: str) -> Any:
        with self.tape.at("forward", prefix):
            return super()._gate_and_up(rows, prefix)

    def _mlp_inner(self, gate: F32, up: F32, kept: Any, prefix: str) -> Any:
        with self.tape.at("forward", prefix):
            return super()._mlp_inner(gate, up, kept, prefix)

    def _mlp_backward(self, dout: F32, prefix: str, cache: Any) -> Any:
        with self.tape.at("backward", prefix):
            return [reduce(self.ops.add, super()._mlp_backward(dout, prefix, cache))]

    def _weight_gradient(self, weight: str, dy_columns: Any, x_columns: Any) -> None:
        with self.tape.at("weights", weight):
            super()._weight_gradient(weight, dy_columns, x_columns)

    def norm(self, x: F32, weight: str) -> Any:
        """As the network's own."""
        with self.tape.at("forward", weight):
            return super().norm(x, weight)

    def norm_keep(self, x: F32, weight: str, bits: int) -> Any:
        """As the network's own."""
        with self.tape.at("forward", weight):
            return super().norm_keep(x, weight, bits)

    def norm_backward(self, dy: F32, weight: str, cache: Any) -> Any:
        """As the network's own."""
        with self.tape.at("backward", weight):
            return super().norm_backward(dy, weight, cache)

    def norm_backward_add(self, dys: Sequence[F32], weight: str, cache: Any, residual: F32) -> Any:
        """As the network's own, of one gradient, each part where it belongs."""
        (dy,) = dys
        return self.ops.add(residual, self.norm_backward(dy, weight, cache))


def traced_gradients(
    state: State, total_targets: int, recipe: Recipe, ops: Ops, tape: Tape, first: int = 0
) -> Gradients:
    """`grads` of one micro-batch after the other, from number `first` on, noted on the tape. `ops` are traced ones."""
    prepared = prepare(state.params, recipe, ops)
    tape.weights = {id(rows): name for table in (prepared.rows, prepared.rows_t) for name, rows in table.items()}
    names = [spec.name for spec in parameter_table(recipe.model)]
    numbers = iter(range(first, LIMITS.micro_batches_per_step))

    def run(tokens: IntArray) -> GradSum:
        with tape.inside(next(numbers)):
            network = TracedNetwork(prepared, recipe, ops)
            network.tape = tape
            found, loss_sum = network.gradient(tokens[:, :-1], tokens[:, 1:], total_targets)
        return GradSum({name: found[name] for name in names}, loss_sum)

    return run
