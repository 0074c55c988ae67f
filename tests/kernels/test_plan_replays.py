"""Main memory and disk that replays under a plan take beside a card, against what the planner says."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.kernels.transfers import Transfers
from auditkit.model.params import parameter_table
from auditkit.model.plan import Cuts, Place, Plan
from auditkit.model.state import seeded_state
from auditkit.replay import placing
from auditkit.replay.layout import Layout
from auditkit.replay.memory import on_host, piece_bytes
from auditkit.replay.planned import Planned
from auditkit.replay.sizes import sizes_of
from auditkit.store.spill import Spill
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.test_faults import believing
from tests.kernels.test_planned import SMALL, tokens_of
from tests.replay import make_run

HOST = Plan(True, params="host", cuts=Cuts(0, 20))


class Locked:
    """Bytes of page-locked memory that are held, and the most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live = self.peak = 0
        real = Transfers.host_array

        def counted(transfers: Transfers, shape: Any, dtype: Any) -> Any:
            made = real(transfers, shape, dtype)
            self.live += made.nbytes
            self.peak = max(self.peak, self.live)
            weakref.finalize(made, self._free, made.nbytes)
            return made

        monkeypatch.setattr(Transfers, "host_array", counted)

    def _free(self, size: int) -> None:
        self.live -= size


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_cupy.install(monkeypatch, Cuda(dry=True))
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))


def test_the_replay_before_a_mismatch_holds_no_more_main_memory_than_was_counted(
    card: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, locked = make_run.publish(replace(make_run.train(1), published=(0, 1)), tmp_path / "run"), Locked(monkeypatch)
    layout = Layout(HOST, piece_bytes(make_run.RECIPE, HOST, True))
    monkeypatch.setattr(placing, "choose_layout", lambda *_, **__: layout)
    report = auditkit.verify(run, step=0, backend=believing(), cache_dir=tmp_path / "c")
    assert report.machine["plan"] and report.verdict.name == "MISMATCH"  # nothing was computed, twice
    assert 0 < locked.peak <= on_host(sizes_of(make_run.RECIPE, True), HOST)


@pytest.mark.parametrize("params", ["host", "disk"])
def test_steps_one_after_the_other_take_no_more_than_was_counted(
    card: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Place
) -> None:
    plan = replace(HOST, params=params)
    locked, inner, need = Locked(monkeypatch), believing(), piece_bytes(SMALL, plan, True, following=True)
    shapes = {spec.name: spec.shape for spec in parameter_table(SMALL.model)}
    put, disk = Spill.put, [0]

    def putting(self: Spill, key: str, arrays: Any) -> None:
        put(self, key, arrays)
        disk.append(sum(path.stat().st_size for path in (tmp_path / "c").rglob("*") if path.is_file()))

    monkeypatch.setattr(Spill, "put", putting)
    layout = Layout(plan, need)
    backend = Planned(inner.ops, 1, "cuda", inner=inner, layout=layout, shapes=shapes, cache=lambda: tmp_path / "c")
    state = backend.place(seeded_state(SMALL))
    for _ in range(4):
        state, _ = backend.step(state, tokens_of(SMALL), SMALL)
    host = on_host(sizes_of(SMALL, True), plan, following=True)
    assert locked.peak == host and max(disk) == need.disk  # of files, no other of their arrays are in this plan
