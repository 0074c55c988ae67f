"""States on the disk: complete or absent, and read back to the bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from safetensors.numpy import load as load_safetensors

from auditkit.errors import BadArtifact
from auditkit.formats.recipe import Recipe
from auditkit.formats.state import StateIndex
from auditkit.model.state import State, document, initial_state
from tests.trainer.tiny import RECIPE
from trainer import recipe_toml
from trainer.state_files import write_state
from trainer.states import StoredState, complete_steps, load_state


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return recipe_toml.load(path)


@pytest.fixture(scope="module")
def state(recipe: Recipe) -> State:
    start = initial_state(recipe)
    chance = np.random.default_rng(1)
    awkward = np.array([-0.0, 1e-45, -1e-40, 3.4e38], np.float32)
    moments = {name: chance.standard_normal(array.shape).astype(np.float32) for name, array in start.params.items()}
    for array in moments.values():
        array.reshape(-1)[:4] = awkward
    return State(7, start.params, moments, {name: np.abs(array) for name, array in moments.items()})


@pytest.fixture
def folder(state: State, recipe: Recipe, tmp_path: Path) -> Path:
    write_state(tmp_path / "states" / "00000007", state, document(state, recipe))
    return tmp_path / "states" / "00000007"


def _same(found: State, expected: State) -> bool:
    pairs = zip(found.tensors(), expected.tensors(), strict=True)
    return found.step == expected.step and all(
        a[:2] == b[:2] and a[2].dtype == b[2].dtype and a[2].shape == b[2].shape and a[2].tobytes() == b[2].tobytes()
        for a, b in pairs
    )


def test_a_state_comes_back_to_the_bit_and_in_the_same_order(folder: Path, state: State, recipe: Recipe) -> None:
    assert _same(load_state(StoredState.open(folder), recipe), state)


@pytest.mark.parametrize("shard_bytes", [1, 1024, 5000, 1 << 30])
def test_shards_of_any_size_hold_the_same_state(shard_bytes: int, state: State, recipe: Recipe, tmp_path: Path) -> None:
    found = document(state, recipe)
    write_state(tmp_path / "s", state, found, shard_bytes=shard_bytes)
    index = StateIndex.parse((tmp_path / "s" / "index.json").read_bytes())
    sizes = [sum(frame.raw_length for frame in shard.frames[1:]) for shard in index.files]
    assert all(size <= shard_bytes or len(shard.frames) == 2 for size, shard in zip(sizes, index.files, strict=True))
    assert (len(index.files) == 1) == (shard_bytes == 1 << 30)
    assert _same(load_state(StoredState.open(tmp_path / "s"), recipe), state)
    assert StoredState.open(tmp_path / "s").document == found


def test_a_shard_is_a_safetensors_file_to_other_programs(folder: Path, state: State) -> None:
    packed = (folder / "shard-00000.safetensors.zst").read_bytes()
    raw = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    tensors = load_safetensors(raw)
    expected = {f"{role}/{name}": array for name, role, array in state.tensors()}
    assert sorted(tensors) == sorted(expected)
    assert all(tensors[key].tobytes() == expected[key].tobytes() for key in expected)


def test_writing_again_replaces_the_folder(folder: Path, state: State, recipe: Recipe) -> None:
    (folder / "stray").write_bytes(b"x")
    write_state(folder, state, document(state, recipe))
    assert _same(load_state(StoredState.open(folder), recipe), state)
    assert not (folder / "stray").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_only_a_folder_with_its_index_is_complete(folder: Path, tmp_path: Path) -> None:
    states = folder.parent
    shutil.copytree(folder, states / "00000009")
    (states / "00000009" / "index.json").unlink()
    shutil.copytree(folder, states / ".tmp-00000011-1")
    assert complete_steps(states) == [7]
    assert complete_steps(tmp_path / "none") == []


def test_a_missing_tensor_is_named(state: State, recipe: Recipe, tmp_path: Path) -> None:
    less = State(7, state.params, state.adam_m, state.adam_v)
    found = document(less, recipe)
    name = found.tensors[0].name
    cut = replace(found, tensors=found.tensors[1:])
    write_state(tmp_path / "s", less, cut)
    with pytest.raises(BadArtifact, match=rf"tensor adam_m/{name} has shape None, expected \("):
        load_state(StoredState.open(tmp_path / "s"), recipe)


def test_every_flipped_byte_of_a_shard_is_found(folder: Path, recipe: Recipe) -> None:
    path = folder / "shard-00000.safetensors.zst"
    good = path.read_bytes()
    for at in range(0, len(good), len(good) // 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(BadArtifact, match="not the bytes its digest names"):
            load_state(StoredState.open(folder), recipe)


def test_tensors_that_the_document_does_not_name_are_found(
    folder: Path, state: State, recipe: Recipe, tmp_path: Path
) -> None:
    name = next(iter(state.params))
    params = {key: array.copy() for key, array in state.params.items()}
    params[name].reshape(-1).view(np.uint32)[0] ^= 1
    other = replace(state, params=params)
    write_state(tmp_path / "other", other, document(other, recipe))
    shutil.copy(folder / "state.json", tmp_path / "other" / "state.json")
    with pytest.raises(BadArtifact, match=rf"param/{name}.* is not the one that the state document names"):
        load_state(StoredState.open(tmp_path / "other"), recipe)
