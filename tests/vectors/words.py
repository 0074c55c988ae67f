"""Arrays as words in JSON and back: {"shape": [2, 3], "f32": "3f800000 .."}, or runs of equal elements.

f32   8 hexadecimal digits an element: the binary32 bit pattern
i64   16 digits an element: two's complement
runs  [[count, word], ..]: that many equal elements each, where an array is long
Elements are in C order.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_UNSIGNED: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.uint32), "i64": np.dtype(np.uint64)}
_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "i64": np.dtype(np.int64)}


def array(values: Array) -> dict[str, Any]:
    """A float32 or int64 array as JSON."""
    dtype = {d: name for name, d in _DTYPES.items()}[values.dtype]
    return {"shape": list(values.shape), dtype: " ".join(_words(values, dtype))}


def runs(values: Array) -> dict[str, Any]:
    """A long array with few different neighbours as JSON."""
    dtype = {d: name for name, d in _DTYPES.items()}[values.dtype]
    found = [[len(list(same)), word] for word, same in groupby(_words(values, dtype))]
    return {"shape": list(values.shape), "dtype": dtype, "runs": found}


def read(value: dict[str, Any]) -> Array:
    """The array of a JSON value."""
    if "runs" in value:
        dtype, words = value["dtype"], [w for count, w in value["runs"] for _ in range(count)]
    else:
        dtype = next(name for name in _DTYPES if name in value)
        words = value[dtype].split()
    integers: Array = np.array([int(w, 16) for w in words], _UNSIGNED[dtype])
    return integers.view(_DTYPES[dtype]).reshape(tuple(value["shape"]))


def f32(value: np.float32 | float) -> str:
    """The word of one binary32 number."""
    return _words(np.array([value], np.float32), "f32")[0]


def read_f32(word: str) -> np.float32:
    """The binary32 number of a word."""
    return np.float32(np.array([int(word, 16)], np.uint32).view(np.float32)[0])


def f64(value: float) -> str:
    """The word of one binary64 number."""
    return f"{int(np.array([value], np.float64).view(np.uint64)[0]):016x}"


def read_f64(word: str) -> float:
    """The binary64 number of a word."""
    return float(np.array([int(word, 16)], np.uint64).view(np.float64)[0])


def _words(values: Array, dtype: str) -> list[str]:
    flat: Array = np.ascontiguousarray(values).reshape(-1).view(_UNSIGNED[dtype])
    return [f"{int(w):0{2 * flat.dtype.itemsize}x}" for w in flat]
