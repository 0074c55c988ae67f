"""The replay before a mismatch on a card: the first start state is let go of before the second one takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.model.state import State
from auditkit.replay.backend import CudaBackend
from auditkit.verdict import Verdict
from tests.kernels.fake_cupy import Cuda
from tests.kernels.test_faults import believing, cuda, published

__all__ = ["cuda", "published"]


@pytest.mark.parametrize("step", [0, 4])
def test_one_start_state_at_a_time(published: Path, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    placed: list[State] = []
    held: list[int] = []
    place = CudaBackend.place

    def noted(self: CudaBackend, state: State) -> State:
        held.append(sum(bool(before.params) for before in placed))
        placed.append(place(self, state))
        return placed[-1]

    monkeypatch.setattr(CudaBackend, "place", noted)
    report: Any = auditkit.verify(published, step=step, backend=believing())
    assert report.verdict is Verdict.MISMATCH
    assert held == [0, 0]


def test_a_state_that_is_let_go_of_gives_its_memory_back(published: Path, cuda: Cuda) -> None:
    from auditkit.model.state import initial_state
    from tests.replay.make_run import RECIPE

    backend = believing()
    before = cuda.used[0]
    state = backend.place(initial_state(RECIPE))
    assert cuda.used[0] > before
    backend.let_go(state)
    assert cuda.used[0] == before and not state.params and not state.adam_m and not state.adam_v
