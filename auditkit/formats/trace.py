"""A trace of one step: the digest of what each op of it gave, in order (docs/formats.md, "Trace").

Whoever takes the step can write one, on any back end; two of them tell the first op at which two programs part. It
holds digests only, so its size does not depend on that of the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import Value
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.paths import check_segment

FORMAT = "auditkit/trace/v1"
PASSES = ("forward", "backward", "weights", "sum", "update")
IN_MICRO_BATCH = PASSES[:3]
MAX_OUTPUTS = 4  # arrays that one op gives


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One op: in which pass of which micro-batch (None: of the whole step), at which layer or weight, and its outputs.

    Pass `weights` is the part of the backward pass that makes the gradient of a weight.
    """

    stage: str
    micro_batch: int | None
    place: str
    op: str
    outputs: tuple[Digest, ...]

    @property
    def name(self) -> tuple[str, int | None, str, str]:
        """Everything but the outputs."""
        return self.stage, self.micro_batch, self.place, self.op

    def describe(self) -> str:
        """The op in words: `micro-batch 0, forward, model.layers.0.mlp: swiglu_forward`."""
        where = "" if self.micro_batch is None else f"micro-batch {self.micro_batch}, "
        return f"{where}{self.stage}, {self.place}: {self.op}"

    def to_value(self) -> dict[str, Value]:
        """The JSON object; `micro_batch` is left out where there is none."""
        inside: dict[str, Value] = {} if self.micro_batch is None else {"micro_batch": self.micro_batch}
        return {**inside, "at": self.place, "op": self.op, "out": list(self.outputs), "pass": self.stage}


@dataclass(frozen=True, slots=True)
class Trace:
    """The ops of a step in the order in which they were called.

    run_id, step         of what run, which step
    recipe               digest of the recipe of that step
    state_before, batch  what the step began from: the roots that its record names, computed from what was used
    micro_batches        numbers of those that were traced, ascending
    whole                whether all were, and with them the sum and the update
    backend              the name of the ops
    """

    run_id: Digest
    step: int
    recipe: Digest
    numerics: int
    state_before: Digest
    batch: Digest
    micro_batches: tuple[int, ...]
    whole: bool
    backend: str
    ops: tuple[TracedOp, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The trace of canonical JSON. Raises BadArtifact naming the field, Unsupported for a later version."""
        fields = Fields(canonical.loads(data, what="trace", limit=LIMITS.trace_bytes), "trace")
        fields.format(FORMAT)
        trace = cls(
            run_id=fields.digest("run"),
            step=fields.integer("step", 0, LIMITS.steps, "steps"),
            recipe=fields.digest("recipe"),
            numerics=fields.integer("numerics", 1, 1 << 20),
            state_before=fields.digest("state_before"),
            batch=fields.digest("batch"),
            micro_batches=_numbers(fields),
            whole=fields.flag("whole"),
            backend=check_segment(fields.raw("backend"), fields.name("backend")),
            ops=tuple(_op(row) for row in fields.rows("ops", 1, LIMITS.trace_ops)),
        )
        fields.done()
        _check_places(trace)
        return trace

    def encode(self) -> bytes:
        """Canonical JSON."""
        value = {
            "backend": self.backend,
            "batch": self.batch,
            "format": FORMAT,
            "micro_batches": list(self.micro_batches),
            "numerics": self.numerics,
            "ops": [op.to_value() for op in self.ops],
            "recipe": self.recipe,
            "run": self.run_id,
            "state_before": self.state_before,
            "step": self.step,
            "whole": self.whole,
        }
        return canonical.dumps(value, what="trace")


def _numbers(fields: Fields) -> tuple[int, ...]:
    items = fields.items("micro_batches", 1, LIMITS.micro_batches_per_step)
    numbers = tuple(item if type(item) is int else -1 for item in items)
    if any(not 0 <= number < LIMITS.micro_batches_per_step for number in numbers) or list(numbers) != sorted(
        set(numbers)
    ):
        raise BadArtifact(f"{fields.name('micro_batches')}: not numbers of micro-batches, each once and ascending")
    return numbers


def _op(fields: Fields) -> TracedOp:
    stage = fields.choice("pass", *PASSES)
    inside = stage in IN_MICRO_BATCH
    number = fields.integer("micro_batch", 0, LIMITS.micro_batches_per_step - 1) if inside else None
    items = fields.items("out", 1, MAX_OUTPUTS)
    found = TracedOp(
        stage=stage,
        micro_batch=number,
        place=check_segment(fields.raw("at"), fields.name("at")),
        op=check_segment(fields.raw("op"), fields.name("op")),
        outputs=tuple(check_digest(item, f"{fields.name('out')}[{i}]") for i, item in enumerate(items)),
    )
    fields.done()
    return found


def _check_places(trace: Trace) -> None:
    """Every op belongs to what the trace says it traced."""
    known = set(trace.micro_batches)
    if trace.whole and trace.micro_batches != tuple(range(len(trace.micro_batches))):
        raise BadArtifact("trace.micro_batches: a whole step has all of them")
    for number, op in enumerate(trace.ops):
        if op.micro_batch is not None and op.micro_batch not in known:
            raise BadArtifact(f"trace.ops[{number}]: micro-batch {op.micro_batch} is not one of those that were traced")
        if op.micro_batch is None and not trace.whole:
            raise BadArtifact(f"trace.ops[{number}]: pass {op.stage} in a trace that is not of the whole step")
