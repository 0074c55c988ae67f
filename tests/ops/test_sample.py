"""sampled: vectors, the written rule, about the declared share, the same however it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.sample import sampled, stream_of
from tests.ops import elementary_scalar as scalar
from tests.ops.elementary_checks import load


def test_vectors() -> None:
    for seed, source, stream, one_in, chosen in load("sample")["cases"]:
        assert stream_of(int(source, 16)) == int(stream, 16)
        assert np.flatnonzero(sampled(int(seed, 16), int(source, 16), 0, 10_000, one_in)).tolist() == chosen


@pytest.mark.parametrize("one_in", [1, 2, 3, 10])
def test_follows_the_written_rule(one_in: int) -> None:
    stream = int.from_bytes(blake3(b"auditkit tokenizer sample" + (4).to_bytes(8, "little")).digest()[:8], "little")
    want = [scalar.philox(9, stream, j)[0] * one_in < 2**32 for j in range(100, 400)]
    assert sampled(9, 4, 100, 300, one_in).tolist() == want


def test_one_in_one_is_all_and_the_share_is_about_right() -> None:
    assert sampled(0, 0, 0, 1000, 1).all()
    assert 9700 < np.count_nonzero(sampled(0, 0, 0, 1_000_000, 100)) < 10_300


def test_a_part_is_the_part_of_the_whole() -> None:
    assert sampled(1, 2, 70, 30, 3).tolist() == sampled(1, 2, 0, 100, 3)[70:].tolist()


@pytest.mark.parametrize(
    "arguments", [(0, 0, 0, 1, 0), (0, 0, 0, 1, (1 << 20) + 1), (0, -1, 0, 1, 2), (-1, 0, 0, 1, 2)]
)
def test_what_does_not_fit_is_refused(arguments: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(UsageError):
        sampled(*arguments)
