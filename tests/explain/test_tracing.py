"""Traces of a step: made, compared, and made by two back ends in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MismatchError, UsageError
from auditkit.explain.subject import Start, reach
from auditkit.explain.tracing import compare, compare_backends, record
from auditkit.formats.digest import content_digest
from auditkit.formats.trace import Trace
from auditkit.kernels.backend import CudaOps
from auditkit.numerics import reference
from auditkit.replay.backend import Backend, CudaBackend, choose
from auditkit.replay.run import open_run
from auditkit.store.progress import Silent
from tests.kernels.on_devices import DEVICES
from tests.replay import make_run
from tests.replay.conftest import honest, parts

__all__ = ["honest", "parts"]


@pytest.fixture(scope="module")
def start(honest: Path) -> Iterator[Start]:
    with open_run(str(honest)) as run:
        yield reach(run, 6, choose("numpy", 1), Silent())


@pytest.fixture(scope="module")
def trace(start: Start) -> Trace:
    return record(start, choose("numpy", 1))


def spoilt(name: str, call: int | None = None) -> Backend:
    """A back end of which one op gives one element otherwise, in one call or (None) in each."""
    count = iter(range(1 << 20))

    def wrong(*args: Any, **options: Any) -> Any:
        made = getattr(reference, name)(*args, **options)
        if call in (next(count), None):
            made.reshape(-1)[5] += np.float32(1)
        return made

    named = {key: getattr(reference, key) for key in (*reference.__all__,)}
    return Backend(SimpleNamespace(**{**named, name: wrong}), 1, "spoilt")  # type: ignore[arg-type]


def test_a_trace_is_the_same_each_time_and_prints_itself(start: Start, trace: Trace) -> None:
    assert record(start, choose("numpy", 2)) == trace
    assert Trace.parse(trace.encode()) == trace
    assert trace.whole and trace.micro_batches == (0, 1) and trace.backend == "numpy"
    assert compare(trace, trace).equal


def test_one_micro_batch_is_compared_with_the_same_of_all(start: Start, trace: Trace) -> None:
    one = record(start, choose("numpy", 1), micro_batch=1)
    assert one.ops == tuple(op for op in trace.ops if op.micro_batch == 1)
    found = compare(one, trace)
    assert found.equal and found.compared == len(one.ops)
    with pytest.raises(UsageError, match="micro-batch 2 is outside 0..1"):
        record(start, choose("numpy", 1), micro_batch=2)
    with pytest.raises(UsageError, match="no micro-batch in common"):
        compare(one, record(start, choose("numpy", 1), micro_batch=0))


def test_the_only_micro_batch_is_compared_with_the_whole_step(start: Start) -> None:
    """Where there is one micro-batch, its trace is not that of the step, which has the sum and the update too."""
    batch = replace(start.recipe.batch, micro_batch_sequences=start.recipe.batch.sequences)
    alone = replace(start, recipe=replace(start.recipe, batch=batch))
    whole, one = record(alone, choose("numpy", 1)), record(alone, choose("numpy", 1), micro_batch=0)
    assert whole.micro_batches == one.micro_batches == (0,) and len(whole.ops) > len(one.ops)
    found = compare(whole, one)
    assert found.equal and found.compared == len(one.ops)


def test_the_first_op_that_parts_is_named(start: Start, trace: Trace) -> None:
    ours = [i for i, op in enumerate(trace.ops) if op.op == "rope_forward"]
    found = compare(record(start, spoilt("rope_forward", 3)), trace)
    assert found.number == ours[3] and found.outputs == (0,)
    assert found.describe().endswith("micro-batch 0, forward, model.layers.1.self_attn.k: rope_forward")
    assert found.before == trace.ops[ours[3] - 1]
    assert 0 < found.differing < found.compared == len(trace.ops)


def test_traces_that_are_not_of_one_step(trace: Trace) -> None:
    with pytest.raises(UsageError, match="different steps: step 5 of run"):
        compare(replace(trace, step=5), trace)
    other = compare(replace(trace, state_before=content_digest(b"")), trace)
    assert not other.equal and other.describe() == "the traces begin from another start state"
    short = compare(replace(trace, ops=trace.ops[:-1]), trace)
    assert short.describe() == f"one trace ends after {len(trace.ops) - 1} ops"
    swapped = compare(replace(trace, ops=(*trace.ops[:3], trace.ops[4], trace.ops[3], *trace.ops[5:])), trace)
    assert swapped.describe().startswith("op 3 is another: micro-batch 0, forward")


def test_two_back_ends_and_the_elements_that_differ(start: Start) -> None:
    found = compare_backends(start, (choose("numpy", 1), spoilt("merge_heads")))
    (tensor,) = found.tensors
    assert (tensor.name, tensor.role) == ("merge_heads output 0", "model.layers.0.self_attn")
    assert (tensor.differing, tensor.index) == (1, (0, 5))
    assert compare_backends(start, (choose("numpy", 1), choose("numpy", 2))).equal


@pytest.mark.parametrize("make", DEVICES)
def test_the_reference_and_the_kernels_give_one_trace(start: Start, make: Any) -> None:
    cuda = CudaBackend(CudaOps(make()), 1, "cuda")
    found = compare_backends(start, (choose("numpy", 1), cuda), micro_batch=1)
    assert found.equal, found.describe()


def test_a_step_behind_one_that_does_not_match_is_not_reached(parts: make_run.Parts, tmp_path: Path) -> None:
    lie = make_run.publish(make_run.train_with(parts, wrong_step=5), tmp_path / "lie")
    with open_run(str(lie)) as run, pytest.raises(MismatchError, match="step 5 on the way does not match") as caught:
        reach(run, 7, choose("numpy", 1), Silent())
    assert caught.value.hint == "auditkit explain --step 5"
