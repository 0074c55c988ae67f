"""Sums by which arrays are known again, against the same spelled out; on the emulator and on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.checksum import checksum_of, checksums

TILE_BYTES = 8 * 4096
SIZES = (0, 1, 7, 8, 9, 15, 16, 31, 32, 33, 100, 1023, TILE_BYTES - 1, TILE_BYTES, TILE_BYTES + 1, 3 * TILE_BYTES + 40)


def found(device: Any, arrays: list[Any]) -> list[list[int]]:
    words = device.download(checksums(device, arrays))
    assert words.dtype == np.uint32 and words.shape == (len(arrays), 8)
    return [[int(word) for word in row.view("<u8")] for row in words]


def some(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_sizes(device: Any) -> None:
    values = [some(size, size) for size in SIZES]
    assert found(device, [device.upload(x) for x in values]) == [checksum_of(x).tolist() for x in values]


@pytest.mark.parametrize("size", [1, 40, 65, TILE_BYTES + 5])
@pytest.mark.parametrize("offset", [1, 4, 8, 24])
def test_arrays_that_begin_anywhere(device: Any, offset: int, size: int) -> None:
    values = some(offset + size + 9)
    array = device.upload(values)[offset : offset + size]
    assert found(device, [array]) == [checksum_of(values[offset : offset + size]).tolist()]


def test_dtypes_and_shapes(device: Any) -> None:
    values = [np.arange(35, dtype=dtype).reshape(5, 7) for dtype in (np.int8, np.float32, np.int64)]
    assert found(device, [device.upload(x) for x in values]) == [checksum_of(x).tolist() for x in values]
    with pytest.raises(ValueError, match="C-contiguous"):
        checksums(device, [device.upload(values[1]).T])


def test_what_is_spelled_out() -> None:
    """By integers of Python."""
    values, want = some(75, 3), [0, 0, 0, 0]
    raw = values.tobytes() + bytes(5)
    for i in range(10):
        z = i // 2 * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ z >> 32) * 0xD6E8FEB86659FD93 % 2**64
        z ^= z >> 32
        more = z * 0xD6E8FEB86659FD93 % 2**64
        word = int.from_bytes(raw[8 * i : 8 * i + 8], "little")
        want[i % 2] += word * (z | 1)
        want[2 + i % 2] += int(f"{word:064b}"[::-1], 2) * ((more ^ more >> 32) | 1)
    assert checksum_of(values).tolist() == [total % 2**64 for total in want]


def test_every_bit_counts() -> None:
    values = some(200, 4)
    right = checksum_of(values).tolist()
    for bit in range(8 * values.size):
        other = values.copy()
        other[bit // 8] ^= 1 << bit % 8
        assert checksum_of(other).tolist() != right


@pytest.mark.parametrize("bit", range(64))
def test_the_same_bit_of_several_words_counts(bit: int) -> None:
    """Of two words of a lane, of all, of random ones; flipped, or stuck at either value."""
    drawn = np.random.default_rng(bit)
    words, one = drawn.integers(0, 1 << 63, 512).astype(np.uint64), np.uint64(1) << np.uint64(bit)
    right = checksum_of(words).tolist()
    for step in (1, 2, 4, 8, 16, 64, 128):
        other = words.copy()
        other[::step] ^= one
        assert checksum_of(other).tolist() != right
        for stuck in (words | one, words & ~one):
            other = words.copy()
            other[::step] = stuck[::step]
            assert (checksum_of(other).tolist() != right) == (not np.array_equal(other, words))
    for _ in range(100):
        other = words.copy()
        other[drawn.choice(128, 2, replace=False) * 4] ^= one
        assert checksum_of(other).tolist() != right


def test_the_same_two_bits_of_several_words_count() -> None:
    """Any two, of two words of a lane or of every word: as the signs of both numbers of a pair."""
    words = np.random.default_rng(5).integers(0, 1 << 63, 64).astype(np.uint64)
    right = checksum_of(words).tolist()
    for high in range(64):
        for low in range(high):
            both = np.uint64(1 << high | 1 << low)
            few, all_of_them = words.copy(), words ^ both
            few[[8, 20]] ^= both
            assert checksum_of(few).tolist() != right, (high, low)
            assert checksum_of(all_of_them).tolist() != right, (high, low)


def test_a_change_of_all_signs_counts() -> None:
    x = np.random.default_rng(6).standard_normal(4096).astype(np.float32)
    assert checksum_of(-x).tolist() != checksum_of(x).tolist()
    assert checksum_of(-x.astype(np.float64)).tolist() != checksum_of(x.astype(np.float64)).tolist()


def test_changes_that_one_of_two_sums_does_not_see_are_seen() -> None:
    """Bits at either end, runs of them, and patterns that one sum alone would miss, of 2 to 6 words."""
    drawn = np.random.default_rng(7)
    words = drawn.integers(0, 1 << 63, 256).astype(np.uint64)
    right = checksum_of(words).tolist()
    masks = [1 << 63, 1, 1 << 63 | 1 << 34 | 1 << 5, 1 << 57 | 1 << 28, (1 << 64) - 1, 0xFF << 56, 0xFF]
    for mask in masks:
        for _ in range(300):
            other = words.copy()
            other[drawn.choice(128, 2 + 2 * int(drawn.integers(3)), replace=False) * 2] ^= np.uint64(mask)
            assert checksum_of(other).tolist() != right, hex(mask)


def test_lines_of_memory_do_not_change_places() -> None:
    values = np.zeros(4096, np.uint8)
    values[::8] = np.arange(512) % 251
    right = checksum_of(values).tolist()
    lines = values.reshape(-1, 64)
    for one in range(0, 63, 5):
        swapped, shown = lines.copy(), lines.copy()
        swapped[[one, one + 1]] = lines[[one + 1, one]]
        shown[one] = lines[one + 1]
        assert checksum_of(swapped).tolist() != right
        assert checksum_of(shown).tolist() != right
