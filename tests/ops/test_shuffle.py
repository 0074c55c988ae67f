"""window_order: vectors, a permutation that follows the written keys, ties, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics import shuffle
from auditkit.numerics.philox import philox
from auditkit.numerics.shuffle import stream_of, window_order
from tests.ops.elementary_checks import load
from tests.same_bits import assert_same_bits


def test_vectors() -> None:
    vector = load("shuffle")
    for seed, epoch, stream, order in vector["cases"]:
        assert stream_of(int(epoch, 16)) == int(stream, 16)
        assert_same_bits(window_order(int(seed, 16), int(epoch, 16), len(order)), np.array(order, np.int64))
    large = window_order(3, 4, 100_000)
    assert blake3(large.astype("<i8").tobytes()).hexdigest() == vector["digest"]


def test_follows_the_written_keys() -> None:
    """Section 6.8 with Python integers; more windows than are drawn at a time."""
    count = 65_536 + 10
    stream = int.from_bytes(blake3(b"auditkit window order" + (2).to_bytes(8, "little")).digest()[:8], "little")
    keys = [int(w0) | int(w1) << 32 for w0, w1, _, _ in philox(9, stream, 0, count)]
    assert window_order(9, 2, count).tolist() == sorted(range(count), key=lambda w: (keys[w], w))


def test_equal_keys_keep_the_order_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(seed: int, stream: int, start: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
        words = philox(seed, stream, start, count)
        words[:, 0] = 0
        words[:, 1] &= 3
        return words

    monkeypatch.setattr(shuffle, "philox", coarse)
    keys = coarse(0, stream_of(0), 0, 5000)[:, 1]
    assert window_order(0, 0, 5000).tolist() == sorted(range(5000), key=lambda w: (int(keys[w]), w))


def test_every_window_once_and_another_order_each_epoch() -> None:
    orders = [window_order(0, epoch, 1000) for epoch in range(3)] + [window_order(1, 0, 1000)]
    for order in orders:
        assert_same_bits(np.sort(order), np.arange(1000, dtype=np.int64))
    assert len({order.tobytes() for order in orders}) == 4


@pytest.mark.parametrize("arguments", [(-1, 0, 4), (1 << 64, 0, 4), (0, -1, 4), (0, 1 << 64, 4), (0, 0, -1)])
def test_what_does_not_fit_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        window_order(*arguments)
