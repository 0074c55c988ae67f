"""Tensors by name, role, dtype, shape and digest; and the root of a set of gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.digest import GRADIENT_ROOT, ZERO_DIGEST, Digest, check_digest, content_digest, keyed_digest, root
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS

GRADIENT_FORMAT = "auditkit/gradient/v1"
ROLES = ("adam_m", "adam_v", "grad", "param")
DTYPES: dict[str, np.dtype[Any]] = {  # as safetensors names them; all little-endian
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
}

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a document: what it is called, what it is for, its dtype and shape, and the BLAKE3 of its bytes."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    digest: Digest

    def __post_init__(self) -> None:
        check_name(self.name, "tensor name")
        what = f"tensor {shown(self.name)}"
        if self.role not in ROLES:
            raise BadArtifact(f"{what}: role {shown(str(self.role))} is not {' or '.join(ROLES)}")
        if self.dtype not in DTYPES:
            raise BadArtifact(f"{what}: dtype {shown(str(self.dtype))} is not {' or '.join(DTYPES)}")
        if type(self.shape) is not tuple:
            raise BadArtifact(f"{what}: shape is not a tuple")
        check_shape(self.shape, DTYPES[self.dtype].itemsize, what)
        check_digest(self.digest, f"{what}: digest")

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def order(self) -> tuple[str, str]:
        """Documents list tensors in this order: by role, then by name, both by code point."""
        return (self.role, self.name)

    @classmethod
    def of(cls, name: str, role: str, array: NDArray[Any]) -> Self:
        """The entry of an array: dtype, shape and digest are taken from it."""
        return cls(name, role, dtype_name(array.dtype), array.shape, tensor_digest(array))

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The entry of a JSON object; BadArtifact naming the field."""
        shape = fields.items("shape", 0, LIMITS.tensor_dimensions)
        entry = cls(
            name=check_name(fields.raw("name"), fields.name("name")),
            role=fields.choice("role", *ROLES),
            dtype=fields.choice("dtype", *DTYPES),
            shape=tuple(shape),
            digest=fields.digest("digest"),
        )
        fields.done()
        return entry

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {
            "digest": self.digest,
            "dtype": self.dtype,
            "name": self.name,
            "role": self.role,
            "shape": list(self.shape),
        }


def check_name(text: object, what: str) -> str:
    """A tensor name of [A-Za-z0-9_.-] without a leading dot or dash; BadArtifact naming `what` otherwise."""
    if type(text) is not str or len(text) > LIMITS.name_characters or _NAME.fullmatch(text) is None:
        found = shown(text) if type(text) is str else type(text).__name__
        raise BadArtifact(f"{what}: {found} is not a tensor name (1 to 200 of letters, digits and _.-)")
    return text


def check_shape(shape: Iterable[object], itemsize: int, what: str) -> tuple[int, ...]:
    """Dimensions as a tuple of int >= 0 whose bytes stay within the limit; BadArtifact naming `what` otherwise."""
    checked = []
    total = itemsize
    for size in shape:
        if type(size) is not int or size < 0:
            raise BadArtifact(f"{what}: shape holds something other than integers of 0 and more")
        checked.append(size)
        total *= max(size, 1)  # Python integers do not wrap; a zero elsewhere does not excuse an absurd dimension
    if len(checked) > LIMITS.tensor_dimensions:
        raise BadArtifact(f"{what}: {len(checked)} dimensions, at most {LIMITS.tensor_dimensions} are allowed")
    if total > LIMITS.tensor_bytes:
        raise BadArtifact(f"{what}: shape {checked} is larger than {LIMITS.tensor_bytes} bytes")
    return tuple(checked)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """ "F32", "I64", "U16" or "U32", whatever the byte order; BadArtifact for any other dtype."""
    for name, known in DTYPES.items():
        if dtype.kind == known.kind and dtype.itemsize == known.itemsize:
            return name
    raise BadArtifact(f"dtype {dtype} has no place in a document, only {', '.join(DTYPES)} have")


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in C order and little-endian; the array itself when it is stored so already."""
    return np.ascontiguousarray(array, dtype=DTYPES[dtype_name(array.dtype)]).reshape(array.shape)


def tensor_digest(array: NDArray[Any], key: bytes | None = None) -> Digest:
    """BLAKE3, plain or with a key of 32 bytes, of the little-endian C-order bytes, whatever the strides and byte order
    of the array.
    """
    data = little_endian(array)
    return content_digest(data) if key is None else keyed_digest(key, data)


def gradient_root(entries: Iterable[TensorEntry]) -> Digest:
    """Root of gradients: BLAKE3, under GRADIENT_ROOT, of the canonical document that lists them by role and name.

    Entries may come in any order; BadArtifact when there is none, when two are alike, or when a role is not "grad".
    """
    listed = sorted_entries(entries, "gradient")
    if any(entry.role != "grad" for entry in listed):
        raise BadArtifact('gradient: every entry has the role "grad"')
    document = {"format": GRADIENT_FORMAT, "tensors": [entry.to_value() for entry in listed]}
    return root(GRADIENT_ROOT, canonical.dumps(document, what="gradient"))


class TensorTexts:
    """The tensors of documents that differ in nothing but their digests, as a run has them step after step.

    Everything else is checked and written once: for 75 tensors a general writer takes a millisecond every time.
    """

    def __init__(self, entries: Sequence[TensorEntry], what: str) -> None:
        """`entries` in any order, with any digest; BadArtifact when there is none or a role and name repeat."""
        self._order = sorted(range(len(entries)), key=lambda i: entries[i].order)
        check_order(tuple(entries[i] for i in self._order), what)
        listed = (canonical.dumps(entries[i].to_value(), what=what).decode("ascii") for i in self._order)
        # "digest" is the first of an entry's keys
        self._tails = [
            text.removeprefix(f'{{"digest":"{entries[i].digest}') for i, text in zip(self._order, listed, strict=True)
        ]

    def text(self, digests: Sequence[Digest]) -> str:
        """The canonical list, with one digest for each entry, in the order of the entries given."""
        pieces = [f'{{"digest":"{digests[i]}{tail}' for i, tail in zip(self._order, self._tails, strict=True)]
        return f"[{','.join(pieces)}]"


class GradientTexts:
    """`gradient_root` of gradients of the same names, dtypes and shapes, step after step."""

    def __init__(self, layout: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> None:
        """`layout` has name, dtype and shape of each gradient, in any order; BadArtifact as `gradient_root`."""
        entries = [TensorEntry(name, "grad", dtype_name(dtype), shape, ZERO_DIGEST) for name, dtype, shape in layout]
        self._tensors = TensorTexts(entries, "gradient")

    def root(self, digests: Sequence[Digest]) -> Digest:
        """The root, given the digest of each gradient in the order of the layout."""
        text = f'{{"format":"{GRADIENT_FORMAT}","tensors":{self._tensors.text(digests)}}}'
        return root(GRADIENT_ROOT, text.encode("ascii"))


def sorted_entries(entries: Iterable[TensorEntry], what: str) -> tuple[TensorEntry, ...]:
    """Entries in document order (role, name); BadArtifact when there is none or a role and name repeat."""
    listed = tuple(sorted(entries, key=lambda entry: entry.order))
    check_order(listed, what)
    return listed


def check_order(entries: tuple[TensorEntry, ...], what: str) -> None:
    """Refuse an empty list (its digest would look valid), entries out of order, and repeated ones."""
    if not entries:
        raise BadArtifact(f"{what}: no tensors")
    for before, after in zip(entries, entries[1:], strict=False):
        if before.order == after.order:
            raise BadArtifact(f"{what}: tensor {shown(after.role + '/' + after.name)} is listed twice")
        if before.order > after.order:
            raise BadArtifact(
                f"{what}: tensor {shown(after.role + '/' + after.name)} is out of order (role, then name)"
            )
