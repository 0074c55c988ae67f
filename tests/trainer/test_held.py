"""A bit that flips in the memory of one process is found in the step that uses it, and never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.formats.record import RecordFile
from auditkit.model.state import State, document, initial_state
from tests.golden.make_training import RECIPES
from tests.trainer import tiny
from trainer import runner
from trainer.state_files import write_state


def flip(state: State, role: str) -> None:
    """One bit of one tensor."""
    getattr(state, role)["model.norm.weight"].view(np.uint32)[3] ^= np.uint32(1 << 9)


@pytest.mark.parametrize("role", ["params", "adam_m", "adam_v"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_flipped_bit_ends_the_run_before_the_step_is_written(
    role: str, moment: str, prepared: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Before the step begins; and after it was computed, while it was in use."""
    step = runner.Backend.step

    def flipping(self: Any, state: State, *more: Any) -> Any:
        if state.step == 10 and moment == "before":
            flip(state, role)
        made = step(self, state, *more)
        if state.step == 10 and moment == "after":
            flip(state, role)
        return made

    with monkeypatch.context() as struck:
        struck.setattr(runner.Backend, "step", flipping)
        assert tiny.run(prepared) == 7
    told = capsys.readouterr().err
    name = {"params": "param"}.get(role, role)
    assert f"error: state 10: tensor {name}/model.norm.weight has changed since it was made, in the memory of " in told
    assert len(RecordFile.parse((prepared / "records.bin").read_bytes()).rows) == 10
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_a_state_that_changes_before_it_is_written_is_not_written(
    prepared: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write = runner.OneProcess.write

    def flipping(self: Any, state: State, *more: Any) -> None:
        if state.step == 12:
            flip(state, "adam_v")
        write(self, state, *more)

    with monkeypatch.context() as struck:
        struck.setattr(runner.OneProcess, "write", flipping)
        assert tiny.run(prepared, "--check-replicas", "0") == 7
    assert "00000012: tensor adam_v/model.norm.weight has changed in memory, or on its way" in capsys.readouterr().err
    assert not (prepared / "states" / "00000012").exists()
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_a_tensor_that_changes_on_its_way_to_the_disk_is_not_written(tmp_path: Path) -> None:
    recipe = next(iter(RECIPES.values()))
    state = initial_state(recipe)
    found = document(state, recipe)
    flip(state, "params")
    with pytest.raises(MachineFault, match=r"tensor param/model\.norm\.weight has changed in memory, or on its way"):
        write_state(tmp_path / "states" / "00000000", state, found)
    assert not (tmp_path / "states" / "00000000").exists()


def test_an_exponent_that_flips_is_no_recipe_that_diverges(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    step = runner.Backend.step

    def flipping(self: Any, state: State, *more: Any) -> Any:
        if state.step == 3:
            state.params["model.norm.weight"][...] = np.float32(3e38)
        return step(self, state, *more)

    monkeypatch.setattr(runner.Backend, "step", flipping)
    assert tiny.run(prepared, "--check-replicas", "1000") == 7
    told = capsys.readouterr().err
    assert "state 3: tensor param/model.norm.weight has changed" in told and "diverges" not in told


@pytest.mark.parametrize(("value", "bound"), [(3e38, 0.0), (40.0, 20.0)])
def test_no_step_is_skipped_for_a_wrong_bit(
    value: float, bound: float, prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Neither one without a result nor one of a large norm, also where this step is not due for a check."""
    with (prepared / "recipe.toml").open("a", encoding="utf-8") as file:
        file.write(f'[divergence]\naction = "skip"\nmax_norm = {bound}\n')
    step = runner.Backend.step
    skipped = []

    def flipping(self: Any, state: State, *more: Any) -> Any:
        if state.step == 3:
            state.params["model.norm.weight"][...] = np.float32(value)
        made = step(self, state, *more)
        skipped.append(made[1].skipped)
        return made

    monkeypatch.setattr(runner.Backend, "step", flipping)
    assert tiny.run(prepared, "--check-replicas", "1000") == 7
    assert "state 3: tensor param/model.norm.weight has changed" in capsys.readouterr().err
    assert skipped[:3] == [""] * 3 and skipped[3] == ("norm" if bound else "no result")
    assert len(RecordFile.parse((prepared / "records.bin").read_bytes()).rows) == 3


def test_the_check_changes_no_bit_and_can_be_off(prepared: Path, finished_once: Path) -> None:
    assert tiny.run(prepared, "--check-replicas", "0") == 0
    tiny.assert_same_run(prepared, finished_once)
