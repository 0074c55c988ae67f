"""Whether a step's bits are the reference's: on a narrow model whole, on the full one between kernel variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.kernels import attention_pipe, exact_dot_choice
from auditkit.kernels.exact_dot_choice import Size, Way, choose
from auditkit.measure.models import reduced
from auditkit.measure.subject import Subject, tokens_of
from auditkit.model.state import State, initial_state, state_digests
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import Backend, CudaBackend

MICRO_BATCHES = 4


@dataclass(frozen=True)
class Compared:
    """One comparison: what, whether all bits are the same, and what was seen."""

    what: str
    same: bool
    said: str


def against_reference(recipe: Recipe, backend: Backend, threads: int) -> Compared:
    """A step of four micro-batches of the narrow model on the back end and by the reference: leaves, norm, state."""
    narrow = reduced(recipe)
    tokens, start = tokens_of(narrow), initial_state(narrow)
    began = time.perf_counter()
    want_state, want = step(start, tokens, narrow, reference, threads=threads)
    want_root = state_digests(want_state, narrow).root(want_state.step)
    reference_seconds = time.perf_counter() - began
    got_state, got = backend.step(backend.place(start), tokens, narrow)
    got_root = backend.on_device(lambda: state_digests(got_state, narrow, backend.ops).root(got_state.step))
    model = narrow.model
    said = (
        f"width {model.hidden_size}, {model.num_layers} layers, {narrow.batch.micro_batches} micro-batches of"
        f" {narrow.batch.micro_batch_sequences} x {model.context_length} tokens; reference {reference_seconds:.1f} s;"
        f" state {got_root[:16]}, expected {want_root[:16]}"
    )
    same = got_root == want_root and got.leaves == want.leaves and replace(got, work="") == replace(want, work="")
    return Compared("narrow model, the whole step against the reference", same, said)


def between_variants(subject: Subject, state: State, count: int = MICRO_BATCHES) -> Iterator[Compared]:
    """The leaves of the first micro-batches of the full model under other kernels than those that are chosen."""
    recipe = subject.part(count)
    tokens = tokens_of(recipe)
    first: tuple[MicroBatchLeaf, ...] | None = None
    for name, variant in VARIANTS.items():
        began = time.perf_counter()
        with variant(subject.inner):
            leaves = subject.inner.part(state, tokens, range(count), recipe).leaves
        seconds = time.perf_counter() - began
        first = leaves if first is None else first
        said = f"{count} micro-batches in {seconds:.1f} s; first gradient {leaves[0].gradient[:16]}"
        yield Compared(f"full width, {name}", leaves == first, said)


@contextmanager
def as_chosen(backend: Backend) -> Iterator[None]:
    """The kernels that the program itself takes."""
    yield


@contextmanager
def replaced(module: Any, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Another function under this name of a module."""
    kept = getattr(module, name)
    setattr(module, name, instead)
    try:
        yield
    finally:
        setattr(module, name, kept)


def chosen_by(instead: Callable[[str, int, Size], Way]) -> AbstractContextManager[None]:
    """Another choice of kernels in every product."""
    return replaced(exact_dot_choice, "choose", instead)


@contextmanager
def without_wgmma(backend: Backend) -> Iterator[None]:
    """No asynchronous tensor cores anywhere: the choice of sm_80, and scores of attention in chunks."""
    products = chosen_by(lambda architecture, multiprocessors, size: choose("80", multiprocessors, size))
    with products, replaced(attention_pipe, "fits", lambda *given: False):
        yield


def small_tiles(backend: Backend) -> AbstractContextManager[None]:
    """The smallest tiles in every product."""
    return chosen_by(lambda architecture, multiprocessors, size: Way("small"))


VARIANTS: dict[str, Any] = {"kernels as chosen": as_chosen, "without wgmma": without_wgmma, "small tiles": small_tiles}


def on_card(backend: Backend) -> bool:
    """Whether there are variants at all."""
    return isinstance(backend, CudaBackend)
