"""sin, cos and pi to 60 digits with the decimal module: the reference of the binary64 tests (it has exp and ln)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np

from auditkit.numerics.arrays import F64

DIGITS = 60


def arctan_of_inverse(n: int, unit: int) -> int:
    """unit * arctan(1/n) in integers, within a few units."""
    term = unit // n
    total, k = term, 1
    while term:
        term //= -n * n
        k += 2
        total += term // k
    return total


def pi_times(unit: int) -> int:
    """unit * pi (Machin's formula), with 64 guard bits."""
    wide = unit << 64
    return (16 * arctan_of_inverse(5, wide) - 4 * arctan_of_inverse(239, wide)) >> 64


PI_SCALE = 10**120
PI = Decimal(f"{pi_times(PI_SCALE)}e-120")  # from text: an operation would round to the 28 digits of the context


def sin_cos(x: Decimal) -> tuple[Decimal, Decimal]:
    """sin x and cos x for |x| up to 1e40, by the series after exact reduction to |r| <= pi/4."""
    with localcontext() as context:
        context.prec = 2 * DIGITS
        quadrant = int((x / (PI / 2)).to_integral_value())
        r = x - quadrant * (PI / 2)
        sine, cosine = taylor(r, r), taylor(Decimal(1), r)
    return [(sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine)][quadrant % 4]


def taylor(first: Decimal, r: Decimal) -> Decimal:
    """first - first r^2/.. + ..: the sine's series from r, the cosine's from 1."""
    k = 1 if first == r else 0
    total, term = first, first
    while abs(term) > Decimal(10) ** (-2 * DIGITS):
        term *= -r * r / ((k + 1) * (k + 2))
        k += 2
        total += term
    return total


def worst_ulp(got: F64, x: F64, reference: Callable[[Decimal], Decimal]) -> tuple[float, float]:
    """The largest error of got (N,) in units of the last place of binary64, and the x (N,) where it is."""
    worst, place = 0.0, 0.0
    with localcontext() as context:
        context.prec = DIGITS
        for value, argument in zip(got, x, strict=True):
            exact = reference(Decimal(float(argument)))
            size = Decimal(float(np.spacing(np.abs(np.float64(float(exact))))))
            error = float(abs(Decimal(float(value)) - exact) / size)
            if error > worst:
                worst, place = error, float(argument)
    return worst, place
