"""cuda/adamw.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.adamw import adamw
from auditkit.numerics import adamw as reference
from tests.kernels.variants import NOT_FINITE, runs
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.ops.cases import awkward_rows, floats, normals, with_value
from tests.same_bits import assert_same_bits

BLOCKS = (32, 64, 256)
SHAPES = ((1,), (0,), (3,), (4,), (5, 51), (4096,), (4097,), (2, 4099), (7,))
CLIP = np.float32(0.37)


def scalars(update: int = 3) -> reference.AdamWScalars:
    return reference.adamw_scalars(
        lr=np.float32(1e-3), beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, update=update
    )


def check(device: Any, tensors: list[tuple[Any, ...]], decayed: list[bool], s: reference.AdamWScalars) -> None:
    """tensors: (param, m, v, grad) of each; new arrays, then in place."""
    want = [reference.adamw(*t, clip=CLIP, scalars=s, decayed=flag) for t, flag in zip(tensors, decayed, strict=True)]
    for run in runs(device):
        for block in BLOCKS:
            fields = [[run.up(tensor[i]) for tensor in tensors] for i in range(4)]
            call = {"clip": CLIP, "scalars": s, "decayed": decayed, "block": block}
            made = adamw(run.device, run.status, *fields, **call)
            old = adamw(run.device, run.status, *fields, **call, out=(fields[0], fields[1], fields[2]))
            for role in range(3):
                for got, replaced, held, new in zip(made[role], old[role], fields[role], want, strict=True):
                    assert replaced is held
                    assert_same_bits(run.down(got), new[role])
                    assert_same_bits(run.down(held), new[role])
        assert run.bits() == 0


def tensor(seed: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (
        normals(seed, *shape),
        normals(seed + 1, *shape, scale=1e-3),
        np.abs(floats(seed + 2, *shape, low=-30, high=-10)),
        floats(seed + 3, *shape, low=-30, high=3),
    )


@pytest.mark.parametrize("update", [1, 2, 48_214])
def test_many_tensors(device: Any, update: int) -> None:
    tensors = [tensor(10 * i, shape) for i, shape in enumerate(SHAPES)]
    check(device, tensors, [i % 3 != 1 for i in range(len(SHAPES))], scalars(update))


def test_awkward_values(device: Any) -> None:
    """First steps from zero moments, subnormal moments, gradients whose square underflows."""
    zeros = np.zeros((9, 16), np.float32)
    rows = awkward_rows(16)
    rows[5] = 1e18
    rows[6] = floats(1, 16, low=-149, high=60)
    check(
        device,
        [(rows, zeros, zeros, rows[::-1].copy()), (zeros, rows * 0, np.abs(rows), rows)],
        [True, False],
        scalars(),
    )


def test_no_tensors(device: Any) -> None:
    for run in runs(device):
        assert adamw(run.device, run.status, [], [], [], [], clip=CLIP, scalars=scalars(), decayed=[]) == ([], [], [])


@pytest.mark.parametrize("value", BAD_VALUES, ids=str)
@pytest.mark.parametrize("role", range(4))
def test_a_new_value_that_is_not_finite_sets_status(device: Any, role: int, value: np.float32) -> None:
    for run in runs(device):
        for size in (5, 4098):
            good, bad = tensor(1, (300,)), list(tensor(2, (size,)))
            bad[role] = with_value(bad[role], value)
            fields = [[run.up(good[i]), run.up(bad[i])] for i in range(4)]
            run.status = run.device.zeros((1,), np.uint32)
            adamw(run.device, run.status, *fields, clip=CLIP, scalars=scalars(), decayed=[True, True])
            assert run.bits() == NOT_FINITE
