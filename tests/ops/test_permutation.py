"""permute: vectors, a permutation of any size, place by place as written, places apart as if all were asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.permutation import half_bits, permute, stream_of
from tests.ops.elementary_checks import load
from tests.ops.oracle.order import window
from tests.same_bits import assert_same_bits


def order(seed: int, source: int, epoch: int, windows: int) -> list[int]:
    """The whole order of an epoch."""
    found: list[int] = permute(seed, source, epoch, windows, np.arange(windows, dtype=np.int64)).tolist()
    return found


def test_vectors() -> None:
    vector = load("permutation")
    for seed, source, epoch, stream, windows, first, found in vector["cases"]:
        numbers = [int(word, 16) for word in (seed, source, epoch)]
        assert stream_of(numbers[1], numbers[2]) == int(stream, 16)
        places = np.arange(first, first + len(found), dtype=np.int64)
        assert_same_bits(permute(*numbers, windows, places), np.array(found, np.int64))
    large = np.array(order(3, 1, 4, 100_000), "<i8")
    assert blake3(large.tobytes()).hexdigest() == vector["digest"]


@pytest.mark.parametrize(
    ("seed", "source", "epoch", "windows"), [(0, 0, 0, 37), (2**64 - 1, 3, 2**40, 64), (5, 1, 1, 65)]
)
def test_follows_the_written_rounds(seed: int, source: int, epoch: int, windows: int) -> None:
    assert order(seed, source, epoch, windows) == [window(seed, source, epoch, windows, p) for p in range(windows)]


@pytest.mark.parametrize("windows", [2**40, 2**40 - 1, 2**38 + 1, 10**9])
def test_follows_the_written_rounds_in_large_epochs(windows: int) -> None:
    places = [0, 1, windows // 3, windows - 1]
    found = permute(9, 2, 7, windows, np.array(places, np.int64))
    assert found.tolist() == [window(9, 2, 7, windows, place) for place in places]


@pytest.mark.parametrize("windows", [*range(1, 70), 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 20_000])
def test_every_window_once(windows: int) -> None:
    assert sorted(order(0, 0, 0, windows)) == list(range(windows))


def test_places_may_be_asked_for_in_any_order_and_number() -> None:
    whole = order(1, 2, 3, 1000)
    places = np.array([999, 0, 500, 500, 1], np.int64)
    assert permute(1, 2, 3, 1000, places).tolist() == [whole[p] for p in places]
    assert permute(1, 2, 3, 1000, np.empty(0, np.int64)).size == 0


def test_seed_source_and_epoch_each_give_another_order() -> None:
    numbers = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1 << 32, 0, 0), (0, 1 << 32, 0), (0, 0, 1 << 32)]
    assert len({tuple(order(*each, 1000)) for each in numbers}) == len(numbers)


def test_a_window_may_come_anywhere() -> None:
    """Where window 0 of 9 lies in 3600 epochs: each place about 400 times, within five standard deviations (95)."""
    places = Counter(order(0, 0, epoch, 9).index(0) for epoch in range(3600))
    assert all(305 <= places[place] <= 495 for place in range(9)), places


def test_neighbours_are_taken_apart() -> None:
    """Pairs of neighbouring windows that stay neighbours: two are expected of 10,000, as in any random order."""
    found = np.array(order(0, 0, 0, 10_000))
    assert np.count_nonzero(np.abs(np.diff(found)) == 1) <= 12


@pytest.mark.parametrize(("windows", "bits"), [(1, 1), (4, 1), (5, 2), (16, 2), (17, 3), (2**40, 20), (2**38 + 1, 20)])
def test_the_network_is_less_than_four_times_too_large(windows: int, bits: int) -> None:
    assert half_bits(windows) == bits


@pytest.mark.parametrize(
    "arguments",
    [(-1, 0, 0, 4, [0]), (1 << 64, 0, 0, 4, [0]), (0, -1, 0, 4, [0]), (0, 0, 1 << 64, 4, [0]), (0, 0, 0, 0, []),
     (0, 0, 0, (1 << 40) + 1, [0]), (0, 0, 0, 4, [4]), (0, 0, 0, 4, [-1])],
)  # fmt: skip
def test_what_does_not_fit_is_refused(arguments: tuple[int, int, int, int, list[int]]) -> None:
    *numbers, places = arguments
    with pytest.raises(UsageError):
        permute(*numbers, np.array(places, np.int64))
