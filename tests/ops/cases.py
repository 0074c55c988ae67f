"""Inputs of the op tests: random binary32 of chosen exponents and the awkward values of every op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

SMALLEST = np.float32(2.0**-149)
LARGEST = np.float32(3.4028234663852886e38)
BOUNDARY_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
NOT_FINITE = (np.float32("inf"), np.float32("-inf"), np.float32("nan"))


def floats(seed: int, *shape: int, low: int = -6, high: int = 6) -> F32:
    """Random signs and mantissas, exponents even between 2^low and 2^high; below 2^-126 the values are subnormal."""
    random = np.random.default_rng(seed)
    sizes = np.ldexp(random.integers(1 << 23, 1 << 24, shape).astype(np.float64), -23)
    scaled = np.ldexp(sizes, random.integers(low, high, shape, endpoint=True))
    signs = 1.0 - 2.0 * random.integers(0, 2, shape)
    return np.asarray(signs * scaled).astype(np.float32)


def normals(seed: int, *shape: int, scale: float = 1.0) -> F32:
    """Normal values, as activations and gradients are."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def awkward_rows(width: int) -> F32:
    """Rows (9, width): zeros of either sign, all equal, subnormal, next to overflow, of every exponent, one spike."""
    rows = np.zeros((9, width), np.float32)
    rows[1] = -0.0
    rows[2] = 0.3
    rows[3] = SMALLEST
    rows[4] = floats(4, width, low=-149, high=-127)
    rows[5] = LARGEST
    rows[6] = floats(6, width, low=-149, high=127)
    rows[7, width // 2] = -1.5e-20
    rows[8] = floats(8, width, low=-140, high=-110)
    return rows


def frozen(*arrays: F32) -> tuple[F32, ...]:
    """Copies that cannot be written to: an op that changes its input raises."""
    copies = tuple(a.copy() for a in arrays)
    for copy in copies:
        copy.flags.writeable = False
    return copies


def strided(x: F32) -> F32:
    """The same values in every second element of a larger array, in Fortran order."""
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype, order="F")
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    assert x.size < 2 or not view.flags.c_contiguous
    return view


def with_value(x: F32, value: np.float32) -> F32:
    """A copy whose middle element is `value`."""
    copy = x.copy()
    copy.reshape(-1)[copy.size // 2] = value
    return copy


def relative_error(got: npt.NDArray[np.floating], want: npt.NDArray[np.float64]) -> float:
    """Largest error relative to the largest true value."""
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())
