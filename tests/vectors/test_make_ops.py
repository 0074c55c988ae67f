"""The committed vectors of the ops: the generator makes them again, and the oracle, from the file alone, agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.numerics import self_test
from tests.same_bits import assert_same_bits
from tests.vectors import make_known_answers
from tests.vectors.make_elementary import encode
from tests.vectors.make_ops import FILES, vectors
from tests.vectors.oracles import FOLDER, ORACLES, cases_of
from tests.vectors.words import Array, array, f32, f64, read, read_f32, read_f64, runs


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    """What the generator makes here."""
    return vectors()


@pytest.mark.parametrize("op", FILES)
def test_generator_makes_the_committed_bytes(op: str, made: dict[str, dict[str, Any]]) -> None:
    assert encode(made[op]) == (FOLDER / f"{op}.json").read_bytes()


def test_generator_makes_the_committed_known_answers() -> None:
    for name, data in make_known_answers.files().items():
        assert data == (make_known_answers.FOLDER / name).read_bytes()
    assert make_known_answers.FOLDER == Path(self_test.__file__).parent


@pytest.mark.parametrize("op", FILES)
def test_the_oracle_reproduces_every_committed_case(op: str) -> None:
    cases = cases_of(op)
    assert cases
    for case in cases:
        for name, want in ORACLES[op](case).items():
            if isinstance(want, np.ndarray):
                assert_same_bits(read(case[name]), want)
            else:
                assert case[name] == want, (case["name"], name)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[0.0, -0.0, 1.5], [2.0**-149, 3e38, -1]], np.float32),
        np.array([-1, 1 << 62, 0], np.int64),
        np.zeros((0, 3), np.float32),
        np.zeros(5, np.float32),
    ],
)
def test_arrays_written_as_words_read_back(values: Array) -> None:
    for write in (array, runs):
        assert_same_bits(read(json.loads(json.dumps(write(values)))), values)


def test_numbers_written_as_words_read_back() -> None:
    assert (f32(-0.0), f64(1.0)) == ("80000000", "3ff0000000000000")
    assert (float(read_f32("3f800001")), read_f64("bff0000000000000")) == (1 + 2.0**-23, -1.0)


def test_every_file_says_what_it_is() -> None:
    files = sorted(FOLDER.glob("*.json"))
    assert {"adamw", "exp", "float64", "no_result", "shuffle"} <= {path.stem for path in files}
    for path in files:
        vector = json.loads(path.read_text(encoding="ascii"))
        assert list(vector)[:3] == ["format", "op", "about"], path.name
        assert vector["op"] == path.stem
        assert vector["about"].startswith("SPEC.md "), path.name
