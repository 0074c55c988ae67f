"""Causal attention: word for word the oracle, strictly causal in every bit, close to float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.numerics import attention
from auditkit.numerics.attention import attention_again, attention_backward, attention_forward, attention_scale
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import F32, NOT_FINITE, floats, frozen, normals, relative_error, strided, with_value
from tests.ops.oracle import attention as oracle
from tests.ops.oracle import sums as oracle_sums
from tests.same_bits import assert_same_bits

BITS = pytest.mark.parametrize("bits", [14, 21])
Inputs = tuple[F32, F32, F32, F32]  # q, k, v, dout
NAMES = ("dq", "dk", "dv")


def inputs(
    batch: int, heads: int, groups: int, tokens: int, dim: int, *, low: int = -3, high: int = 1, seed: int = 0
) -> Inputs:
    """q and dout (B, H, T, D), k and v (B, G, T, D) with exponents from low to high."""
    shapes = [(batch, heads, tokens, dim), (batch, groups, tokens, dim)]
    q, k, v, dout = (floats(seed + i, *shapes[i in (1, 2)], low=low, high=high) for i in range(4))
    return q, k, v, dout


def run(given: Inputs, window: int, bits: int) -> tuple[F32, F32, F32, F32]:
    """Output and the gradients of q, k, v."""
    q, k, v, dout = given
    out, cache = attention_forward(q, k, v, window=window, bits=bits)
    return (out, *attention_backward(dout, cache))


def check(given: Inputs, window: int, bits: int) -> None:
    """Output and gradients are the oracle's, the inputs are left alone."""
    q, k, v, dout = frozen(*given)
    got = run((q, k, v, dout), window, bits)
    out, parts = oracle.forward(q, k, v, window, bits)
    want = (out, *oracle.backward(dout, q, k, v, parts, window, bits))
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)
    cache = attention_forward(q, k, v, window=window, bits=bits)[1]
    made, again = attention_again(q, k, v, (cache.out, cache.row_max, cache.row_sum), window=window, bits=bits)
    for a, b in zip((made, *attention_backward(dout, again)), want, strict=True):
        assert_same_bits(a, b)


@BITS
@pytest.mark.parametrize("window", [0, 1, 2, 3, 7, 8, 100])
def test_equals_the_oracle_for_every_window(window: int, bits: int) -> None:
    check(inputs(1, 2, 1, 7, 4), window, bits)


@BITS
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (2, 2), (4, 2), (6, 2), (3, 1)])
def test_equals_the_oracle_for_grouped_heads(heads: int, groups: int, bits: int) -> None:
    check(inputs(2, heads, groups, 4, 6), 0, bits)
    check(inputs(2, heads, groups, 5, 2), 2, bits)


@pytest.mark.parametrize(("tokens", "dim"), [(1, 2), (2, 8), (3, 6), (8, 4), (9, 10), (17, 2)])
def test_equals_the_oracle_at_boundary_sizes(tokens: int, dim: int) -> None:
    check(inputs(1, 1, 1, tokens, dim), 0, 14)


@BITS
@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-40, 4), (-149, 3), (-80, -55), (20, 40), (52, 60)])
def test_equals_the_oracle_at_extreme_exponents(low: int, high: int, bits: int) -> None:
    """Subnormal rows, rows of very different size, scores so large that one key takes all."""
    check(inputs(1, 2, 1, 5, 4, low=low, high=high), 0, bits)
    q, k, _, _ = inputs(1, 2, 1, 5, 4)
    _, _, v, dout = inputs(1, 2, 1, 5, 4, low=low, high=high)
    check((q, k, v, dout), 3, bits)
    check((q, k, dout[:, :1], np.repeat(v, 2, axis=1)[..., ::-1]), 0, bits)


@BITS
@pytest.mark.parametrize("which", range(4))
def test_equals_the_oracle_with_rows_of_zeros(which: int, bits: int) -> None:
    given = list(inputs(1, 2, 2, 5, 4))
    given[which][:, :, ::2] = 0.0
    given[which][:, 1] = -0.0
    check((given[0], given[1], given[2], given[3]), 0, bits)


@BITS
def test_equals_the_oracle_with_equal_scores(bits: int) -> None:
    q, k, v, dout = inputs(1, 2, 1, 6, 4)
    check((q, np.ones_like(k), v, dout), 0, bits)
    check((np.zeros_like(q), k, v, np.ones_like(dout)), 3, bits)


@BITS
def test_a_first_value_row_far_below_the_later_ones_keeps_its_bits(bits: int) -> None:
    """Under one scale for all keys the small rows would round to zero; under their own they do not."""
    q, k, v, dout = inputs(1, 1, 1, 6, 4)
    v *= np.ldexp(np.float32(1), np.arange(-80, 100, 30))[None, None, :, None].astype(np.float32)
    out = run((q, k, v, dout), 0, bits)[0]
    assert out[0, 0, 0].all()
    check((q, k, v, dout), 0, bits)


def change_later(given: Inputs, at: int, value: str) -> Inputs:
    """Other values from token `at` on: random, huge (scores overflow binary32), or zero."""
    changed = tuple(a.copy() for a in given)
    for i, a in enumerate(changed):
        shape = a[:, :, at:].shape
        if value == "random":
            a[:, :, at:] = floats(50 + i, *shape, low=-20, high=20)
        elif value == "huge":
            a[:, :, at:] = floats(60 + i, *shape, low=120, high=127)
        else:
            a[:, :, at:] = 0.0
    return changed[0], changed[1], changed[2], changed[3]


@BITS
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("value", ["random", "zero"])
def test_later_tokens_change_no_bit_of_an_earlier_position(value: str, window: int, bits: int) -> None:
    given = inputs(2, 4, 2, 9, 6)
    want = run(given, window, bits)
    for at in (1, 4, 8):
        got = run(change_later(given, at, value), window, bits)
        for a, b in zip(got[:2], want[:2], strict=True):  # out, and dq: query i looks at keys up to i only
            assert_same_bits(a[:, :, :at], b[:, :, :at])


@BITS
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_huge_later_values_change_no_bit_of_an_earlier_position(which: str, bits: int) -> None:
    """An earlier query of 2^20 and a later key of 2^120 have an infinite score, which nobody may see."""
    given = inputs(1, 2, 1, 6, 4, low=18, high=20)
    want = attention_forward(*given[:3], window=0, bits=bits)[0]
    huge = list(given)
    huge["qkv".index(which)] = change_later(given, 3, "huge")["qkv".index(which)]
    q, k, v, dout = huge
    got, cache = attention_forward(q, k, v, window=0, bits=bits)
    assert_same_bits(got[:, :, :3], want[:, :, :3])


@BITS
def test_hidden_products_of_the_gradient_change_no_bit(bits: int) -> None:
    """An earlier dout of 2^20 and a later value row of 2^120 have an infinite product, which nobody may see."""
    q, k, v, dout = inputs(1, 2, 1, 6, 4, low=18, high=20)
    dout[:, :, 3:] = 0.0  # a query that sees an infinite product has no result
    want = run((q, k, v, dout), 0, bits)[1]
    v = change_later((q, k, v, dout), 3, "huge")[2]
    assert_same_bits(run((q, k, v, dout), 0, bits)[1][:, :, :3], want[:, :, :3])


@BITS
def test_keys_outside_the_window_change_no_bit(bits: int) -> None:
    q, k, v, dout = inputs(1, 2, 1, 9, 4)
    out, dq, *_ = run((q, k, v, dout), 3, bits)
    k2, v2 = k.copy(), v.copy()
    k2[:, :, :4], v2[:, :, :4] = floats(7, 1, 1, 4, 4, low=120, high=127), floats(8, 1, 1, 4, 4, low=-149, high=100)
    other, cache = attention_forward(q, k2, v2, window=3, bits=bits)
    assert_same_bits(other[:, :, 6:], out[:, :, 6:])  # query 6 sees keys 4, 5, 6


@BITS
def test_other_sequences_and_other_groups_change_no_bit(bits: int) -> None:
    given = inputs(3, 4, 2, 6, 4)
    whole = run(given, 0, bits)
    q, k, v, dout = given
    for b in range(3):
        for g in range(2):
            heads, group = slice(2 * g, 2 * g + 2), slice(g, g + 1)
            one = slice(b, b + 1)
            part = run((q[one, heads], k[one, group], v[one, group], dout[one, heads]), 0, bits)
            for got, want, at in zip(part, whole, (heads, heads, group, group), strict=True):
                assert_same_bits(got, want[one, at])


@BITS
def test_extreme_neighbours_change_no_bit(bits: int) -> None:
    """A sequence of extreme exponents sends the whole batch another way through the code."""
    q, k, v, dout = inputs(2, 2, 1, 6, 4)
    want = run((q[:1], k[:1], v[:1], dout[:1]), 0, bits)
    for low, high in ((-149, -120), (62, 63), (-149, 60)):
        for which in range(4):
            changed = [q.copy(), k.copy(), v.copy(), dout.copy()]
            changed[which][1] = floats(9, *changed[which][1].shape, low=low, high=high)
            got = run((changed[0], changed[1], changed[2], changed[3]), 0, bits)
            for a, b in zip(got, want, strict=True):
                assert_same_bits(a[:1], b)


def test_many_groups_are_cut_into_blocks_without_changing_a_bit() -> None:
    given = inputs(40, 4, 2, 33, 4)
    q, k, v, dout = given
    whole = run(given, 0, 14)
    for b in (0, 17, 39):
        for got, want in zip(
            run((q[b : b + 1], k[b : b + 1], v[b : b + 1], dout[b : b + 1]), 0, 14), whole, strict=True
        ):
            assert_same_bits(got[0], want[b])


@BITS
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("window", [0, 1, 3, 4])
def test_the_cut_into_spans_changes_no_bit(window: int, size: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that divide the tokens and spans that do not, shorter and longer than the window, and every kind of row."""
    monkeypatch.setattr(attention, "_SPAN", size)
    check(inputs(1, 4, 2, 9, 4), window, bits)
    for low, high in ((-149, 3), (-80, -55), (52, 60)):
        check(inputs(1, 2, 1, 6, 2, low=low, high=high), window, bits)
    q, k, v, dout = inputs(1, 2, 2, 7, 4)
    for a in (q, k, v, dout):
        a[:, 1, ::2] = 0.0
    check((q, k, v, dout), window, bits)


@BITS
def test_weights_computed_again_are_the_weights_kept(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(2, 4, 2, 70, 10)
    kept = run(given, 5, bits)
    monkeypatch.setattr(attention, "_KEPT", 0)
    for a, b in zip(run(given, 5, bits), kept, strict=True):
        assert_same_bits(a, b)


def test_more_tokens_than_a_span_equal_the_oracle() -> None:
    for tokens, window in ((65, 0), (129, 2)):
        check(inputs(1, 2, 1, tokens, 2), window, 14)


@BITS
def test_a_longer_sequence_begins_with_the_shorter_one(bits: int) -> None:
    q, k, v, dout = inputs(1, 2, 1, 40, 4)
    whole = run((q, k, v, dout), 0, bits)
    for tokens in (1, 2, 31, 32, 33):
        at = np.s_[:, :, :tokens]
        part = run((q[at], k[at], v[at], dout[at]), 0, bits)
        assert_same_bits(part[0], whole[0][at])
        assert_same_bits(part[1], whole[1][at])


@BITS
def test_strides_do_not_matter(bits: int) -> None:
    q, k, v, dout = inputs(2, 4, 2, 5, 6)
    want = run((q, k, v, dout), 2, bits)
    turned = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in (q, k, v, dout)]
    for views in ([strided(a) for a in (q, k, v, dout)], turned):
        got = run((views[0], views[1], views[2], views[3]), 2, bits)
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a, b)


@BITS
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("which", range(4))
def test_values_that_are_not_finite_are_refused(which: int, bad: np.float32, bits: int) -> None:
    given = list(inputs(1, 2, 1, 4, 4))
    given[which] = with_value(given[which], bad)
    with pytest.raises(NonFinite):
        run((given[0], given[1], given[2], given[3]), 0, bits)


def test_a_key_seen_by_more_than_8192_queries_at_21_bits() -> None:
    """Sums over queries pass the limit of binary64: 64 heads of 130 queries, all weights 1 and all rows maximal."""
    q, k, v, dout = (np.abs(a) for a in inputs(1, 64, 1, 130, 2, low=0, high=0))
    out, cache = attention_forward(q, np.zeros_like(k), v, window=0, bits=21)
    total = np.arange(1, 131, dtype=np.float32)  # equal scores: query i gives each of its i + 1 keys the weight 1
    rows = [oracle_sums.round_row([x / total[i] for x in row], 21) for head in dout[0] for i, row in enumerate(head)]
    bound = max(row.exponent for row in rows)
    want = oracle_sums.weighted_sum([np.float32(1)] * len(rows), rows, bound, 21, 2)
    assert len(rows) == 8320
    assert_same_bits(attention_backward(dout, cache)[2][0, 0, 0], np.array(want, np.float32))


def test_scale_equals_the_oracle() -> None:
    for dim in range(2, 300, 2):
        assert attention_scale(dim).view(np.uint32) == oracle.scale_of(dim).view(np.uint32)


F64 = npt.NDArray[np.float64]


def float64_attention(q: F64, k: F64, v: F64, dout: F64, window: int) -> tuple[F64, F64, F64, F64]:
    """Output and gradients by the formulas, in binary64."""
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, axis=1), np.repeat(v, repeats, axis=1)
    scale = q.shape[-1] ** -0.5
    s = q @ np.swapaxes(k, -1, -2) * scale
    i, j = np.arange(q.shape[2])[:, None], np.arange(q.shape[2])[None]
    s = np.where((j <= i) & ((window == 0) | (i - j < window)), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    out = p @ v
    ds = p * (dout @ np.swapaxes(v, -1, -2) - (dout * out).sum(axis=-1, keepdims=True)) * scale
    dk, dv = np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dout
    folded = [x.reshape(x.shape[0], -1, repeats, *x.shape[2:]).sum(axis=2) for x in (dk, dv)]
    return out, ds @ k, folded[0], folded[1]


@pytest.mark.parametrize(("bits", "tolerance"), [(14, 1e-3), (21, 1e-5)])
@pytest.mark.parametrize("window", [0, 5])
def test_close_to_float64(window: int, bits: int, tolerance: float) -> None:
    shapes = [(2, 4, 48, 16), (2, 2, 48, 16), (2, 2, 48, 16), (2, 4, 48, 16)]
    q, k, v, dout = (normals(seed, *shape) for seed, shape in enumerate(shapes))
    wide = [x.astype(np.float64) for x in (q, k, v, dout)]
    want = float64_attention(wide[0], wide[1], wide[2], wide[3], window)
    for got, exact in zip(run((q, k, v, dout), window, bits), want, strict=True):
        assert relative_error(got, exact) < tolerance
