"""The repetition before a mismatch: nothing that the first replay used is used again."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import MachineFault
from auditkit.model.params import parameter_table
from auditkit.model.plan import Plan
from auditkit.numerics import attention, reference
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay.backend import Backend
from auditkit.replay.confirm import require_same
from auditkit.replay.layout import Layout
from auditkit.replay.memory import piece_bytes
from auditkit.replay.outcome import Broken, Fingerprint, Stopped, replay
from auditkit.replay.planned import Planned
from auditkit.replay.run import Run, open_run
from auditkit.verdict import Verdict
from tests.faults import memory
from tests.faults.campaign import quickly
from tests.faults.memory import Faulty
from tests.replay.make_run import Parts, change_leaf, flip_state, publish, rows_of


@pytest.mark.parametrize("step", [4, 6])
@pytest.mark.parametrize("place", ["parameter", "tokens", "record", "recipe"])
def test_one_flip_of_an_input_is_no_mismatch(honest: Path, place: str, step: int) -> None:
    """Step 6 is reached from state 5, so its start state is computed here."""
    seen = set()
    for seed in range(6):
        backend = memory.backend(place, random.Random(f"{place} {seed}"), 1, step)
        with quickly():
            seen.add(auditkit_verdict(honest, step, backend))
    assert seen <= {Verdict.MATCH, Verdict.MACHINE_FAULT, Verdict.BAD_ARTIFACT}
    assert Verdict.MACHINE_FAULT in seen


def auditkit_verdict(folder: Path, step: int, backend: Backend) -> Verdict:
    from auditkit.replay.verify import verify

    return verify(folder, step=step, backend=backend).verdict


def test_tokens_that_change_in_memory_are_a_machine_fault(honest: Path) -> None:
    def hurt(state: Any, tokens: Any) -> None:
        if not done:
            done.append(True)
            memory.flip(tokens, random.Random(1))

    done: list[bool] = []
    report = auditkit.verify(honest, step=4, backend=Faulty(reference, 1, "faulty", hurt=hurt))
    assert report.verdict is Verdict.MACHINE_FAULT


@pytest.mark.parametrize("micro_batches", [None, "all"])
def test_a_flip_that_makes_a_lie_come_true_is_no_match(parts: Parts, tmp_path: Path, micro_batches: str | None) -> None:
    """The very bit of the record flips in memory in which it is false."""
    lie, truth = parts.copy(), rows_of(parts)[4].loss
    lie.rows = rows_of(lie)
    lie.rows[4] = replace(lie.rows[4], loss=truth ^ 1)
    folder = publish(lie, tmp_path / "lie")

    def hurt(state: Any, tokens: Any) -> None:
        object.__setattr__(memory.OPENED[-1].record(4), "loss", truth)

    assert verify_step_4(folder, hurt, micro_batches) is Verdict.MACHINE_FAULT
    assert verify_step_4(folder, lambda state, tokens: None, micro_batches) is Verdict.MISMATCH


@pytest.mark.parametrize("micro_batches", ["1", "all"])
@pytest.mark.parametrize("lying", [False, True])
def test_a_flip_of_a_leaf_is_neither_match_nor_mismatch(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batches: str, lying: bool
) -> None:
    """Of an honest leaf, and of one that is false in the very bit that flips."""
    lie, truth = parts.copy(), parts.results[4].leaves[1].loss_sum
    if lying:
        lie.results[4] = change_leaf(parts.results[4], 1, loss_sum=truth ^ 1)
    folder, read, held = publish(lie, tmp_path / "run"), Run.leaves, []

    def leaves(self: Run, number: int) -> Any:
        held.append(read(self, number))
        return held[-1]

    def hurt(state: Any, tokens: Any) -> None:
        if len(held) == 1:
            object.__setattr__(held[0][1], "loss_sum", held[0][1].loss_sum ^ 1)

    monkeypatch.setattr(Run, "leaves", leaves)
    assert verify_step_4(folder, hurt, micro_batches) is Verdict.MACHINE_FAULT


def verify_step_4(folder: Path, hurt: Any, micro_batches: str | None) -> Verdict:
    from auditkit.replay.verify import verify

    memory.OPENED.clear()
    with quickly():
        return verify(
            folder, step=4, micro_batches=micro_batches, backend=Faulty(reference, 1, "faulty", hurt=hurt)
        ).verdict


def test_the_second_replay_gets_arrays_of_its_own(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    lie.states[6] = lie.states[5]
    folder = publish(lie, tmp_path / "lie")
    seen: list[tuple[int, int]] = []

    def note(state: Any, tokens: Any) -> None:
        seen.append((state.params["model.norm.weight"].ctypes.data, tokens.ctypes.data))
        kept.append((state, tokens))  # or the memory may be used again

    kept: list[Any] = []
    report = auditkit.verify(folder, step=4, backend=Faulty(reference, 1, "noting", hurt=note))
    assert report.verdict is Verdict.MISMATCH
    (first, first_tokens), (second, second_tokens) = seen[:2]
    assert first != second and first_tokens != second_tokens


def test_a_table_that_is_kept_between_steps_is_made_anew(honest: Path) -> None:
    """The mask of the attention stays from step to step: a bit flipped in it would spoil both replays alike."""
    spans = attention.spans

    def hurt(state: Any, tokens: Any) -> None:
        if done:
            return
        done.append(True)
        for span in spans(2, 16, 0, attention._SPAN):
            for array in memory.arrays_in(span):
                array.flags.writeable = True
                array[...] = 0

    done: list[bool] = []
    auditkit.verify(honest, step=4)
    report = auditkit.verify(honest, step=4, backend=Faulty(reference, 1, "faulty", hurt=hurt))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert auditkit.verify(honest, step=4).verdict is Verdict.MATCH


def test_a_run_read_afresh_is_the_same_or_a_machine_fault(honest: Path) -> None:
    with open_run(str(honest)) as run:
        fresh = run.afresh()
        assert fresh.record(4) == run.record(4) and fresh.record(4) is not run.record(4)
        run._bytes = run._bytes.replace(b'"tiny"', b'"tinz"')
        with pytest.raises(MachineFault, match="the manifest changed in memory"):
            run.afresh()


def test_an_error_that_comes_once_is_a_machine_fault_and_one_that_comes_twice_a_bug(honest: Path) -> None:
    class Breaks(Backend):
        times = 1

        def step(self, *arguments: Any, **options: Any) -> Any:
            if type(self).times:
                type(self).times -= 1
                raise IndexError("index 70000 is out of bounds")
            return super().step(*arguments, **options)

    report = auditkit.verify(honest, step=4, backend=Breaks(reference, 1, "breaks"))
    assert report.verdict is Verdict.MACHINE_FAULT
    assert "IndexError: index 70000" in report.steps[0].message
    Breaks.times = 2
    with pytest.raises(IndexError):
        auditkit.verify(honest, step=4, backend=Breaks(reference, 1, "breaks"))


def test_seed_and_state_0_are_compared_once_more(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation that goes wrong once accuses nobody."""
    from auditkit.replay import start

    make, calls = start.initial_state, []

    def once(recipe: Any) -> Any:
        state = make(recipe)
        calls.append(1)
        if len(calls) == 1:
            state.params["model.norm.weight"][0] = np.float32(1.5)
        return state

    monkeypatch.setattr(start, "initial_state", once)
    report = auditkit.verify(honest, step=0)
    assert report.verdict is Verdict.MACHINE_FAULT


def test_the_same_ops_must_end_in_the_same_place() -> None:
    """Other ops need not: they look for values that are not finite elsewhere."""
    here, there = (Stopped(NonFinite(f"non-finite value in {op}"), "numpy").fingerprint for op in ("dot", "add"))
    elsewhere = Stopped(NonFinite("non-finite value in quantise"), "native").fingerprint
    require_same(here, here)
    require_same(elsewhere, here)
    for other in (
        there,
        Fingerprint("root", (), "state root"),
        Broken(ValueError("non-finite value in dot")).fingerprint,
    ):
        with pytest.raises(MachineFault, match="two replays of the same step differ"):
            require_same(here, other)


def test_a_long_step_may_stop_elsewhere_the_next_time(parts: Parts, tmp_path: Path, monkeypatch: Any) -> None:
    """A first replay goes on from what was kept, in other groups of micro-batches, and says when it is time to keep."""
    plan, inner = Plan(True, group=2), Backend(reference, 1, "cpu")
    shapes = {spec.name: spec.shape for spec in parameter_table(parts.recipe.model)}
    layout = Layout(plan, piece_bytes(parts.recipe, plan, False))
    backend = Planned(reference, 1, "cpu", inner=inner, layout=layout, shapes=shapes, cache=lambda: tmp_path)
    state = parts.states[4]
    wrong = replace(state, params={**state.params, "model.norm.weight": np.full(16, 3e38, np.float32)})
    elsewhere = Stopped(NonFinite("elsewhere"), reference.name).fingerprint
    for long in (False, True):
        monkeypatch.setattr("auditkit.replay.planned.is_long", lambda recipe, long=long: long)
        found = replay(backend, wrong, parts.batches[4], parts.recipe)
        assert isinstance(found, Stopped) and found.fingerprint.agrees(elsewhere) == long
