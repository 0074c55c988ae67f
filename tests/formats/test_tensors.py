"""Tensor digests and entries: storage never matters; name, role, dtype and shape always do."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.digest import GRADIENT_ROOT, content_digest, root
from auditkit.formats.state import StateDocument
from auditkit.formats.tensors import (
    DTYPES,
    GradientTexts,
    TensorEntry,
    check_shape,
    dtype_name,
    gradient_root,
    little_endian,
    sorted_entries,
    tensor_digest,
)
from tests.formats.samples import DOCUMENT, array
from tests.formats.strategies import digests, names, shapes

VALUES = array(1, 6, 4)
DIGEST = content_digest(VALUES.astype("<f4").tobytes())


def test_storage_does_not_matter(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", ">f4", "w+", shape=(6, 4))
    mapped[:] = VALUES
    wide = np.zeros((12, 8), np.float32)
    wide[::2, ::-2] = VALUES
    frozen = VALUES.copy()
    frozen.flags.writeable = False
    for same in (VALUES, VALUES.astype(">f4"), np.asfortranarray(VALUES), wide[::2, ::-2], mapped, frozen):
        assert tensor_digest(same) == DIGEST
        assert little_endian(same).tobytes() == VALUES.astype("<f4").tobytes()
        assert little_endian(same).shape == (6, 4)


def test_shape_dtype_role_and_name_decide_the_root_though_the_bytes_are_the_same() -> None:
    digest = tensor_digest(VALUES)
    variants = [
        TensorEntry(name, role, "F32", shape, digest)
        for name, role, shape in itertools.product("ab", ("param", "adam_m"), ((6, 4), (4, 6), (24,), (24, 1)))
    ]
    roots = {StateDocument.of(0, 0, 0, digest, [variant]).root() for variant in variants}
    assert len(roots) == len(variants)
    swapped = [TensorEntry(a, "grad", d, (6, 4), digest) for a in "ab" for d in ("F32", "U32")]
    assert len({gradient_root([entry]) for entry in swapped}) == 4


def test_empty_tensors_and_scalars_are_valid_and_distinct() -> None:
    shapes: list[tuple[int, ...]] = [(0, 5), (5, 0), (0,), (), (1,)]
    entries = [TensorEntry.of("x", "param", np.zeros(shape, np.float32)) for shape in shapes]
    assert [entry.nbytes for entry in entries] == [0, 0, 0, 4, 4]
    assert len({StateDocument.of(0, 0, 0, DIGEST, [entry]).root() for entry in entries}) == 5


def test_minus_zero_and_nan_payloads_are_other_bytes() -> None:
    words = np.array([0, 0x80000000, 0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    assert len({tensor_digest(words[i : i + 1]) for i in range(4)}) == 4
    assert tensor_digest(words[2:3]) == tensor_digest(words[2:3].copy())


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_has_one_name_in_either_byte_order(name: str) -> None:
    assert dtype_name(DTYPES[name]) == dtype_name(DTYPES[name].newbyteorder(">")) == name


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "u1", "u8", "?", "O", "S4", "c8"])
def test_other_dtypes_have_no_place(dtype: str) -> None:
    with pytest.raises(BadArtifact, match="has no place in a document"):
        tensor_digest(np.zeros(2, dtype))


def test_the_gradient_root_is_that_of_the_sorted_document() -> None:
    entries = [TensorEntry.of(name, "grad", np.arange(4, dtype=np.int64)) for name in ("b", "a", "B")]
    listed = [entry.to_value() for entry in (entries[2], entries[1], entries[0])]
    expected = root(GRADIENT_ROOT, canonical.dumps({"format": "auditkit/gradient/v1", "tensors": listed}))
    assert all(gradient_root(order) == expected for order in itertools.permutations(entries))


def test_a_gradient_root_of_nothing_or_of_something_else_is_refused() -> None:
    entry = TensorEntry.of("a", "grad", np.zeros(1, np.int64))
    with pytest.raises(BadArtifact, match="gradient: no tensors"):
        gradient_root([])
    with pytest.raises(BadArtifact, match='"grad/a" is listed twice'):
        gradient_root([entry, entry])
    with pytest.raises(BadArtifact, match='every entry has the role "grad"'):
        gradient_root([TensorEntry.of("a", "param", np.zeros(1, np.float32))])


def test_entries_are_sorted_by_role_then_name() -> None:
    shuffled = DOCUMENT.tensors[::-1]
    assert sorted_entries(shuffled, "document") == DOCUMENT.tensors


@pytest.mark.parametrize(
    "shape", [(-1, 4), (1.0,), (True,), ("1",), (1 << 32, 1 << 32), (1 << 62,), (0, 1 << 62), (1,) * 9]
)
def test_shapes_that_no_tensor_has_are_refused(shape: tuple[object, ...]) -> None:
    with pytest.raises(BadArtifact, match="^x: "):
        check_shape(shape, 4, "x")


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a b", "caf\u00e9", "a\n", "a" * 201])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(BadArtifact, match="is not a tensor name"):
        TensorEntry(name, "param", "F32", (1,), DIGEST)


@pytest.mark.parametrize(("key", "value"), [("role", "weight"), ("dtype", "F16"), ("shape", [1]), ("digest", "A" * 64)])
def test_an_entry_made_in_code_is_checked_as_well(key: str, value: object) -> None:
    fields = {"name": "a", "role": "param", "dtype": "F32", "shape": (1,), "digest": DIGEST, key: value}
    with pytest.raises(BadArtifact, match=f'tensor "a": {key}'):
        TensorEntry(**fields)  # type: ignore[arg-type]


LAYOUT = st.lists(st.tuples(names, st.sampled_from(["<f4", "<i8", ">f4"]), shapes), min_size=1, max_size=5,
                  unique_by=lambda entry: entry[0])  # fmt: skip


@given(LAYOUT, st.data())
def test_gradient_roots_from_texts_are_those_of_the_entries(
    layout: list[tuple[str, str, tuple[int, ...]]], data: st.DataObject
) -> None:
    texts = GradientTexts((name, np.dtype(dtype), shape) for name, dtype, shape in layout)
    for _ in range(2):
        found = [data.draw(digests) for _ in layout]
        entries = [
            TensorEntry(name, "grad", dtype_name(np.dtype(dtype)), shape, digest)
            for (name, dtype, shape), digest in zip(layout, found, strict=True)
        ]
        assert texts.root(found) == gradient_root(entries)


def test_texts_are_refused_like_entries() -> None:
    with pytest.raises(BadArtifact, match="gradient: no tensors"):
        GradientTexts([])
    with pytest.raises(BadArtifact, match="listed twice"):
        GradientTexts([("a", np.dtype("<f4"), (1,)), ("a", np.dtype("<i8"), (1,))])
    with pytest.raises(BadArtifact, match="not a tensor name"):
        GradientTexts([('"', np.dtype("<f4"), (1,))])
