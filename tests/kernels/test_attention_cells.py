"""cuda/attention_cells.cuh: each step on a warpgroup's cells has the reference's bits, in every form that it has."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.kernels.attention import turned
from auditkit.kernels.device import blocks_for
from auditkit.kernels.exact_dot import quantise
from auditkit.kernels.exact_dot_planes import padded_length
from auditkit.numerics.exp import exp
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]
SCALE = np.float32(1 / np.sqrt(128))
NEAR, FAR, ANY = range(3)


def rounded_to_f32(v: int, x: int) -> np.float32:
    """RN32(v * 2^x) of integers, by the definition: the nearest of a few neighbours, ties to even."""
    exact = Fraction(v) * Fraction(2) ** x
    with np.errstate(over="ignore"):
        guess = np.float32(float(exact)) if abs(exact) < 2**1000 else np.float32(np.inf)
    near = [np.nextafter(guess, np.float32(d)) for d in (-np.inf, np.inf)] + [guess]
    finite = [f for f in near if np.isfinite(f)]
    best = min(finite, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))
    limit = Fraction(2) ** 128 - Fraction(2) ** 103
    return np.float32(np.inf * np.sign(v)) if abs(exact) >= limit else best


def expected_dots(v: npt.NDArray[np.int64], x: Words, y: Words) -> Floats:
    """Of exact sums [64][64], by binary64 where it is exact and rounds once, else by fractions."""
    power = x[:, None].astype(np.int64) + y[None, :] - 26
    with np.errstate(over="ignore"):
        found: Floats = np.ldexp(v.astype(np.float64), power).astype(np.float32)  # |v| < 2^53, no subnormal binary64
    rng = np.random.default_rng(1)
    for i, j in rng.integers(0, 64, (40, 2)):
        assert found[i, j] == rounded_to_f32(int(v[i, j]), int(power[i, j]))
    return found


def dots_case(kind: str, rng: np.random.Generator) -> tuple[Words, ...]:
    """HH, SS, LL, exponents of rows and columns."""
    limit = {"near": 1 << 21, "far": 1 << 23, "any": 1 << 25}.get(kind, 1 << 20)
    r = rng.integers(-limit, limit, (64, 64))
    ll = rng.integers(-(1 << 19), (1 << 19) + 1, (64, 64))
    if kind == "small":
        r, ll = rng.integers(-2, 3, (2, 64, 64))
    if kind == "ties":  # 128 R - 127 LL of 25 bits and more, odd and even halves
        ll = (ll >> 5) << 5
    if kind == "edges":
        r.flat[::7] = rng.choice([-(1 << 22), (1 << 22) - 1, 0, -1], r.flat[::7].shape)
    if kind == "one far":
        r[5, 7] = 1 << 22
    if kind == "one below":
        r[60, 63] = -(1 << 22) - 1
    if kind == "most far":
        r.flat[::5] = rng.choice([-(1 << 24) + 1, (1 << 24) - 1], r.flat[::5].shape)
    if kind == "one any":
        r[33, 0] = -(1 << 24)
    hh = rng.integers(-(1 << 19), 1 << 19, (64, 64)) if kind != "small" else rng.integers(-1, 2, (64, 64))
    spread = {"tame": 61, "small": 61, "wild": 149}.get(kind, 8)
    x, y = rng.integers(-spread, spread + 1, (2, 64))
    if kind == "one wild":
        y[63] = 62
    if kind == "zero":
        y[9], hh[:, 9], r[:, 9], ll[:, 9] = -149, 0, 0, 0
    return tuple(a.astype(np.int32) for a in (hh, r - 127 * hh, ll, x, y))


KINDS = {
    "small": {NEAR}, "near": {NEAR}, "ties": {NEAR}, "edges": {NEAR}, "tame": {NEAR}, "one far": {NEAR, FAR},
    "one below": {NEAR, FAR}, "far": {FAR}, "most far": {FAR}, "one any": {NEAR, ANY}, "any": {ANY},
    "wild": {ANY}, "one wild": {ANY}, "zero": {ANY},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_dots_are_rounded_once(kind: str) -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    rng = np.random.default_rng(len(kind))
    hh, ss, ll, x, y = dots_case(kind, rng)
    v = 16256 * hh.astype(np.int64) + 128 * ss.astype(np.int64) - 127 * ll.astype(np.int64)
    out, reach = device.empty((64, 64), np.int32), device.empty((4,), np.int32)
    device.launch("cells", "dots_of", 1, 128, [*map(device.upload, (hh, ss, ll, x, y)), out, reach, SCALE])
    with np.errstate(over="ignore"):
        expected = expected_dots(v, x, y) * SCALE
    assert_same_bits(device.download(out).view(np.float32), expected)
    assert set(device.download(reach).tolist()) == KINDS[kind]


@pytest.mark.parametrize("least", [-30.0, -59.9, -60.5, -95.0, -300.0])
def test_exps_are_exp_of_the_difference(least: float) -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    rng = np.random.default_rng(3)
    m = rng.standard_normal(64).astype(np.float32)
    s = m[:, None] + (rng.random((64, 64)) * least).astype(np.float32)
    s = np.minimum(s, m[:, None])
    s[:, 3], s[7, :] = m, m[7] + np.float32(least)
    out, tame = device.empty((64, 64), np.int32), device.empty((4,), np.int32)
    device.launch("cells", "exps_of", 1, 128, [device.upload(s.view(np.int32)), device.upload(m), out, tame])
    x = s - m[:, None]
    assert_same_bits(device.download(out).view(np.float32), exp(x))
    assert device.download(tame).tolist() == (x.reshape(4, 16, 64).min(axis=(1, 2)) >= -60).astype(int).tolist()


def test_exps_of_what_is_not_finite() -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    s = np.zeros((64, 64), np.float32)
    s[1, 2], s[20, 5], s[40, 7] = -np.inf, np.nan, np.inf
    m = np.zeros(64, np.float32)
    m[40] = np.inf
    out, tame = device.empty((64, 64), np.int32), device.empty((4,), np.int32)
    device.launch("cells", "exps_of", 1, 128, [device.upload(s.view(np.int32)), device.upload(m), out, tame])
    with np.errstate(invalid="ignore"):
        assert_same_bits(device.download(out).view(np.float32), exp(s - m[:, None]))
    assert device.download(tame).tolist() == [0, 0, 0, 1]


def test_each_binade_of_exps() -> None:
    """Each word around the places where n changes, and many between."""
    device: Any = EmulatedDevice(sources=SOURCES)
    edges = (-(np.arange(86) + 0.5) * np.log(2)).astype(np.float32).view(np.uint32)
    words = np.concatenate([np.arange(int(e) - 40, int(e) + 40, dtype=np.uint32) for e in edges])
    words = np.concatenate([words, np.arange(0x80000000, 0xC2700001, 81_001, dtype=np.uint32)])
    x = np.resize(words, -(-words.size // 4096) * 4096).reshape(-1, 64, 64)
    zeros = device.zeros((x.shape[0] * 64,), np.float32)
    out, tame = device.empty(x.shape, np.int32), device.empty((4 * x.shape[0],), np.int32)
    device.launch("cells", "exps_of", x.shape[0], 128, [device.upload(x.view(np.int32)), zeros, out, tame])
    assert_same_bits(device.download(out).view(np.float32), exp(x.view(np.float32)))
    assert device.download(tame).all()


def hard_quotients(b: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numerators a of 24 bits whose quotients by odd b of 24 bits are within `most` / (2^25 b) of the middle between
    two floats: a 2^s = odd * b + k, so that a = k / 2^s modulo b.
    """
    found_a, found_b = [], []
    for shift in (24, 25):
        half = np.ones_like(b)
        for _ in range(shift):  # 2^-shift modulo b
            half = np.where(half % 2 == 0, half, half + b) // 2
        for k in [*range(-most, 0), *range(1, most + 1)]:
            a = (k * half) % b
            a = np.where(a < 1 << 23, a + b, a)
            right = (a >= 1 << 23) & (a < 1 << 24) & ((a < b) == (shift == 25))
            found_a.append(a[right])
            found_b.append(b[right])
    return np.concatenate(found_a), np.concatenate(found_b)


def quotients(e: Floats, sums: Floats) -> Floats:
    device: Any = EmulatedDevice(sources=SOURCES)
    out = device.empty(e.shape, np.float32)
    arguments = [device.upload(e), device.upload(sums), out, np.int64(e.size)]
    device.launch("cells", "quotients", blocks_for(e.size, 128), 128, arguments)
    return np.asarray(device.download(out))


def test_a_quotient_is_rounded_once() -> None:
    """Next to the middles of floats, where else could it go wrong; at the ends of the range; anywhere."""
    rng = np.random.default_rng(5)
    b = np.concatenate([np.array([(1 << 23) + 1, (1 << 24) - 1]), rng.integers(1 << 22, 1 << 23, 6000) * 2 + 1])
    a, b = hard_quotients(b.astype(np.int64), 12)
    assert a.size > 50_000
    sums = (b / 2.0**23 * 2.0 ** rng.integers(0, 38, b.size)).astype(np.float32)
    e = (a / 2.0**24 * 2.0 ** -rng.integers(0, 86, b.size)).astype(np.float32)
    assert_same_bits(quotients(e, sums), e / sums)
    ends = np.array([1, 1 - 2**-24, 2**-87, 2**-87 * (2 - 2**-23)], np.float32)
    bounds = np.array([1, 1 + 2**-23, 3, 2**19, 2**39 - 2**15], np.float32)
    e, sums = (grid.reshape(-1).copy() for grid in np.meshgrid(ends, bounds))
    assert_same_bits(quotients(e, sums), e / sums)
    e, sums = rng.random(20_000, np.float32), 1 + 4000 * rng.random(20_000, np.float32)
    assert_same_bits(quotients(e, sums), e / sums)


def blocks_of(w: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """The three planes' blocks of integers [64][64] (exact_dot_planes.cuh), columns in the order of store_weights."""
    order = np.array([8 * i + 2 * c + b for c in range(4) for i in range(8) for b in range(2)])
    high = (w + 64) >> 7
    low = w - 128 * high
    rows, places = np.arange(64)[:, None], np.arange(64)[None, :]
    at = rows * 64 + ((((places >> 4) ^ (rows >> 1)) & 3) << 4) + (places & 15)
    planes = np.empty((3, 4096), np.int8)
    for plane, digits in enumerate((high, high + low, low)):
        planes[plane, at] = digits[:, order]
    return planes


def test_digits_are_those_of_the_rounded_weight() -> None:
    """All integers, all halves, neighbours of halves, and what is far below one."""
    whole = np.arange(-8192, 8193)
    halves = (np.arange(-8192, 8192) + 0.5).astype(np.float32)
    below = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    tiny = np.array([2.0**-149, -(2.0**-149), 0.25, -0.0, 1e-30], np.float32)
    w = np.concatenate([whole.astype(np.float32), halves, *below, tiny])
    w = np.resize(w, -(-w.size // 4096) * 4096).reshape(-1, 64, 64)
    for factor in (np.float32(1), np.float32(2.0**60)):
        device: Any = EmulatedDevice(sources=SOURCES)
        out = device.empty((w.shape[0], 3, 4096), np.int8)
        given = w / factor
        device.launch("cells", "digits_of_weights", w.shape[0], 128, [device.upload(given), out, factor])
        expected = np.stack([blocks_of(tile) for tile in np.rint(given.astype(np.float64) * factor).astype(np.int64)])
        assert_same_bits(device.download(out), expected)


@pytest.mark.parametrize(("rows", "length"), [(1, 128), (64, 70), (130, 128)])
def test_turned_rows_stand_in_the_order_of_weights(rows: int, length: int) -> None:
    device: Any = EmulatedDevice(poison=0x3C)
    x = np.random.default_rng(9).standard_normal((2, rows, length)).astype(np.float32)
    status = device.zeros((1,), np.uint32)
    given = quantise(device, status, device.upload(x), 14)
    plain, ordered = (turned(device, [given], ordered=choice) for choice in (False, True))
    assert plain.padded == ordered.padded == padded_length(rows)
    order = np.array([8 * i + 2 * c + b for c in range(4) for i in range(8) for b in range(2)])
    found, expected = (whole_rows(device.download(t.planes)) for t in (ordered, plain))
    expected = expected.reshape(*expected.shape[:2], -1, 64)[..., order]
    assert_same_bits(found.reshape(expected.shape), expected)


def whole_rows(planes: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Planes in blocks (exact_dot_planes.cuh) as rows."""
    count, lines, padded = planes.shape
    blocks = planes.reshape(count, lines // 64, padded // 64, 4096)
    rows, places = np.arange(64)[:, None], np.arange(64)[None, :]
    at = rows * 64 + ((((places >> 4) ^ (rows >> 1)) & 3) << 4) + (places & 15)
    return np.ascontiguousarray(blocks[..., at].swapaxes(2, 3)).reshape(count, lines, padded)


def test_maxima_of_rows_and_columns() -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    x = np.random.default_rng(8).random((64, 64), np.float32)
    rows, columns = device.empty((64,), np.float32), device.empty((4, 64), np.float32)
    device.launch("cells", "maxima", 1, 128, [device.upload(x), rows, columns])
    assert_same_bits(device.download(rows), x.max(axis=1))
    assert_same_bits(device.download(columns), x.reshape(4, 16, 64).max(axis=1))
