"""Moves and additions between the ops: elements keep their bits and find their places."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.formats.blake3_tree import BLOCK_BYTES, join_nodes
from auditkit.formats.digest import content_digest, keyed_digest
from auditkit.numerics.layout import add, block_nodes, check_finite, columns, digests, merge_heads, split_heads
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import LARGEST, NOT_FINITE, awkward_rows, floats, frozen, strided, with_value
from tests.ops.oracle.rounding import ieee, real, rn32
from tests.same_bits import assert_same_bits


@pytest.mark.parametrize(("low", "high"), [(-6, 6), (-149, -120), (-149, 120)])
def test_add_rounds_the_exact_sum_once(low: int, high: int) -> None:
    x, y = frozen(floats(1, 8, 9, low=low, high=high), floats(2, 8, 9, low=low, high=high))
    want = [rn32(real(a) + real(b)) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)]
    assert_same_bits(add(x, y), np.array(want, np.float32).reshape(8, 9))
    assert_same_bits(add(strided(x), y), add(x, y))


def test_add_keeps_the_sign_of_zero_and_overflows_in_silence() -> None:
    x = np.array([-0.0, -0.0, LARGEST, 1.5], np.float32)
    y = np.array([-0.0, 0.0, LARGEST, -1.5], np.float32)
    with np.errstate(all="raise"):
        assert add(x, y).view(np.uint32).tolist() == [0x80000000, 0, 0x7F800000, 0]


@pytest.mark.parametrize(("batch", "heads", "tokens", "dim"), [(1, 1, 1, 2), (2, 3, 5, 4), (3, 1, 4, 2), (1, 4, 7, 6)])
def test_split_and_merge_put_row_t_head_h_in_its_place(batch: int, heads: int, tokens: int, dim: int) -> None:
    (x,) = frozen(np.resize(awkward_rows(heads * dim), (batch * tokens, heads * dim)))
    split = split_heads(x, batch, heads)
    assert split.shape == (batch, heads, tokens, dim) and split.flags.c_contiguous
    for b in range(batch):
        for h in range(heads):
            for t in range(tokens):
                assert_same_bits(split[b, h, t], x[b * tokens + t, h * dim : (h + 1) * dim])
    merged = merge_heads(split)
    assert merged.flags.c_contiguous
    assert_same_bits(merged, x)
    assert_same_bits(merge_heads(strided(split)), x)


def test_columns_of_parts() -> None:
    x = np.resize(awkward_rows(11), (9, 11))
    for first, stop in ((0, 11), (0, 4), (3, 8), (10, 11), (5, 5)):
        for cuts in ([], [4], [1, 1, 6]):
            got = columns(frozen(*np.split(x, cuts)), first, stop)
            assert_same_bits(got, np.ascontiguousarray(x[:, first:stop]))
            assert got.flags.c_contiguous


def test_digests_are_of_the_bytes_in_c_order() -> None:
    x, sums = floats(1, 4, 6), np.arange(-3, 3, dtype=np.int64)
    got = digests([x, strided(x), x.astype(">f4"), sums])
    assert got == [content_digest(x.tobytes())] * 3 + [content_digest(sums.astype("<i8").tobytes())]
    key = bytes(range(32))
    keyed = digests([x, strided(x), x.astype(">f4"), sums], key)
    assert keyed == [keyed_digest(key, x.tobytes())] * 3 + [keyed_digest(key, sums.astype("<i8").tobytes())]


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_check_finite_names_the_first_array_that_is_not(bad: np.float32) -> None:
    arrays = {"a": awkward_rows(5), "b": with_value(floats(1, 9), bad), "c": with_value(floats(1, 9), bad)}
    with pytest.raises(NonFinite, match="makes b non-finite"):
        check_finite(arrays)
    check_finite({"a": arrays["a"]})
    check_finite({})


def test_the_oracle_agrees_with_binary32_scalars() -> None:
    """The oracle rounds by integer arithmetic; this machine's adder must be of the same mind."""
    with ieee():
        for a, b in zip(floats(1, 300, low=-149, high=127), floats(2, 300, low=-149, high=127), strict=True):
            assert rn32(real(a) + real(b)).view(np.uint32) == (a + b).view(np.uint32)
            assert rn32(real(a) * real(b)).view(np.uint32) == (a * b).view(np.uint32)


def test_nodes_of_parts_of_tensors_join_to_their_digests() -> None:
    block = BLOCK_BYTES // 4  # elements
    x, y = floats(5, 3 * block + 7), floats(6, 2 * block).astype(">f4")
    parts = [x[:block], x[block:], y[:block], y[block:]]
    nodes = block_nodes(parts, [0, 1, 0, 1], [x.nbytes, x.nbytes, y.nbytes, y.nbytes])
    assert [join_nodes(nodes[0] + nodes[1]), join_nodes(nodes[2] + nodes[3])] == digests([x, y])
