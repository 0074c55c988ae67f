"""Normal initialiser: element i of a tensor depends on seed, tensor name and i only (SPEC.md section 6.7)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from auditkit.numerics.angle import sin_cos
from auditkit.numerics.arrays import F32
from auditkit.numerics.elementwise import U32, f32
from auditkit.numerics.log import log
from auditkit.numerics.philox import philox

WORDS = 4  # of a Philox block, one for each element
TWO_PI = f32(0x40C90FDB)
MINUS_TWO = f32(0xC0000000)
TWO_TO_MINUS_24 = f32(0x33800000)

_BLOCKS = 8192  # Philox blocks at a time: about 4 MiB of temporaries


def stream_of(tensor_name: str) -> int:
    """Random stream of a tensor: the first 8 bytes of BLAKE3 of its name in UTF-8, little-endian."""
    return int.from_bytes(blake3(tensor_name.encode("utf-8")).digest(length=8), "little")


def normal(seed: int, tensor_name: str, shape: tuple[int, ...], std: float | np.float32) -> F32:
    """Normal numbers of mean 0 -> float32 array of this shape, C order.

    std is rounded to binary32 first. Raises UsageError unless 0 <= seed < 2^64.
    """
    return normal_slice(seed, tensor_name, 0, math.prod(shape), std).reshape(shape)


def normal_slice(seed: int, tensor_name: str, start: int, stop: int, std: float | np.float32) -> F32:
    """Elements start .. stop - 1, in C order, of what `normal` gives for any shape -> (stop - start,) float32."""
    stream, scale = stream_of(tensor_name), np.float32(std)
    out = np.empty(max(0, stop - start), np.float32)
    for first, count in _runs(start, stop):
        z = _box_muller(philox(seed, stream, first, count)) * scale
        begin = first * WORDS - start  # of these elements in out; negative where start lies inside a block
        piece = z[max(0, -begin) : stop - first * WORDS]
        out[max(0, begin) : max(0, begin) + piece.size] = piece
    return out


def _runs(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(first block, number of blocks) pieces that cover the elements start .. stop - 1."""
    last = -(-stop // WORDS)
    for first in range(start // WORDS, last, _BLOCKS):
        yield first, min(_BLOCKS, last - first)


def _box_muller(words: U32) -> F32:
    """Words (n, 4) -> (4n,) standard normal float32: word pairs (0, 1) and (2, 3) give two elements each."""
    high = words >> np.uint32(8)  # 24 bits: exact in binary32
    u1 = (high[:, 0::2] + np.uint32(1)).astype(np.float32) * TWO_TO_MINUS_24  # (n, 2) in (0, 1]
    u2 = high[:, 1::2].astype(np.float32) * TWO_TO_MINUS_24  # (n, 2) in [0, 1)
    radius = np.sqrt(MINUS_TWO * log(u1))  # (n, 2)
    sine, cosine = sin_cos((u2 * TWO_PI).reshape(-1))  # what sin and cos round, without reducing the angle twice
    z = np.empty(words.shape, np.float32)
    z[:, 0::2] = radius * cosine.astype(np.float32).reshape(radius.shape)
    z[:, 1::2] = radius * sine.astype(np.float32).reshape(radius.shape)
    return z.reshape(-1)
