"""Main memory and disk that replays under a plan take beside a card, against what the planner says."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.kernels.transfers import Transfers
from auditkit.model.plan import Cuts, Plan
from auditkit.replay import placing
from auditkit.replay.layout import Layout
from auditkit.replay.memory import on_host, piece_bytes, sizes_of
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.test_faults import believing
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
