"""A tiny run: prepared once, trained once without interruption; every test works on its own copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer import segmented, tiny


@pytest.fixture(scope="session")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared work folder; not to be changed."""
    return tiny.prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="session")
def finished_once(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a run that nothing interrupted; not to be changed."""
    work = tmp_path_factory.mktemp("finished") / "work"
    shutil.copytree(prepared_once, work)
    assert tiny.run(work) == 0
    return work


@pytest.fixture
def prepared(prepared_once: Path, tmp_path: Path) -> Path:
    """A prepared work folder of one's own."""
    return Path(shutil.copytree(prepared_once, tmp_path / "work"))


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A finished work folder of one's own."""
    return Path(shutil.copytree(finished_once, tmp_path / "finished"))


@pytest.fixture(scope="session")
def along(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder beside the work folder of a run in segments, before each command and after the last; read-only."""
    beside = tmp_path_factory.mktemp("along")
    found = [beside / "0"]
    segmented.prepare(found[0])
    for number in range(7):
        found.append(Path(shutil.copytree(found[-1], beside / str(number + 1))))
        segmented.run(found[-1] / "work", number, number + 1)
    return found
