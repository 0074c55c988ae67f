"""Sums by which an array that was in main memory is known again (cuda/checksum.cu): has any bit of it changed?

They are for broken cells and bits that flip, at the speed of memory, and no use against anybody who means harm. A
change within eight bytes is found for certain; of others all but one in 2^63 or less (checksum.cu says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auditkit.kernels.tensor_table import TILE, TensorTable

if TYPE_CHECKING:
    from auditkit.kernels.device import Array, Device

SUMS = 4
_WORD = 8  # bytes
_STEP, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # as in checksum.cu


def checksums(device: Device, arrays: Sequence[Array]) -> Array:
    """(n, 8) uint32: four sums of 64 bits of each array's bytes in C order. One launch; does not wait.

    arrays: of any dtype and size, also empty. ValueError: an array with strides.
    """
    if any(not array.flags.c_contiguous for array in arrays):
        raise ValueError("only C-contiguous arrays can be summed in place")
    sums = device.zero_words(2 * SUMS * len(arrays), kept=True).reshape((len(arrays), 2 * SUMS))
    sizes = [int(array.nbytes) for array in arrays]
    words = [-(-size // _WORD) for size in sizes]
    tiles = [-(-count // TILE) for count in words]
    before = np.cumsum([0, *tiles])[:-1]
    table = np.array([before, words, [device.address(array) for array in arrays], sizes], np.uint64)
    made = TensorTable(device.upload(table), len(arrays), sum(tiles), sum(words))
    made.launch(device, "checksum", "checksum", (sums,))
    return sums


def checksum_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The sums of a host array, (4,) uint64, spelled out."""
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    padded = np.zeros(-(-raw.size // (2 * _WORD)) * 2 * _WORD, np.uint8)
    padded[: raw.size] = raw
    turned = np.packbits(np.unpackbits(padded, bitorder="little").reshape(-1, 8 * _WORD)[:, ::-1], bitorder="little")
    z = np.repeat(np.arange(padded.size // (2 * _WORD), dtype=np.uint64), 2) * _STEP
    z = (z ^ z >> np.uint64(32)) * _MIX
    z ^= z >> np.uint64(32)
    more = z * _MIX
    both = ((padded, z), (turned, more ^ more >> np.uint64(32)))
    products = [(words.view("<u8").astype(np.uint64) * (by | np.uint64(1))).reshape(-1, 2) for words, by in both]
    return np.concatenate([np.add.reduce(made, axis=0, dtype=np.uint64) for made in products])
