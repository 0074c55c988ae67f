"""The tiny run of the replay's tests, for what is built on its reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import signed_runs
from tests.replay.conftest import compact, honest, parts, segmented, segmented_compact, stretches

__all__ = ["compact", "honest", "parts", "segmented", "segmented_compact", "stretches"]


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the user's data folder: checkpoints are remembered in it."""
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def signed(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run with a signed log; do not write into it."""
    return signed_runs.sign(signed_runs.copy(honest, tmp_path_factory.mktemp("signed") / "tiny"))


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of many steps with a signed log; do not write into it."""
    return signed_runs.sign(signed_runs.long_run(tmp_path_factory.mktemp("long") / "tiny"))
