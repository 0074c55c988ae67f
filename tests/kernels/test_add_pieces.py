"""Sums and digests of tensors whose gradients come in pieces (cuda/exact_sum.cu), against integers and BLAKE3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.formats.digest import content_digest, keyed_digest
from auditkit.kernels.blake3 import TensorDigest
from auditkit.kernels.exact_sum import add_pieces
from auditkit.numerics import exact_sum as reference
from tests.kernels.variants import SUM_RANGE, runs
from tests.ops.cases import floats
from tests.same_bits import assert_same_bits


@pytest.mark.parametrize("in_fixed", [False, True])
@pytest.mark.parametrize(
    ("size", "cut"), [(5, 5), (16_384, 16_384), (16_385, 16_384), (70_001, 32_768), (40_000, 999), (700, 300)]
)
def test_add_pieces_of_a_tensor(device: Any, size: int, cut: int, in_fixed: bool) -> None:
    """Tensors that are whole, in pieces of whole blocks of 128 KiB, and in others, which the host hashes."""
    x = floats(size, size, low=-60, high=4)
    terms = reference.to_fixed(x, 56) if in_fixed else x
    exact = reference.to_fixed(x, 56)
    before = np.arange(size, dtype=np.int64) * -(1 << 40)
    for run in runs(device):
        for total in (None, run.up(before)):
            digest, found = TensorDigest(run.device, 8 * size), []
            for at in range(0, size, cut):
                piece = None if total is None else total[at : at + cut]
                given = run.up(terms[at : at + cut])
                found += add_pieces(run.device, run.status, [piece], [given], 56, [digest])
                assert total is None or found[-1] is piece
            assert digest.digest() == content_digest(exact)
            assert_same_bits(
                np.concatenate([run.down(part) for part in found]), exact + (0 if total is None else before)
            )
        assert run.bits() == 0


class Counting:
    """A device whose launches are noted."""

    def __init__(self, device: Any) -> None:
        self._device, self.kernels = device, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, op: str, kernel: str, *args: Any, **options: Any) -> None:
        self.kernels.append(kernel)
        self._device.launch(op, kernel, *args, **options)


def test_add_pieces_of_several_tensors(device: Any) -> None:
    """Whole ones of one block and of several, and pieces of one that follow each other, go by in one launch."""
    sizes = (5, 40_000, 2048, 16_384, 16_385, 1)
    for run in runs(device):
        terms, totals, expected = [], [], []
        for number, size in enumerate(sizes):
            x = floats(60 + number, size, low=-60, high=4)
            exact = reference.to_fixed(x, 56)
            before = None if number % 3 == 1 else np.arange(size, dtype=np.int64) * (1 << 40)
            terms.append(run.up(exact if number % 2 else x))
            totals.append(None if before is None else run.up(before))
            expected.append((exact, exact if before is None else exact + before))
        digests = [TensorDigest(run.device, 8 * size) for size in sizes]
        cut, in_pieces = floats(70, 40_000, low=-60, high=4), TensorDigest(run.device, 8 * 40_000)
        of_cut, last = np.arange(32_768, 40_000, dtype=np.int64) * (1 << 40), reference.to_fixed(cut[32_768:], 56)
        launched: Any = Counting(run.device)
        made = add_pieces(
            launched,
            run.status,
            [None, *totals, None, run.up(of_cut)],
            [run.up(cut[:16_384]), *terms, run.up(cut[16_384:32_768]), run.up(last)],
            56,
            [in_pieces, *digests, in_pieces, in_pieces],
        )
        assert launched.kernels == ["add_hashed"]
        first, *made, second, third = made
        exact = reference.to_fixed(cut, 56)
        assert in_pieces.digest() == content_digest(exact)
        assert_same_bits(np.concatenate([run.down(first), run.down(second)]), exact[:32_768])
        assert_same_bits(run.down(third), last + of_cut)
        for total, sums, digest, (exact, added) in zip(totals, made, digests, expected, strict=True):
            assert total is None or sums is total
            assert_same_bits(run.down(sums), added)
            assert digest.digest() == content_digest(exact)
        assert run.bits() == 0
        with pytest.raises(ValueError, match="different sizes"):
            add_pieces(run.device, run.status, [totals[0]], [terms[1]], 56, [TensorDigest(run.device, 8 * 40_000)])


def test_add_pieces_with_a_key(device: Any) -> None:
    for run in runs(device):
        digest = TensorDigest(run.device, 8 * 300, bytes(range(32)))
        (sums,) = add_pieces(run.device, run.status, [None], [run.up(floats(1, 300, high=4))], 56, [digest])
        assert digest.digest() == keyed_digest(bytes(range(32)), run.down(sums))


@pytest.mark.parametrize("cut", [16_384, 20_000, 999])
def test_pieces_set_status(device: Any, cut: int) -> None:
    for run in runs(device):
        digest = TensorDigest(run.device, 8 * 20_000)
        x, total = np.zeros(20_000, np.float32), run.up(np.full(20_000, 1 << 61, np.int64))
        x[19_001] = 32
        for at in range(0, 20_000, cut):
            assert run.bits() == 0
            add_pieces(run.device, run.status, [total[at : at + cut]], [run.up(x[at : at + cut])], 56, [digest])
            if at + cut > 19_001:
                break
        assert run.bits() == SUM_RANGE


def test_a_tensor_that_is_all_there_takes_no_more(device: Any) -> None:
    """Nor does one whose next piece cannot be added: its digest has not gone on."""
    for run in runs(device):
        for size in (300, 40_000):
            term, digest = run.up(floats(1, size, high=4)), TensorDigest(run.device, 8 * size)
            with pytest.raises(ValueError, match="different sizes"):
                add_pieces(run.device, run.status, [term[:-1]], [term], 56, [digest])
            with pytest.raises(ValueError):
                add_pieces(run.device, run.status, [None, None], [term, term], 56, [digest, digest])
            whole = TensorDigest(run.device, 8 * size)
            (sums,) = add_pieces(run.device, run.status, [None], [term], 56, [whole])
            assert whole.digest() == content_digest(run.down(sums))
