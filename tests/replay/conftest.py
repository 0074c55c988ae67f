"""One tiny training run, made once for all tests of the replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay import make_compact, make_run, make_segments


@pytest.fixture(scope="session")
def parts() -> make_run.Parts:
    """The honest run in parts; copy it before changing anything."""
    return make_run.train()


@pytest.fixture(scope="session")
def honest(parts: make_run.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run, published; do not write into it."""
    return make_run.publish(parts, tmp_path_factory.mktemp("honest") / "tiny")


@pytest.fixture(scope="session")
def compact(parts: make_run.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run in its compact layout; do not write into it."""
    return make_compact.publish(parts, tmp_path_factory.mktemp("compact") / "tiny")


@pytest.fixture(scope="session")
def stretches() -> make_segments.Parts:
    """The honest run of several segments in parts; copy it before changing anything."""
    return make_segments.train()


@pytest.fixture(scope="session")
def segmented(stretches: make_segments.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run of several segments, published; do not write into it."""
    return make_segments.publish(stretches, tmp_path_factory.mktemp("segmented") / "tiny")


@pytest.fixture(scope="session")
def segmented_compact(stretches: make_segments.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in its compact layout; do not write into it."""
    return make_segments.publish(stretches, tmp_path_factory.mktemp("segmented-compact") / "tiny", compact=True)
