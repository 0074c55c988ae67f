"""A model so small that the emulator runs it in seconds, on a CPU and on an emulated card with a real `Device`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.measure.models import recipe_of
from auditkit.measure.subject import Subject, subject_of
from auditkit.replay.backend import Backend, choose
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import EMULATOR_MARKS


@pytest.fixture
def recipe() -> Recipe:
    """Three micro-batches of eight tokens."""
    tiny = recipe_of("tiny")
    model = replace(
        tiny.model, vocab_size=24, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=24,
        context_length=8,
    )  # fmt: skip
    return replace(tiny, model=model, batch=BatchConfig(3, 1))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    """An emulated card behind auditkit.kernels.device.Device itself."""
    fake_cupy.install(monkeypatch, Cuda())
    return choose("cuda", cache=tmp_path / "kernels")


@pytest.fixture(params=["cpu", pytest.param("card", marks=EMULATOR_MARKS)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A CPU with one thread, and an emulated card."""
    return choose("cpu", 1) if request.param == "cpu" else request.getfixturevalue("card")


@pytest.fixture
def subject(recipe: Recipe, backend: Backend, tmp_path: Path) -> Iterator[Subject]:
    """The small model on the back end, all in memory."""
    yield subject_of(recipe, backend, None, tmp_path)
