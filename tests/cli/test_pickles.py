"""Pickles in a run folder (case 20): in place of its files they are refused, beside them nobody looks at them."""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - it is the attacker's
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.cli.conftest import Cli
from tests.fuzz.runs import seal
from tests.replay.make_run import Parts, publish

SHARD = "states/00000004/shard-00000.safetensors.zst"
READ = (SHARD, "states/00000004/state.json", "states/00000004/index.json", "records.bin", "stream.idx", "run.json")


class Attack:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (self.mark, "w"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "pwned"


def forms(mark: Path) -> list[bytes]:
    """A pickle, an array of objects as numpy stores it, and the pickle compressed."""
    plain, array = pickle.dumps(Attack(mark)), io.BytesIO()
    np.save(array, np.array([Attack(mark)], object), allow_pickle=True)
    return [plain, array.getvalue(), zstandard.compress(plain)]


def test_the_attack_works(mark: Path) -> None:
    """On a program that unpickles what it is given."""
    for form in forms(mark)[:2]:
        with io.BytesIO(form) as file:
            np.load(file, allow_pickle=True)
        assert mark.exists()
        mark.unlink()


@pytest.mark.parametrize("name", READ)
def test_a_pickle_in_place_of_a_file_is_refused(main: Cli, parts: Parts, tmp_path: Path, mark: Path, name: str) -> None:
    run = publish(parts.copy(), tmp_path / "run")
    for form in forms(mark):
        (run / name).write_bytes(form)
        seal(run, run / name)
        done = main("verify", "--run", run, "--step", 4)
        assert done.code == 4, done.stdout + done.stderr
        assert not mark.exists()


def test_pickles_beside_the_files_are_not_looked_at(main: Cli, parts: Parts, tmp_path: Path, mark: Path) -> None:
    run = publish(parts.copy(), tmp_path / "run")
    for name in ("model.pt", "rng_state", "model.safetensors", "states/00000004/shard.npy", "conftest.pkl"):
        (run / name).write_bytes(forms(mark)[name.endswith("npy")])
    assert main("verify", "--run", run, "--step", 4).code == 0
    assert not mark.exists()
