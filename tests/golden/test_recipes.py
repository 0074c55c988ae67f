"""A CPU computes records that a GPU made: the first and the last steps of each recipe, and all of one.

The files are made by tests/golden/make_recipes.py on a card; tests/kernels/test_recipes_gpu.py replays all steps there.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.formats.bits import f32_from_bits
from auditkit.formats.record import RecordRow
from auditkit.model.state import State, document, initial_state
from auditkit.numerics import lists, operands, reference
from auditkit.replay.backend import choose
from tests.golden import make_recipes
from tests.golden.make_recipes import (
    FILE,
    SAVED,
    Golden,
    Trained,
    compare,
    encode,
    first_difference,
    load,
    read_state,
    state_file,
    write_state,
)
from tests.golden.recipes import RECIPES, STEPS, rows, tokens_of
from tests.same_bits import assert_same_bits

NAMES = list(RECIPES)
FIRST = 4  # steps that are computed again from the seed
WHOLE = "grouped-heads"  # and the recipe of which all are: the quickest


@functools.cache
def golden() -> Golden:
    """The committed file."""
    return load()


def last_state(name: str) -> State:
    """The committed state before the last steps."""
    return read_state(state_file(FILE, name), RECIPES[name])


def replayed(name: str, state: State, count: int) -> list[RecordRow]:
    """The next rows of a recipe, computed here on the CPU."""
    return [row for row, _ in rows(choose("numpy", 1), RECIPES[name], state, count)]


def test_the_golden_records_were_made_on_a_gpu() -> None:
    assert golden().device.startswith("cuda:")
    assert list(golden().trained) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_and_its_state_0_are_those_of_the_records(name: str) -> None:
    trained, recipe = golden().trained[name], RECIPES[name]
    assert trained.recipe == recipe.digest()
    assert trained.state_0 == document(initial_state(recipe), recipe).root()
    assert len(trained.rows) == STEPS == recipe.schedule.total_steps


@pytest.mark.parametrize("name", NAMES)
def test_the_first_steps_from_the_seed(name: str) -> None:
    found = replayed(name, initial_state(RECIPES[name]), FIRST)
    assert first_difference(found, golden().trained[name].rows) == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_last_steps_from_the_kept_state(name: str) -> None:
    state, trained = last_state(name), golden().trained[name]
    assert document(state, RECIPES[name]).root() == trained.rows[SAVED - 1].state_after
    assert first_difference(replayed(name, state, STEPS - SAVED), trained.rows, SAVED) == ""


def test_all_steps_of_one_recipe() -> None:
    found = replayed(WHOLE, initial_state(RECIPES[WHOLE]), STEPS)
    assert tuple(found) == golden().trained[WHOLE].rows


@pytest.mark.parametrize("name", NAMES)
def test_the_training_uses_what_it_is_to_show(name: str) -> None:
    """The model learns, clipping is active in some steps and not in others, the warm-up ends, no step repeats."""
    trained, recipe = golden().trained[name], RECIPES[name]
    loss, norm, lr = (
        [f32_from_bits(getattr(row, column)) for row in trained.rows] for column in ("loss", "norm", "lr")
    )
    assert loss[-1] < 0.65 * loss[0]
    assert {value > recipe.optimizer.clip_norm for value in norm} == {True, False}
    assert lr[0] < lr[recipe.schedule.warmup_steps - 1] == np.float32(recipe.schedule.peak_lr) > lr[-1]
    for column in ("state_after", "batch", "gradient", "micro_root"):
        assert len({getattr(row, column) for row in trained.rows}) == STEPS


# Every op of a step. One ulp in a single element would not do: where a value only goes on into fixed point of 14 or 21
# bits, its last bit is rounded away, and no digest can or should show it. The vectors of tests/vectors see that bit.
OPS = [
    *("dot", "to_fixed", "from_fixed", "add", "adamw", "clip_factor", "norm_from_squares", "learning_rate"),
    *("mean_loss", "cross_entropy", "embedding_forward", "rms_norm_forward", "rms_norm_backward", "rope_forward"),
    *("rope_backward", "attention_forward", "attention_backward", "swiglu_forward", "swiglu_backward"),
]


def one_up(value: Any, *, single: bool = False) -> Any:
    """The value with its first array of numbers one ulp (or unit) up; with `single`, only an element in the middle."""
    if isinstance(value, (tuple, list)):
        at = next(i for i, part in enumerate(value) if isinstance(part, (np.ndarray, list)) and part_of_floats(part))
        changed = [one_up(part, single=single) if i == at else part for i, part in enumerate(value)]
        return type(value)(changed)
    if isinstance(value, np.ndarray) and value.shape:
        changed = value + 1 if value.dtype == np.int64 else np.nextafter(value, np.float32(np.inf))
        if single:
            middle, changed = changed.reshape(-1)[value.size // 2], value.copy()
            changed.reshape(-1)[value.size // 2] = middle
        return changed
    return np.nextafter(np.float32(value), np.float32(np.inf))


def part_of_floats(part: Any) -> bool:
    """Whether a part of a result is float32 numbers, alone or in a list of tensors."""
    return bool((part[0] if isinstance(part, list) else part).dtype == np.float32)


def change(monkeypatch: pytest.MonkeyPatch, op: str, *, single: bool) -> None:
    """Let an op of the reference return what `one_up` makes of its result."""
    right = getattr(reference, op)
    for module in (reference, operands, lists):  # also where other ops are made of it
        if hasattr(module, op):
            monkeypatch.setattr(module, op, lambda *args, **options: one_up(right(*args, **options), single=single))


@pytest.mark.parametrize(("op", "name"), [(op, NAMES[i % len(NAMES)]) for i, op in enumerate(OPS)])
def test_an_op_that_is_one_ulp_off_is_caught(op: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, op, single=False)
    trained = golden().trained[name]
    assert first_difference(replayed(name, initial_state(RECIPES[name]), FIRST), trained.rows)
    assert first_difference(replayed(name, last_state(name), STEPS - SAVED), trained.rows, SAVED)


@pytest.mark.parametrize("op", ["dot", "swiglu_forward", "rope_backward", "rms_norm_forward", "adamw", "to_fixed"])
def test_one_element_one_ulp_off_is_caught_where_nothing_rounds_it_away(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, op, single=True)
    assert first_difference(replayed("f32", initial_state(RECIPES["f32"]), FIRST), golden().trained["f32"].rows)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_a_pure_function_of_the_step(name: str) -> None:
    recipe = RECIPES[name]
    first, again, second = tokens_of(recipe, 0), tokens_of(recipe, 0), tokens_of(recipe, 1)
    assert_same_bits(again, first)
    assert first.shape == (recipe.batch.sequences, recipe.model.context_length + 1)
    assert (first != second).any() and len(np.unique(first)) > recipe.model.vocab_size // 4
    assert max(first.max(), second.max()) < recipe.model.vocab_size


def short_training(name: str) -> tuple[Golden, State]:
    """Two steps on this CPU, and the state after them."""
    recipe = RECIPES[name]
    start = initial_state(recipe)
    made = list(rows(choose("numpy", 1), recipe, start, 2))
    root = document(start, recipe).root()
    return Golden("cpu", {name: Trained(recipe.digest(), root, tuple(row for row, _ in made))}), made[-1][1]


def test_a_file_and_a_state_are_read_as_they_were_written(tmp_path: Path) -> None:
    made, state = short_training("fx21")
    path = tmp_path / "made.json"
    path.write_bytes(encode(made))
    assert load(path) == made
    write_state(state_file(path, "fx21"), state, RECIPES["fx21"])
    found = read_state(state_file(path, "fx21"), RECIPES["fx21"])
    for (_, _, got), (_, _, want) in zip(found.tensors(), state.tensors(), strict=True):
        assert_same_bits(got, want)


def test_a_missing_or_changed_file_is_an_error(tmp_path: Path) -> None:
    made, _ = short_training("fx21")
    path = tmp_path / "made.json"
    with pytest.raises(AssertionError, match="golden records of a GPU are missing"):
        load(path)
    with pytest.raises(AssertionError, match="golden records of a GPU are missing"):
        read_state(state_file(path, "fx21"), RECIPES["fx21"])
    value = json.loads(encode(made))
    value["recipes"]["fx21"]["steps"][1][4] = "f32:40000000"
    path.write_text(json.dumps(value), encoding="ascii")
    with pytest.raises(AssertionError, match="the log has another root"):
        load(path)


def test_a_difference_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = short_training("fx21")
    trained = made.trained["fx21"]
    other = dataclasses.replace(trained.rows[1], norm=trained.rows[1].norm + 1)
    changed = Golden("cuda:0 (a card)", {"fx21": dataclasses.replace(trained, rows=(trained.rows[0], other))})
    assert compare(made, made)
    assert not compare(made, changed)
    norm = trained.rows[1].norm
    assert f"step 1: norm is f32:{norm:08x}, golden f32:{norm + 1:08x}" in capsys.readouterr().out


def test_a_cpu_does_not_write_the_golden_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_recipes", "--device", "cpu", str(FILE)])
    with pytest.raises(SystemExit):
        make_recipes.main()
    assert "made on a GPU" in capsys.readouterr().err
