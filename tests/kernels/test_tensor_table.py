"""Tables of tensors: what they hold, and that one is made again only when a number in it changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from auditkit.kernels import tensor_table
from auditkit.kernels.tensor_table import TILE, TensorTable


def test_words(device: Any) -> None:
    with device.use():
        arrays = [device.zeros(shape, np.float32) for shape in ((3,), (0,), (TILE,), (TILE + 1,), (2, TILE))]
        table = TensorTable.of(device, arrays, [0, 1, 2, 3, 4])
        addresses = [device.address(array) for array in arrays]
        want = [[0, 1, 1, 2, 4], [3, 0, TILE, TILE + 1, 2 * TILE], addresses, [0, 1, 2, 3, 4]]
        assert device.download(table.words).tolist() == want
        assert (table.count, table.tiles, table.elements) == (5, 6, 4 * TILE + 4)


def test_no_tensors(device: Any) -> None:
    with device.use():
        table = TensorTable.of(device, [], [])
        assert (table.count, table.tiles, table.elements) == (0, 0, 0)


def test_equal_tables_are_one(device: Any) -> None:
    with device.use():
        a, b = device.zeros((5,), np.float32), device.zeros((5,), np.float32)
        first = TensorTable.of(device, [a], [b])
        assert TensorTable.of(device, [a], [b]).words is first.words
        assert TensorTable.of(device, [b], [a]).words is not first.words


def test_old_tables_are_dropped(device: Any) -> None:
    with device.use():
        array = device.zeros((1,), np.float32)
        first = TensorTable.of(device, [array], [0])
        for number in range(1, tensor_table._KEPT + 1):
            TensorTable.of(device, [array], [number])
        assert TensorTable.of(device, [array], [0]).words is not first.words
        assert len(tensor_table._tables[device]) == tensor_table._KEPT
