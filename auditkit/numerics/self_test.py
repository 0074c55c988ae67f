"""The self-test before every verdict: does this machine, in this thread, compute what the specification says?

Two parts: the arithmetic itself (rounding mode, flush-to-zero, fused operations, conversions, integer widths), and
known answers of every op. Rounding mode and flush-to-zero are settings of a thread, which a library may have changed:
`run` is to be called in each thread that computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auditkit.errors import MachineFault
from auditkit.numerics import wide_answers
from auditkit.numerics.arrays import ieee
from auditkit.numerics.known_answers import COMMON, PROBES, answer, known
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.operand_answers import Place

Array = npt.NDArray[Any]

_LENGTH = 67  # elements of an array under test: whole vector registers of every width, and a rest


def run(ops: Any, place: Place = np.asarray) -> None:
    """Check this thread's arithmetic and the known answers of every op.

    ops    the back end's namespace (auditkit.numerics.reference or another with its names)
    place  puts a NumPy array where the arrays of `ops` live
    Raises MachineFault that names what is wrong.
    """
    check_arithmetic()
    check_known_answers(ops, place)


@ieee
def check_arithmetic() -> None:
    """Check NumPy's elementwise operations in this thread, in binary32 and binary64. Raises MachineFault."""
    for width in (32, 64):
        _check_subnormals(width)
        _check_rounding(width)
        _check_fused(width)
    _check_conversions()
    _check_integers()


def check_known_answers(ops: Any, place: Place = np.asarray) -> None:
    """Compare the digest of each op's known answers. Raises MachineFault naming the first op that differs."""
    for name in PROBES:
        check_known_answer(name, ops, place)
    expected = known()
    for name, function in COMMON.items():
        check_equal(f"known answer of {name}", function(), expected[name])


def check_known_answer(name: str, ops: Any, place: Place = np.asarray) -> None:
    """Compare the digest of one op's known answers. Raises MachineFault."""
    try:
        found = answer(name, ops, place)
    except NonFinite as error:
        raise _fault(f"known answer of {name}", str(error), "a result") from error
    check_equal(f"known answer of {name}", found, known()[name])


def check_wide_answer(name: str, ops: Any, place: Place = np.asarray, by: str = "") -> None:
    """Compare the digest of one wide answer; `by` names the kernel. Raises MachineFault."""
    what = f"wide answer of {name}" + (f" by {by}" if by else "")
    try:
        found = wide_answers.answer(name, ops, place)
    except NonFinite as error:
        raise _fault(what, str(error), "a result") from error
    check_equal(what, found, wide_answers.known()[name])


def _fault(what: str, found: str, expected: str) -> MachineFault:
    return MachineFault(
        f"self-test, {what}: found {found}, expected {expected}",
        hint="this says nothing about the publisher; try a fresh process without other libraries, or another machine",
    )


def check_equal(what: str, found: object, expected: object) -> None:
    """Raises MachineFault that says what was found in place of what."""
    if found != expected:
        raise _fault(what, str(found), str(expected))


def _filled(word: int, width: int) -> Array:
    """An array of one bit pattern, as floating-point numbers of `width` bits."""
    return np.full(_LENGTH, word, f"u{width // 8}").view(f"f{width // 8}")


def _same(what: str, found: Array, word: int) -> None:
    """Each element of `found` has this bit pattern. Comparing words: a comparison of numbers may flush, too."""
    width = found.dtype.itemsize
    words = found.view(f"u{width}")
    wrong = np.flatnonzero(words != words.dtype.type(word))
    if wrong.size:
        raise _fault(what, f"{int(words[wrong[0]]):0{2 * width}x}", f"{word:0{2 * width}x}")


# Bit patterns by width.
_ONE = {32: 0x3F800000, 64: 0x3FF0000000000000}
_HALF = {32: 0x3F000000, 64: 0x3FE0000000000000}
_TWO = {32: 0x40000000, 64: 0x4000000000000000}
_NORMAL = {32: 0x00800000, 64: 0x0010000000000000}
_HALF_ULP = {32: 0x33800000, 64: 0x3CA0000000000000}  # 2^-24, 2^-53
_SIGN = {32: 1 << 31, 64: 1 << 63}


def _check_subnormals(width: int) -> None:
    half, two = _filled(_HALF[width], width), _filled(_TWO[width], width)
    normal, subnormal = _filled(_NORMAL[width], width), _filled(_NORMAL[width] >> 1, width)
    zero = _filled(0, width)
    what = f"binary{width}"
    _same(f"{what} flush-to-zero", normal * half, _NORMAL[width] >> 1)
    _same(f"{what} denormals-are-zero", subnormal * two, _NORMAL[width])
    _same(f"{what} denormals-are-zero in a sum", subnormal + zero, _NORMAL[width] >> 1)
    check_equal(f"{what} denormals-are-zero in a comparison", bool((subnormal > zero).all()), True)


def _check_rounding(width: int) -> None:
    one, half_ulp = _filled(_ONE[width], width), _filled(_HALF_ULP[width], width)
    odd = _filled(_ONE[width] + 1, width)
    what = f"binary{width} rounding mode"
    _same(what, one + half_ulp, _ONE[width])
    _same(what, odd + half_ulp, _ONE[width] + 2)
    _same(what, -one - half_ulp, _ONE[width] | _SIGN[width])
    _same(what, -odd - half_ulp, _ONE[width] + 2 | _SIGN[width])
    two = _filled(_TWO[width], width)
    _same(f"binary{width} division", one / (one + two), 0x3EAAAAAB if width == 32 else 0x3FD5555555555555)
    _same(f"binary{width} square root", np.sqrt(two), 0x3FB504F3 if width == 32 else 0x3FF6A09E667F3BCD)
    _same(f"binary{width} rint", np.rint(one * 2.5), 0x40000000 if width == 32 else 0x4000000000000000)
    _same(f"binary{width} rint", np.rint(-one * 3.5), 0xC0800000 if width == 32 else 0xC010000000000000)


def _check_fused(width: int) -> None:
    """a * a + c is 0 when the product is rounded first, 2^-24 (2^-54) when both operations are one."""
    a = _filled(0x3F800800 if width == 32 else 0x3FF0000002000000, width)  # 1 + 2^-12, 1 + 2^-27
    c = -_filled(0x3F801000 if width == 32 else 0x3FF0000004000000, width)  # 1 + 2^-11, 1 + 2^-26
    _same(f"binary{width} fused multiply-add", a * a + c, 0)
    product = a * a
    product += c
    _same(f"binary{width} fused multiply-add", product, 0)


def _check_conversions() -> None:
    doubles = _filled(0x3FF0000010000001, 64)  # 1 + 2^-24 + 2^-52
    _same("binary64 to binary32", doubles.astype(np.float32), 0x3F800001)
    _same("binary64 to subnormal binary32", _filled(0x3698000000000000, 64).astype(np.float32), 1)  # 0.75 * 2^-149
    _same("subnormal binary32 to binary64", _filled(1, 32).astype(np.float64), 0x36A0000000000000)
    integers = np.full(_LENGTH, (1 << 60) + (1 << 36) + 1, np.int64)  # rounded to binary64 first, this would go down
    _same("int64 to binary32", integers.astype(np.float32), 0x5D800001)
    _same("int64 to binary64", np.full(_LENGTH, (1 << 53) + 3, np.int64).astype(np.float64), 0x4340000000000002)
    large = np.ldexp(_filled(_ONE[64], 64), 61)
    check_equal("binary64 to int64", set(large.astype(np.int64).tolist()), {1 << 61})
    fraction, exponent = np.frexp(_filled(1, 32))
    _same("frexp of a subnormal number", fraction, 0x3F000000)
    check_equal("frexp of a subnormal number", set(exponent.tolist()), {-148})
    _same("ldexp to a subnormal number", np.ldexp(_filled(0x3FC00000, 32), -149), 2)  # 1.5 * 2^-149, a tie


def _check_integers() -> None:
    check_equal("bytes of an index", np.dtype(np.intp).itemsize, 8)
    words = np.full(_LENGTH, 0xFFFFFFFF, np.uint32).astype(np.uint64)
    check_equal("64-bit product", set((words * words).tolist()), {0xFFFFFFFE00000001})
    negative = np.full(_LENGTH, -(1 << 40) - 1, np.int64)
    check_equal("64-bit shift", set((negative >> 11).tolist()), {-(1 << 29) - 1})
    check_equal("64-bit sum", int(np.add.reduce(negative, dtype=np.int64)), _LENGTH * (-(1 << 40) - 1))
