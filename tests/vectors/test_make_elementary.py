"""The committed vectors are what their generator makes: here, without vector instructions, and with two threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.vectors.make_elementary import encode, vectors

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent

# Prints the vector extensions that NumPy still uses; then the generator runs in the same process.
CHILD = """
import sys
from pathlib import Path
from numpy._core import _multiarray_umath as umath
print(" ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]))
from tests.vectors.make_elementary import main
main(Path(sys.argv[1]))
"""


def dispatched() -> list[str]:
    """The vector extensions beyond its baseline that NumPy chose on this machine."""
    umath = np._core._multiarray_umath  # type: ignore[attr-defined]
    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]


def test_generator_makes_the_committed_bytes() -> None:
    for op, vector in vectors().items():
        assert encode(vector) == (FOLDER / f"{op}.json").read_bytes(), op


def test_two_generators_at_once_make_the_same() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: vectors(), range(2))
    assert first == second
    assert encode(first["exp"]) == (FOLDER / "exp.json").read_bytes()


def test_without_vector_instructions(tmp_path: Path) -> None:
    """AVX2, AVX-512 and FMA code of NumPy off (whatever its version calls them): the same bytes."""
    env = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched())}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"still in use: {done.stdout}"
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (FOLDER / made.name).read_bytes(), made.name
    assert len(list(tmp_path.iterdir())) == len(vectors())
