"""States written by several ranks: the files of one process, of the tensors as they were, or one error for all."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.kernels.backend import CudaOps
from auditkit.model.state import State, document, initial_state
from auditkit.numerics import reference
from tests.kernels.emulator import EmulatedDevice
from tests.trainer.parallel.states import CUT, split
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer import snapshots, state_files
from trainer.parallel import owners
from trainer.parallel.layout import Layout
from trainer.parallel.memory import memory_of
from trainer.parallel.owners import OwnedStates
from trainer.snapshots import landing_of
from trainer.state_files import write_state


@functools.cache
def state() -> State:
    """A state whose tensors all differ."""
    start, chance = initial_state(CUT), np.random.default_rng(3)
    moments = [{n: chance.standard_normal(a.shape).astype(np.float32) for n, a in start.params.items()} for _ in "mv"]
    return State(5, start.params, *moments)


def files(folder: Path) -> dict[str, bytes]:
    """What lies in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(group: ThreadGroup, folder: Path, calls: list[str] | None = None, ops: Any = reference) -> None:
    """Write the state as one rank, and spoil all arrays as soon as it is begun."""
    layout, memory = Layout(CUT.model, group.size), memory_of(ops)
    held = split(state(), CUT, layout, group.rank, ops)
    states = OwnedStates(group, layout, memory, landing_of(ops), group.size)
    said = [] if calls is None else calls
    states.advance()
    found = document(state(), CUT)
    states.begin(
        states.gather(held, found),
        found,
        folder,
        lambda: said.append(f"before {group.rank}"),
        lambda: said.append(f"after {group.rank} {folder.is_dir()}"),
    )
    for array in (held.line, *held.adam_m, *held.adam_v):
        memory.copy(array, memory.place(np.full(array.shape, -1, np.float32)))
    states.advance()
    states.settle()
    states.drop(finish=True)


@pytest.mark.parametrize("shard_bytes", [1, 300_000, 1 << 30])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_write_the_files_of_one_process(
    size: int, shard_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "SHARD_BYTES", shard_bytes)
    write_state(tmp_path / "one", state(), document(state(), CUT))
    calls: list[str] = []
    play(size, lambda group: write(group, tmp_path / "many", calls), seed=size)
    assert files(tmp_path / "many") == files(tmp_path / "one")
    assert sorted(calls) == ["after 0 True", *(f"before {rank}" for rank in range(size))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one"]
    assert (len(files(tmp_path / "one")) > 3) == (shard_bytes < 1 << 30)


def test_ranks_on_devices_write_them_too_though_their_copies_are_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "SHARD_BYTES", 300_000)
    monkeypatch.setattr(snapshots, "BATCH_BYTES", 100_000)
    write_state(tmp_path / "one", state(), document(state(), CUT))
    ranks = [CudaOps(EmulatedDevice()) for _ in range(3)]

    def written(group: ThreadGroup) -> None:
        memory = memory_of(ranks[group.rank])
        group._down, group._up = memory.host, lambda array, values: memory.copy(array, memory.place(values))
        write(group, tmp_path / "many", ops=ranks[group.rank])

    play(3, written, seed=3)
    assert files(tmp_path / "many") == files(tmp_path / "one")


def test_what_one_rank_meets_every_rank_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "SHARD_BYTES", 300_000)
    real = owners.write_shards

    def full(temporary: Path, groups: Any, *more: Any, **options: Any) -> Any:
        if 1 in groups:
            raise Unsupported("the disk is full")
        return real(temporary, groups, *more, **options)

    monkeypatch.setattr(owners, "write_shards", full)

    def told(group: ThreadGroup) -> str:
        with pytest.raises(Unsupported) as error:
            write(group, tmp_path / "state")
        return error.value.message

    assert play(3, told) == ["rank 1: the disk is full"] * 3
    assert not (tmp_path / "state").exists()
