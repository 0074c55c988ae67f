"""Tables of tensors in device memory, so that one launch works on many (cuda/tensor_table.cuh)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for

TILE = 4096  # elements that a block works on at a time
BLOCK = 256

_KEPT = 64  # tables a device: a step that uses its buffers in turns meets the same few again and again
_tables: WeakKeyDictionary[Device, OrderedDict[bytes, Array]] = WeakKeyDictionary()


@dataclass(frozen=True)
class TensorTable:
    """words: uint64 (2 + fields, count) on the device; tiles of all tensors together; elements of all together."""

    words: Array
    count: int
    tiles: int
    elements: int

    @classmethod
    def of(cls, device: Device, *fields: Sequence[Array]) -> TensorTable:
        """A column for each tensor: its addresses (or numbers) by field; the first field's arrays give the sizes."""
        sizes = [int(array.size) for array in fields[0]]
        tiles = [blocks_for(size, TILE) for size in sizes]
        before = [0, *accumulate(tiles)][:-1]
        rows = [before, sizes, *([_word(device, entry) for entry in field] for field in fields)]
        words = np.array(rows, np.uint64).reshape(len(rows), len(sizes))
        return cls(_uploaded(device, words), len(sizes), sum(tiles), sum(sizes))

    def launch(
        self, device: Device, op: str, kernel: str, args: Sequence[Any], *, block: int | None = None, blocks: int = 0
    ) -> None:
        """Launch a kernel that takes (table, count, tiles, *args), on a block for each tile or on at most `blocks`."""
        grid = min(self.tiles, blocks) if blocks else self.tiles
        head = (self.words, np.int64(self.count), np.int64(self.tiles))
        device.launch(op, kernel, grid, block or BLOCK, (*head, *args))


def _word(device: Device, entry: Array) -> int:
    return entry if isinstance(entry, int) else device.address(entry)


def _uploaded(device: Device, words: np.ndarray[Any, np.dtype[np.uint64]]) -> Array:
    """The table on the device. It is all numbers, so one with the same words serves again, whatever lies there now."""
    kept = _tables.setdefault(device, OrderedDict())
    key = words.tobytes()
    if key not in kept:
        kept[key] = device.upload(words)
        if len(kept) > _KEPT:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]
