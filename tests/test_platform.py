"""The same bits whatever the number of threads, the vector extensions, the BLAS kernels and the hash seed.

Each case is a process of its own: all vectors, large products, and three tiny models trained for three steps.
`make oldest` does the same with the oldest NumPy that is allowed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.formats.digest import content_digest
from auditkit.numerics.exact_dot import dot, quantise
from auditkit.numerics.known_inputs import floats
from tests.golden import make_training
from tests.vectors.make_ops import FILES

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "vectors"

CHILD = """
import json, sys
from pathlib import Path
from numpy._core import _multiarray_umath as umath
from threadpoolctl import threadpool_info
from auditkit.numerics import reference, self_test
from tests.golden import make_training
from tests.test_platform import large_products
from tests.vectors import make_ops
folder, threads = Path(sys.argv[1]), int(sys.argv[2])
self_test.run(reference)
make_ops.main(folder)
(folder / "training.json").write_bytes(make_training.encode(threads))
used = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
print(json.dumps({"products": large_products(), "extensions": used}))
"""


def features() -> dict[str, bool]:
    """What NumPy knows about this processor."""
    found: dict[str, bool] = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    return found


def dispatched() -> list[str]:
    """The vector extensions beyond its baseline that NumPy uses on this machine."""
    names: list[str] = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    return [name for name in names if features()[name]]


def large_products() -> list[str]:
    """Digests of products large enough for every way a BLAS has of cutting them up."""
    x, y = floats(1, 300, 500), floats(2, 200, 500)
    found = []
    for bits in (14, 21):
        a, b = quantise(x, bits), quantise(y, bits)
        found += [content_digest(dot(a, b)), content_digest(dot(b, a)), content_digest(dot(a, a))]
    return found


def run(folder: Path, threads: int, **changed: str) -> dict[str, Any]:
    """Run the child with other environment variables, compare all it makes; what it used."""
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")} | changed
    command = [sys.executable, "-W", "error", "-c", CHILD, str(folder), str(threads)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    used: dict[str, Any] = json.loads(done.stdout)
    assert used["products"] == large_products()
    assert (folder / "training.json").read_bytes() == make_training.FILE.read_bytes()
    for op in FILES:
        assert (folder / f"{op}.json").read_bytes() == (VECTORS / f"{op}.json").read_bytes(), op
    return used


def test_this_process_makes_the_committed_training() -> None:
    assert make_training.encode() == make_training.FILE.read_bytes()


def test_large_products_are_those_of_integers() -> None:
    x, y = quantise(floats(1, 300, 500), 14), quantise(floats(2, 200, 500), 14)
    a, b = (np.ldexp(r.values, 13 - r.exponents[:, None]).astype(np.int64) for r in (x, y))
    exact = np.ldexp((a @ b.T).astype(np.float64), x.exponents[:, None] + y.exponents[None] - 26)
    assert content_digest(exact.astype(np.float32)) == large_products()[0]


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_in_this_process_change_no_bit(threads: int) -> None:
    assert make_training.encode(threads) == make_training.FILE.read_bytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_hash_seed_change_no_bit(threads: int, tmp_path: Path) -> None:
    run(tmp_path, threads, OPENBLAS_NUM_THREADS=str(threads), PYTHONHASHSEED=str(threads - 1))


def subsets() -> list[str]:
    """All extensions off; and all but the lowest, which leaves AVX2 and FMA on where there is AVX-512."""
    all_of_them = dispatched()
    return [" ".join(all_of_them), " ".join(all_of_them[1:])] if all_of_them else []


@pytest.mark.parametrize("disabled", subsets())
def test_vector_extensions_change_no_bit(disabled: str, tmp_path: Path) -> None:
    used = run(tmp_path, 1, NPY_DISABLE_CPU_FEATURES=disabled)
    assert used["extensions"] == [name for name in dispatched() if name not in disabled.split()]


def kernels() -> list[str]:
    """OpenBLAS kernels that this processor can run."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ["ARMV8"] if sys.platform == "linux" else []
    needs = {"Prescott": "SSE3", "Haswell": "AVX2", "SkylakeX": "AVX512_SKX"}
    return [name for name, feature in needs.items() if features().get(feature, False)]


@pytest.mark.parametrize("kernel", kernels())
def test_blas_kernels_change_no_bit(kernel: str, tmp_path: Path) -> None:
    run(tmp_path, 2, OPENBLAS_CORETYPE=kernel)
