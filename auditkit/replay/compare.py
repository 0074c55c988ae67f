"""Compare tensors by their bits: the first differing element, both words, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class TensorDifference:
    """Where two tensors first differ.

    `index` is the first differing coordinate in C order; `left_bits` and `right_bits` are its words in hexadecimal,
    `left` and `right` the values as text; `ulps` is the distance in units in the last place (None where a NaN is
    involved or the tensor holds integers), `max_ulps` the largest one; `differing` of `elements` differ.
    An empty `index` with `elements` 0 means that the tensors cannot be compared element by element: see `note`.
    """

    name: str
    role: str
    index: tuple[int, ...] = ()
    left_bits: str = ""
    right_bits: str = ""
    left: str = ""
    right: str = ""
    ulps: int | None = None
    max_ulps: int | None = None
    differing: int = 0
    elements: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """The difference as JSON values."""
        return {**vars(self), "index": list(self.index)}

    @property
    def where(self) -> str:
        """The place in words: `param layers.0.wq [3, 5]`."""
        return f"{self.role} {self.name} {list(self.index)}" if self.elements else f"{self.role} {self.name}"

    def describe(self, left: str = "published", right: str = "computed") -> str:
        """What differs there, in words: both words, both values, the distance, and how many elements differ."""
        if not self.elements:
            return self.note
        ulps = "" if self.ulps is None else f", {self.ulps} ulp apart"
        most = "" if self.max_ulps is None or self.differing == 1 else f", at most {self.max_ulps} ulp"
        return (
            f"{left} {self.left_bits} ({self.left}), {right} {self.right_bits} ({self.right}){ulps}; "
            f"{self.differing} of {self.elements} elements differ{most}"
        )


def words(array: Array) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The elements of any array as native unsigned words of the same size and shape, bits untouched."""
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    return native.view(_WORDS[array.dtype.itemsize])


def compare_tensors(name: str, role: str, left: Array, right: Array) -> TensorDifference | None:
    """The difference of two tensors by bits, or None: -0.0 differs from 0.0, and equal NaN payloads are equal."""
    if left.dtype.newbyteorder("=") != right.dtype.newbyteorder("=") or left.shape != right.shape:
        note = f"{left.dtype.name} {list(left.shape)} against {right.dtype.name} {list(right.shape)}"
        return TensorDifference(name, role, note=note)
    a, b = words(left).reshape(-1), words(right).reshape(-1)
    different = np.flatnonzero(a != b)
    if different.size == 0:
        return None
    first = int(different[0])
    index = tuple(int(i) for i in np.unravel_index(first, left.shape)) if left.shape else ()
    ulps, max_ulps = _distances(a[different], b[different], left.dtype)
    digits = 2 * left.dtype.itemsize
    return TensorDifference(
        name,
        role,
        index,
        f"{int(a[first]):0{digits}x}",
        f"{int(b[first]):0{digits}x}",
        _text(left.reshape(-1)[first]),
        _text(right.reshape(-1)[first]),
        ulps,
        max_ulps,
        int(different.size),
        int(a.size),
    )


def ulp_distance(left: float, right: float) -> int | None:
    """Binary32 steps between two numbers (0.0 and -0.0 are one apart here, as their words differ), None for a NaN."""
    a, b = np.float32(left).reshape(1), np.float32(right).reshape(1)
    return _distances(words(a), words(b), np.dtype(np.float32))[0]


def _distances(
    a: npt.NDArray[np.unsignedinteger[Any]], b: npt.NDArray[np.unsignedinteger[Any]], dtype: np.dtype[Any]
) -> tuple[int | None, int | None]:
    """Distance of the first pair and the largest one; None for integers, for a NaN, and where none is a number."""
    if dtype != np.float32:
        return None, None
    number = ~(_is_nan(a) | _is_nan(b))
    if not number.any():
        return None, None
    distance = np.abs(_rank(a) - _rank(b))
    return (int(distance[0]) if number[0] else None), int(distance[number].max())


def _is_nan(bits: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.bool_]:
    return (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)


def _rank(bits: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.int64]:
    """Words in numeric order as integers: ... -0.0 is -1, 0.0 is 0, the least subnormal 1 ..."""
    magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return np.where(bits >> np.uint32(31), -1 - magnitude, magnitude)


def _text(value: Any) -> str:
    return np.format_float_scientific(value, unique=True) if value.dtype.kind == "f" else str(int(value))
