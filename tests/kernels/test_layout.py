"""cuda/layout.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.layout import add, check_finite, columns, merge_heads, split_heads
from auditkit.numerics import layout as reference
from auditkit.numerics.nonfinite import NonFinite
from tests.kernels.variants import runs
from tests.ops.cases import NOT_FINITE, awkward_rows, floats, with_value
from tests.same_bits import assert_same_bits

BLOCKS = (32, 64, 256)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 127, 128, 129, 1023, 1024, 1025, 3001])
def test_add(device: Any, size: int) -> None:
    x, y = floats(1, size, low=-149, high=120), floats(2, size, low=-149, high=120)
    for run in runs(device):
        for block in BLOCKS:
            assert_same_bits(run.down(add(run.device, run.up(x), run.up(y), block=block)), reference.add(x, y))


def test_add_of_awkward_values(device: Any) -> None:
    x = awkward_rows(13)
    y = -x[::-1]
    for run in runs(device):
        assert_same_bits(run.down(add(run.device, run.up(x), run.up(y))), reference.add(x, y))
        with pytest.raises(ValueError, match="shapes"):
            add(run.device, run.up(x), run.up(y[1:]))


@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 4, 9, 8), (3, 2, 33, 12), (2, 1, 4, 16), (0, 2, 3, 4)], ids=str
)
def test_heads(device: Any, size: tuple[int, int, int, int]) -> None:
    batch, heads, tokens, dim = size
    x = floats(3, batch * tokens, heads * dim, low=-149, high=127)
    want = reference.split_heads(x, batch, heads) if x.size else np.empty(size, np.float32)
    for run in runs(device):
        for block in BLOCKS:
            if x.size:
                split = split_heads(run.device, run.up(x), batch, heads, block=block)
                assert_same_bits(run.down(split), want)
            assert_same_bits(run.down(merge_heads(run.device, run.up(want), block=block)), x)


@pytest.mark.parametrize("width", [12, 11, 1])
def test_columns_of_parts(device: Any, width: int) -> None:
    x = floats(4, 40, width, low=-149, high=127)
    for run in runs(device):
        for block in BLOCKS:
            for cuts in ([], [4, 4, 39]):
                parts = [run.up(part) for part in np.split(x, cuts)]
                for first, stop in {(0, width), (0, width // 3), (width // 3, width), (width // 2, width // 2)}:
                    got = run.down(columns(run.device, parts, first, stop, block=block))
                    assert_same_bits(got, np.ascontiguousarray(x[:, first:stop]))


def test_heads_that_do_not_fit_are_refused(device: Any) -> None:
    with device.use():
        x = device.upload(np.zeros((6, 8), np.float32))
        for batch, heads in ((4, 2), (2, 3), (0, 2)):
            with pytest.raises(ValueError, match="does not fall"):
                split_heads(device, x, batch, heads)


@pytest.mark.parametrize("value", NOT_FINITE, ids=str)
def test_check_finite_names_the_first(device: Any, value: np.float32) -> None:
    good = [floats(i, size, low=-149, high=127) for i, size in enumerate((5, 0, 4096, 4097, 8200, 1))]
    names = list("abcdef")
    for run in runs(device):
        arrays = {name: run.up(x) for name, x in zip(names, good, strict=True)}
        check_finite(run.device, arrays)
        check_finite(run.device, {})
        for bad in ("adef", "def", "ef", "f"):
            found = {
                n: run.up(with_value(x, value)) if n in bad else arrays[n] for n, x in zip(names, good, strict=True)
            }
            with pytest.raises(NonFinite, match=f"makes {bad[0]} non-finite"):
                check_finite(run.device, found, block=BLOCKS[len(bad) % 3])
