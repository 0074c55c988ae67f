"""The binary64 functions: vectors, accuracy against 60 decimal digits, constants, domains, the order of pow_int."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from auditkit.errors import UsageError
from auditkit.numerics import angle, float64
from auditkit.numerics.arrays import F64
from auditkit.numerics.float64 import cos64, exp64, log64, pow_int, sin64
from auditkit.numerics.philox import philox
from tests.ops import high_precision
from tests.ops.elementary_checks import load
from tests.ops.high_precision import PI_SCALE, pi_times, sin_cos, worst_ulp
from tests.same_bits import assert_same_bits

FUNCTIONS: dict[str, Callable[[F64 | float], F64]] = {"exp64": exp64, "log64": log64, "sin64": sin64, "cos64": cos64}


def uniform(count: int, stream: int) -> F64:
    """Numbers in [0, 1) with 53 random bits."""
    words = philox(64, stream, 0, count)[:, :2].astype(np.uint64)
    return ((words[:, 0] << np.uint64(21)) ^ (words[:, 1] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def words(texts: list[str]) -> F64:
    """Binary64 numbers with these hex patterns."""
    return np.array([int(t, 16) for t in texts], np.uint64).view(np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors(name: str) -> None:
    cases = load("float64")[name]
    assert_same_bits(FUNCTIONS[name](words([c[0] for c in cases])), words([c[1] for c in cases]))


def test_vectors_of_pow_int() -> None:
    cases = load("float64")["pow_int"]
    got = np.array([pow_int(float(words([base])[0]), n) for base, n, _ in cases])
    assert_same_bits(got, words([c[2] for c in cases]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_and_scalars_give_the_same_bits(name: str) -> None:
    op = FUNCTIONS[name]
    x = (uniform(24, 1) * 9 + 0.1).reshape(2, 3, 4)
    before, whole = x.copy(), op(x)
    assert_same_bits(x, before)
    assert_same_bits(op(x[:, ::2, ::-1]), np.ascontiguousarray(whole[:, ::2, ::-1]))
    assert_same_bits(op(np.empty((0, 3))), np.empty((0, 3)))
    for i in np.ndindex(x.shape):
        assert_same_bits(op(float(x[i])), np.array(whole[i]))
    with np.errstate(all="raise"):
        assert_same_bits(op(x), whole)


def test_exp64_accuracy() -> None:
    u = uniform(600, 2)
    x = np.concatenate([u * 1453 - 744, u * 2 - 1, u * 38 - 746, (np.rint(u * 1000 - 500) + 0.5) * 0.6931471805599453])
    error, where = worst_ulp(exp64(x), x, lambda d: d.exp())
    assert error < 1.0, f"{error} ulp at {where!r}"


def test_log64_accuracy() -> None:
    u = uniform(600, 3)
    every_binade = np.array([2.0**k for k in range(-1074, 1024, 7)]) * 1.3
    x = np.concatenate([u + 0.5, u * 0.02 + 0.99, every_binade, u * 1e-310, u * 1e6 + 5e-324])
    error, where = worst_ulp(log64(x), x, lambda d: d.ln())
    assert error < 1.0, f"{error} ulp at {where!r}"


@pytest.mark.parametrize(("op", "index"), [(sin64, 0), (cos64, 1)], ids=["sin64", "cos64"])
def test_sin64_and_cos64_accuracy(op: Callable[[F64 | float], F64], index: int) -> None:
    u = uniform(300, 4)
    next_to_zeros = np.rint(u * 2.0**20) * 1.5707963267948966
    x = np.concatenate([u * 0.8, u * 8, next_to_zeros, np.nextafter(next_to_zeros, 0), u * float64.MAX_ANGLE])
    x = np.concatenate([x, -x[::5], 2.0 ** -np.arange(0, 1074, 50.0)])
    error, where = worst_ulp(op(x), x, lambda d: sin_cos(d)[index])
    assert error < 1.0, f"{error} ulp at {where!r}"


def test_special_values() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([0.0, -0.0, 1.0, inf, -inf, -1.0, nan, -nan, 710.0, -746.0])
    assert_same_bits(exp64(x)[[0, 1, 3, 4, 6, 7, 8, 9]], np.array([1, 1, inf, 0, nan, nan, inf, 0.0]))
    assert_same_bits(log64(x)[:8], np.array([-inf, -inf, 0, inf, nan, nan, nan, nan]))
    assert_same_bits(sin64(np.array([0.0, -0.0, 5e-324, -5e-324])), np.array([0.0, -0.0, 5e-324, -5e-324]))
    assert_same_bits(cos64(np.array([0.0, -0.0, 5e-324])), np.array([1.0, 1.0, 1.0]))


@pytest.mark.parametrize("x", [1647099.1, -1647100.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("op", [sin64, cos64])
def test_angles_outside_the_domain_are_refused(op: Callable[[F64 | float], F64], x: float) -> None:
    with pytest.raises(UsageError, match="angles up to 1647099 only"):
        op(np.array([0.0, x]))


def test_constants() -> None:
    pi = Fraction(pi_times(PI_SCALE), PI_SCALE)
    assert float64.PI == float(pi)
    assert angle.HALF_PI == float(pi / 2)
    assert float64.TWO_OVER_PI == float(2 / pi)
    assert int(2 * Fraction(1 << 256) / pi) == angle.TWO_OVER_PI
    rest = pi / 2 - sum(Fraction(float(part)) for part in float64.HALF_PI_PARTS)
    assert float64.HALF_PI_REST == float(rest)
    for part in float64.HALF_PI_PARTS:
        assert int(part.view(np.uint64)) % (1 << 20) == 0  # 33 significant bits
    with localcontext() as context:
        context.prec = high_precision.DIGITS
        ln2 = Fraction(Decimal(2).ln())
    assert float64.LOG2E == float(1 / ln2)
    assert float64.LN2_LO == float(ln2 - Fraction(float(float64.LN2_HI)))
    assert int(float64.LN2_HI.view(np.uint64)) % (1 << 21) == 0  # 32 significant bits


def test_pow_int_multiplies_in_the_written_order() -> None:
    b = 0.999
    b2 = b * b
    b4 = b2 * b2
    assert pow_int(b, 0) == 1.0
    assert pow_int(b, 1) == b
    assert pow_int(b, 5) == b * b4
    assert pow_int(b, 7) == (b * b2) * b4
    assert pow_int(b, 2**24 + 1) == 0.0
    assert pow_int(2.0, 1000) == 2.0**1000


@pytest.mark.parametrize("n", [1, 2, 10, 255, 256, 257, 1000, 65536])
@pytest.mark.parametrize("base", [0.9, 0.95, 0.99, 0.999])
def test_pow_int_is_close_to_the_power(base: float, n: int) -> None:
    """Each of the n factors is as wrong as the squares are: the relative error grows like n 2^-53."""
    exact = Fraction(base) ** n
    if float(exact) > 1e-300:
        assert abs(Fraction(pow_int(base, n)) - exact) <= exact * n * Fraction(2) ** -53


def test_pow_int_refuses_a_negative_exponent() -> None:
    with pytest.raises(UsageError, match="negative"):
        pow_int(0.9, -1)
