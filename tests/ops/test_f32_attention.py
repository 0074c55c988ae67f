"""Attention of the product f32: word for word the oracle, which skips unseen pairs; causal in every bit."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.f32_attention import attention_backward, attention_forward
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import F32, LARGEST, NOT_FINITE, floats, frozen, normals, relative_error, strided, with_value
from tests.ops.oracle import plain
from tests.ops.test_attention import Inputs, change_later, float64_attention, inputs
from tests.same_bits import assert_same_bits


def run(given: Inputs, window: int) -> tuple[F32, F32, F32, F32]:
    """Output and the gradients of q, k, v."""
    q, k, v, dout = given
    out, cache = attention_forward(q, k, v, window=window)
    return (out, *attention_backward(dout, cache))


def check(given: Inputs, window: int) -> None:
    """Output and gradients are the oracle's, the inputs are left alone."""
    q, k, v, dout = frozen(*given)
    out, parts = plain.forward(q, k, v, window)
    want = (out, *plain.backward(dout, q, k, v, parts, window))
    for a, b in zip(run((q, k, v, dout), window), want, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("window", [0, 1, 2, 3, 7, 8, 100])
def test_equals_the_oracle_for_every_window(window: int) -> None:
    check(inputs(1, 2, 1, 7, 4), window)


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (2, 2), (4, 2), (6, 2), (3, 1)])
def test_equals_the_oracle_for_grouped_heads(heads: int, groups: int) -> None:
    check(inputs(2, heads, groups, 4, 6), 0)
    check(inputs(2, heads, groups, 5, 2), 2)


@pytest.mark.parametrize(("tokens", "dim"), [(1, 2), (2, 8), (3, 6), (8, 4), (9, 10), (17, 2)])
def test_equals_the_oracle_at_boundary_sizes(tokens: int, dim: int) -> None:
    check(inputs(1, 1, 1, tokens, dim), 0)


@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-40, 4), (-149, 3), (-80, -55), (20, 30)])
def test_equals_the_oracle_at_extreme_exponents(low: int, high: int) -> None:
    check(inputs(1, 2, 1, 5, 4, low=low, high=high), 0)
    q, k, _, _ = inputs(1, 2, 1, 5, 4)
    _, _, v, dout = inputs(1, 2, 1, 5, 4, low=low, high=high)
    check((q, k, v, dout), 3)


@pytest.mark.parametrize("which", range(4))
def test_equals_the_oracle_with_zeros_of_either_sign(which: int) -> None:
    given = list(inputs(1, 2, 2, 5, 4))
    given[which][:, :, ::2] = 0.0
    given[which][:, 1] = -0.0
    check((given[0], given[1], given[2], given[3]), 0)
    check((given[0], given[1], given[2], given[3]), 2)


def test_equals_the_oracle_where_weights_underflow_to_zero() -> None:
    q, k, v, dout = inputs(1, 2, 1, 6, 4, low=3, high=6)
    assert 0 < np.count_nonzero(plain.forward(q, k, v, 0)[1][0].e[0, 5][0] == 0)
    check((q, k, v, dout), 0)


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("value", ["random", "zero"])
def test_later_tokens_change_no_bit_of_an_earlier_position(value: str, window: int) -> None:
    given = inputs(2, 4, 2, 9, 6)
    want = run(given, window)
    for at in (1, 4, 8):
        got = run(change_later(given, at, value), window)
        for a, b in zip(got[:2], want[:2], strict=True):  # out, and dq: query i looks at keys up to i only
            assert_same_bits(a[:, :, :at], b[:, :, :at])


@pytest.mark.parametrize("which", ["k", "v"])
def test_huge_later_values_change_no_bit_of_an_earlier_position(which: str) -> None:
    """An earlier query of 2^20 and a last key of 2^120 have an infinite or NaN score, which nobody may see."""
    q, k, v, dout = inputs(1, 2, 1, 6, 4, low=18, high=20)
    q[:, :, 5:] = 0.0  # or the last query would see it
    dout[:, :, 5:] = 0.0
    out, dq, *_ = run((q, k, v, dout), 0)
    huge = {"k": k.copy(), "v": v.copy()}
    huge[which][:, :, 5:] = floats(9, 1, 1, 1, 4, low=120, high=125)
    other, other_dq, *_ = run((q, huge["k"], huge["v"], dout), 0)
    assert_same_bits(other[:, :, :5], out[:, :, :5])
    assert_same_bits(other_dq[:, :, :5], dq[:, :, :5])


def test_keys_outside_the_window_change_no_bit() -> None:
    q, k, v, dout = inputs(1, 2, 1, 9, 4)
    out, dq, *_ = run((q, k, v, dout), 3)
    v2 = v.copy()
    v2[:, :, :4] = floats(8, 1, 1, 4, 4, low=-149, high=100)
    other = attention_forward(q, k, v2, window=3)[0]
    assert_same_bits(other[:, :, 6:], out[:, :, 6:])  # query 6 sees keys 4, 5, 6


def test_other_sequences_and_other_groups_change_no_bit() -> None:
    q, k, v, dout = inputs(3, 4, 2, 6, 4)
    whole = run((q, k, v, dout), 0)
    for b, g in np.ndindex(3, 2):
        one, heads, group = slice(b, b + 1), slice(2 * g, 2 * g + 2), slice(g, g + 1)
        part = run((q[one, heads], k[one, group], v[one, group], dout[one, heads]), 0)
        for got, want, at in zip(part, whole, (heads, heads, group, group), strict=True):
            assert_same_bits(got, want[one, at])


def test_many_groups_are_cut_into_blocks_without_changing_a_bit() -> None:
    q, k, v, dout = inputs(40, 4, 2, 33, 4)
    whole = run((q, k, v, dout), 0)
    for b in (0, 17, 39):
        one = slice(b, b + 1)
        for got, want in zip(run((q[one], k[one], v[one], dout[one]), 0), whole, strict=True):
            assert_same_bits(got[0], want[b])


def test_a_longer_sequence_begins_with_the_shorter_one() -> None:
    given = inputs(1, 2, 1, 40, 4)
    whole = run(given, 0)
    for tokens in (1, 2, 31, 32, 33):
        q, k, v, dout = (a[:, :, :tokens] for a in given)
        part = run((q, k, v, dout), 0)
        assert_same_bits(part[0], whole[0][:, :, :tokens])
        assert_same_bits(part[1], whole[1][:, :, :tokens])


def test_strides_do_not_matter() -> None:
    q, k, v, dout = inputs(2, 4, 2, 5, 6)
    want = run((q, k, v, dout), 2)
    for a, b in zip(run((strided(q), strided(k), strided(v), strided(dout)), 2), want, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("which", range(4))
def test_values_that_are_not_finite_are_refused(which: int, bad: np.float32) -> None:
    given = list(inputs(1, 2, 1, 4, 4))
    given[which] = with_value(given[which], bad)
    with pytest.raises(NonFinite):
        run((given[0], given[1], given[2], given[3]), 0)


def test_a_score_of_minus_infinity_gives_the_weight_zero() -> None:
    q, k, v, _ = inputs(1, 1, 1, 3, 2)
    q[...], k[...] = 1.0, 1.0
    q[0, 0, 2], k[0, 0, 1] = LARGEST, -LARGEST  # query 2 and key 1: -inf; query 2 and key 2: finite
    k[0, 0, [0, 2]] = 0.25
    out = attention_forward(q, k, v, window=0)[0]
    assert_same_bits(out[0, 0, 2], (v[0, 0, 0] + v[0, 0, 2]) / np.float32(2))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_without_a_finite_largest_score_has_no_result(sign: int) -> None:
    q, k, v, _ = inputs(1, 1, 1, 3, 2)
    q[0, 0, 1], k[...] = LARGEST, sign * LARGEST
    with pytest.raises(NonFinite):
        attention_forward(q, k, v, window=0)


@pytest.mark.parametrize("window", [0, 5])
def test_close_to_float64(window: int) -> None:
    shapes = [(2, 4, 48, 16), (2, 2, 48, 16), (2, 2, 48, 16), (2, 4, 48, 16)]
    q, k, v, dout = (normals(seed, *shape) for seed, shape in enumerate(shapes))
    wide = [x.astype(np.float64) for x in (q, k, v, dout)]
    want = float64_attention(wide[0], wide[1], wide[2], wide[3], window)
    for got, exact in zip(run((q, k, v, dout), window), want, strict=True):
        assert relative_error(got, exact) < 3e-6
