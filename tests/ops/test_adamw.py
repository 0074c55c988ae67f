"""AdamW: the step's scalars and the update of one tensor, word for word the oracle."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from auditkit.numerics.adamw import AdamWScalars, adamw, adamw_scalars
from tests.ops.cases import F32, LARGEST, SMALLEST, awkward_rows, floats, frozen, normals, strided
from tests.ops.oracle import update as oracle
from tests.same_bits import assert_same_bits

ONE = np.float32(1)
UPDATES = [1, 2, 3, 10, 255, 256, 257, 1000, 65536, (1 << 24) + 1]
USUAL: dict[str, Any] = {
    "lr": np.float32(1e-3), "beta1": 0.9, "beta2": 0.95, "eps": float(np.float32(1e-8)), "weight_decay": 0.1
}  # fmt: skip


def both_scalars(update: int, **changed: Any) -> tuple[AdamWScalars, oracle.Scalars]:
    """The step's scalars by the op and by the oracle, found equal."""
    given = {**USUAL, **changed}
    got = adamw_scalars(**given, update=update)
    want = oracle.scalars(given["lr"], given["beta1"], given["beta2"], given["eps"], given["weight_decay"], update)
    names = ("beta1", "beta2", "one_minus_beta1", "one_minus_beta2", "sqrt_correction2", "step_size", "decay", "eps")
    for name, value in zip(names, want, strict=True):
        assert_same_bits(np.array(getattr(got, name)), np.array(value))
    assert len(names) == len(dataclasses.fields(AdamWScalars))
    return got, want


def check(arrays: tuple[F32, F32, F32, F32], clip: np.float32 = ONE, update: int = 1, **changed: Any) -> None:
    """Parameter and moments are the oracle's with and without decay; the inputs are left alone."""
    p, m, v, grad = frozen(*arrays)
    got_scalars, want_scalars = both_scalars(update, **changed)
    for decayed in (True, False):
        got = adamw(p, m, v, grad, clip=clip, scalars=got_scalars, decayed=decayed)
        flat = [a.reshape(-1) for a in (p, m, v, grad)]
        want = oracle.adamw(flat[0], flat[1], flat[2], flat[3], clip, want_scalars, decayed=decayed)
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a, b.reshape(p.shape))


def usual(*shape: int) -> tuple[F32, F32, F32, F32]:
    """Parameters, moments and a gradient as a training has them."""
    return normals(1, *shape), normals(2, *shape, scale=1e-3), normals(3, *shape, scale=1e-3) ** 2, normals(4, *shape)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.95), (0.9, 0.999), (0.0, 0.0)])
def test_bias_correction_equals_the_oracle(beta1: float, beta2: float, update: int) -> None:
    check(usual(3, 5), update=update, beta1=beta1, beta2=beta2)


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 5), (2, 3, 4)])
def test_equals_the_oracle_at_every_shape(shape: tuple[int, ...]) -> None:
    check(usual(*shape))


@pytest.mark.parametrize("clip", [1.0, 0.5, 1e-3, 0.3333])
def test_equals_the_oracle_when_clipped(clip: float) -> None:
    check(usual(4, 5), clip=np.float32(clip), update=7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("lr", [0.0, 1e-3, 0.5])
def test_equals_the_oracle_for_every_rate_and_decay(lr: float, weight_decay: float) -> None:
    check(usual(2, 5), lr=np.float32(lr), weight_decay=weight_decay)


def test_equals_the_oracle_at_extreme_values() -> None:
    rows = awkward_rows(5)
    positive = np.abs(rows)
    check((rows, floats(1, 9, 5), positive[::-1], floats(2, 9, 5)))
    check((floats(1, 9, 5), rows, positive, rows[::-1]))
    check((floats(1, 9, 5), floats(2, 9, 5, low=-149, high=-120), floats(3, 9, 5, low=-149, high=-120) ** 2, rows))
    check((np.array([LARGEST]), np.zeros(1, np.float32), np.zeros(1, np.float32), np.array([SMALLEST])))


def test_a_subnormal_second_moment_is_kept() -> None:
    """g = 1e-20: g * g = 1e-40 and 0.001 * g * g = 1e-43 are subnormal; flush-to-zero would leave v at 0."""
    zeros, grad = np.zeros(3, np.float32), np.full(3, 1e-20, np.float32)
    scalars, _ = both_scalars(1, beta2=0.999)
    _, _, v = adamw(zeros, zeros, zeros, grad, clip=ONE, scalars=scalars, decayed=True)
    assert v.view(np.uint32).tolist() == [71, 71, 71]  # 71 * 2^-149 = 9.9e-44
    check((zeros, zeros, zeros, grad), beta2=0.999)


def test_only_decayed_parameters_shrink() -> None:
    p, zeros = normals(1, 5), np.zeros(5, np.float32)
    scalars, _ = both_scalars(1)
    kept = adamw(p, zeros, zeros, zeros, clip=ONE, scalars=scalars, decayed=False)[0]
    assert_same_bits(kept, p)
    shrunk = adamw(p, zeros, zeros, zeros, clip=ONE, scalars=scalars, decayed=True)[0]
    assert_same_bits(shrunk, p * np.float32(1 - float(np.float32(1e-3)) * 0.1))


def test_more_elements_than_a_block_holds() -> None:
    arrays = usual(70_001)
    scalars, _ = both_scalars(3)
    whole = adamw(*arrays, clip=ONE, scalars=scalars, decayed=True)
    for start in (0, 32_767, 65_500):
        at = slice(start, start + 40)
        part = adamw(*(a[at] for a in arrays), clip=ONE, scalars=scalars, decayed=True)
        for got, want in zip(part, whole, strict=True):
            assert_same_bits(got, want[at])


def test_memory_order_does_not_matter() -> None:
    arrays = usual(6, 8)
    scalars, _ = both_scalars(3)
    want = adamw(*arrays, clip=ONE, scalars=scalars, decayed=True)
    for change in (strided, np.asfortranarray):
        got = adamw(*(change(a) for a in arrays), clip=ONE, scalars=scalars, decayed=True)
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a, b)


def test_twenty_steps_stay_close_to_float64() -> None:
    p = normals(1, 50)
    m = v = np.zeros(50, np.float32)
    wide, wide_m, wide_v = p.astype(np.float64), np.zeros(50), np.zeros(50)
    lr, eps = float(USUAL["lr"]), USUAL["eps"]
    for t in range(1, 21):
        grad = normals(t, 50, scale=0.1)
        p, m, v = adamw(p, m, v, grad, clip=ONE, scalars=adamw_scalars(**USUAL, update=t), decayed=True)
        g = grad.astype(np.float64)
        wide_m, wide_v = 0.9 * wide_m + 0.1 * g, 0.95 * wide_v + 0.05 * g * g
        corrected = wide_m / (1 - 0.9**t) / (np.sqrt(wide_v / (1 - 0.95**t)) + eps)
        wide = wide * (1 - lr * 0.1) - lr * corrected
    assert float(np.abs(p - wide).max()) < 2e-6
