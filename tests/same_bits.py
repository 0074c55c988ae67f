"""The one comparison of arrays in the tests: words, dtype and shape, never closeness."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def assert_same_bits(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    """Fail unless dtype, shape and all words are the same; name the first coordinate and both words."""
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    a, b = _words(got), _words(want)
    different = np.flatnonzero(a != b)
    if different.size:
        first = int(different[0])
        where = tuple(int(i) for i in np.unravel_index(first, got.shape)) if got.shape else ()
        digits = 2 * got.dtype.itemsize
        raise AssertionError(
            f"{different.size} of {a.size} words differ, first at {where}: "
            f"{int(a[first]):0{digits}x}, expected {int(b[first]):0{digits}x}"
        )


def _words(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bit patterns in C order, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
