"""Philox4x32-10: the published known answers, vectors, independence of the way blocks are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.errors import UsageError
from auditkit.numerics.philox import philox, philox4x32
from tests.ops.elementary_checks import load
from tests.same_bits import assert_same_bits

# Random123, tests/kat_vectors, lines "philox4x32 10"
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    """Hex words, separated by spaces."""
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_published_known_answers(counter: str, key: str, answer: str) -> None:
    k0, k1 = words(key)
    got = philox4x32(np.array([words(counter)] * 3, np.uint32), (k0, k1))
    assert_same_bits(got, np.array([words(answer)] * 3, np.uint32))


def test_vectors() -> None:
    vector = load("philox")
    for counter, key, answer in vector["raw"]:
        k0, k1 = words(" ".join(key))
        got = philox4x32(np.array([words(" ".join(counter))], np.uint32), (k0, k1))
        assert_same_bits(got[0], np.array(words(" ".join(answer)), np.uint32))
    for seed, stream, start, answer in vector["blocks"]:
        got = philox(int(seed, 16), int(stream, 16), int(start, 16), 4)
        assert_same_bits(got.reshape(-1), np.array(words(" ".join(answer)), np.uint32))


def test_counter_and_key_words_are_where_the_specification_says() -> None:
    seed, stream, block = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x11111111FFFFFFFF
    counter = np.array([[0xFFFFFFFF, 0x11111111, 0x76543210, 0xFEDCBA98]], np.uint32)
    assert_same_bits(philox(seed, stream, block, 1), philox4x32(counter, (0x89ABCDEF, 0x01234567)))


def test_a_block_does_not_depend_on_the_others_asked_for() -> None:
    start = 2**32 - 100  # across the carry into the second counter word
    whole = philox(7, 9, start, 300)
    for first, count in ((0, 300), (99, 3), (100, 1), (250, 50), (17, 0)):
        assert_same_bits(philox(7, 9, start + first, count), whole[first : first + count])


def test_the_counter_is_not_changed() -> None:
    counter = np.arange(40, dtype=np.uint32).reshape(10, 4)
    before = counter.copy()
    strided = philox4x32(counter[::2], (1, 2))
    assert_same_bits(counter, before)
    assert_same_bits(strided, philox4x32(counter[::2].copy(), (1, 2)))


OUTSIDE = [(-1, 0, 0), (1 << 64, 0, 0), (0, -1, 0), (0, 1 << 64, 0), (0, 0, -1), (0, 0, (1 << 64) - 1)]


@pytest.mark.parametrize("arguments", OUTSIDE)
def test_what_does_not_fit_64_bits_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="outside"):
        philox(*arguments, 4)
