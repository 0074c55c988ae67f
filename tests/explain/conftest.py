"""An honest run up to the step before that of the planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explain import planting


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its work folder; not to be changed."""
    return planting.prepare(tmp_path_factory.mktemp("prepared"))
