"""Embedding: a gather forward, an exact scatter-add backward that no order of the tokens can change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.numerics.embedding import embedding_backward, embedding_forward
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import NOT_FINITE, SMALLEST, awkward_rows, floats, frozen, strided, with_value
from tests.ops.oracle import layers, sums
from tests.same_bits import assert_same_bits

TOKENS: dict[str, Any] = {
    "all different": np.arange(6)[::-1].copy(),
    "one token throughout": np.full(6, 3),
    "mixed": np.array([6, 0, 6, 2, 0, 6]),
}


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
@pytest.mark.parametrize("name", TOKENS)
def test_forward_takes_rows_bit_for_bit(name: str, dtype: type) -> None:
    table = awkward_rows(5)
    tokens = TOKENS[name].astype(dtype)
    got = embedding_forward(tokens, table)
    assert_same_bits(got, np.stack([table[int(t)] for t in tokens]))
    assert not np.may_share_memory(got, table)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
@pytest.mark.parametrize("name", TOKENS)
def test_backward_equals_the_oracle(name: str, dtype: type) -> None:
    (dx,) = frozen(floats(1, 6, 5, low=-60, high=2))
    tokens = TOKENS[name].astype(dtype)
    tokens.flags.writeable = False
    assert_same_bits(embedding_backward(dx, tokens, 7), layers.embedding_backward(dx, tokens, 7))


def test_backward_keeps_terms_that_binary32_would_lose() -> None:
    dx = np.array([[32.0], [2.0**-56], [-32.0]], np.float32)
    assert embedding_backward(dx[:2], np.array([0, 0]), 1).tolist() == [[(1 << 61) + 1]]
    assert embedding_backward(dx[1:], np.array([0, 0]), 1).tolist() == [[1 - (1 << 61)]]


def test_backward_does_not_depend_on_the_order() -> None:
    dx, tokens = floats(1, 500, 3, low=-40, high=-4), np.arange(500) * 7 % 11
    order = np.random.default_rng(1).permutation(500)
    assert_same_bits(embedding_backward(dx[order], tokens[order], 11), embedding_backward(dx, tokens, 11))


def test_one_token_65536_times() -> None:
    dx = floats(1, 65_536, 2, low=-40, high=-15)
    got = embedding_backward(dx, np.full(65_536, 4, np.uint16), 6)
    want = [sum(sums.fixed(v, 56) for v in column) for column in dx.T]
    assert got[4].tolist() == want
    assert not got[[0, 1, 2, 3, 5]].any()


def test_no_tokens() -> None:
    none = np.zeros(0, np.int64)
    assert embedding_forward(none, floats(1, 3, 4)).shape == (0, 4)
    assert_same_bits(embedding_backward(np.zeros((0, 4), np.float32), none, 3), np.zeros((3, 4), np.int64))


def test_strides_do_not_matter() -> None:
    dx, tokens = floats(1, 6, 4, low=-20, high=0), TOKENS["mixed"]
    wide = np.repeat(tokens, 2)[::2]
    assert_same_bits(embedding_backward(strided(dx), wide, 7), embedding_backward(dx, tokens, 7))
    assert_same_bits(embedding_forward(wide, strided(dx)[:, ::1].repeat(2, axis=0)), dx.repeat(2, axis=0)[tokens])


@pytest.mark.parametrize("bad", [*NOT_FINITE, np.float32(64), np.float32(-64)])
def test_a_gradient_out_of_range_is_refused(bad: np.float32) -> None:
    with pytest.raises(NonFinite):
        embedding_backward(with_value(floats(1, 6, 3, low=-9, high=0), bad), TOKENS["mixed"], 7)


def test_only_the_sum_of_one_token_can_leave_the_range() -> None:
    dx = np.full((4, 1), 32, np.float32)
    assert embedding_backward(dx, np.arange(4), 4).tolist() == [[1 << 61]] * 4
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        embedding_backward(dx, np.array([0, 1, 2, 1]), 4)
    assert embedding_backward(np.full((2, 1), SMALLEST), np.zeros(2, np.int64), 1).tolist() == [[0]]


def test_of_a_tied_table_only_the_sum_with_the_heads_term_counts() -> None:
    dx, tokens = np.full((4, 1), 32, np.float32), np.array([0, 1, 2, 1])
    total = np.array([[5], [-(1 << 61)], [-(1 << 62)], [(1 << 62) - 1]])  # row 3 is not in the batch
    kept = total.copy()
    want = [[(1 << 61) + 5], [1 << 61], [-(1 << 61)], [(1 << 62) - 1]]
    assert embedding_backward(dx, tokens, 4, total).tolist() == want
    assert_same_bits(total, kept)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        embedding_backward(dx, tokens, 4, np.array([[1 << 61], [-(1 << 61)], [0], [0]]))
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        embedding_backward(dx[:1] / 64, tokens[:1], 1, np.array([[(1 << 62) - 1]]))
