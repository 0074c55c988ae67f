"""cuda/embedding.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.embedding import CHUNK, embedding_backward, embedding_forward
from auditkit.numerics import embedding as reference
from tests.kernels.variants import NOT_FINITE, SUM_RANGE, TOKEN_RANGE, runs
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.ops.cases import floats, normals, with_value
from tests.same_bits import assert_same_bits

BLOCKS = (32, 64, 128)
LENGTHS = (0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 44)
WIDTHS = (1, 3, 4, 15, 16, 17, 127, 130, 516)
VOCAB = 37


def token_cases(n: int) -> dict[str, Any]:
    """Few tokens, one token, each once as far as they go, sorted, the last id only at the end."""
    rng = np.random.default_rng(n)
    cases = {
        "random": rng.integers(0, VOCAB, n),
        "one": np.full(n, 5),
        "in turn": np.arange(n) % VOCAB,
        "sorted": np.sort(rng.integers(0, VOCAB, n)),
    }
    return {name: tokens.astype(np.uint32) for name, tokens in cases.items()}


@pytest.mark.parametrize("width", WIDTHS)
def test_forward(device: Any, width: int) -> None:
    table = floats(width, VOCAB, width, low=-149, high=127)
    for run in runs(device):
        for n in LENGTHS[:5]:
            tokens = token_cases(n)["random"]
            for block in (32, 64, 256):
                got = embedding_forward(run.device, run.status, run.up(tokens), run.up(table), block=block)
                assert_same_bits(run.down(got), reference.embedding_forward(tokens, table))
        assert run.bits() == 0


@pytest.mark.parametrize("case", list(token_cases(0)))
@pytest.mark.parametrize("n", LENGTHS)
def test_backward(device: Any, n: int, case: str) -> None:
    tokens, dx = token_cases(n)[case], normals(n, n, 17, scale=1e-3)
    want = reference.embedding_backward(dx, tokens, VOCAB)
    for run in runs(device):
        for block in BLOCKS:
            got = embedding_backward(run.device, run.status, run.up(dx), run.up(tokens), VOCAB, block=block)
            assert_same_bits(run.down(got), want)
        assert run.bits() == 0


def test_one_token_fills_the_batch(device: Any) -> None:
    """65,536 copies: every atomic of a column meets the others at one address."""
    tokens, dx = np.full(1 << 16, 5, np.uint32), normals(1, 1 << 16, 8, scale=1e-4)
    want = reference.embedding_backward(dx, tokens, 7)
    for run in runs(device):
        got = embedding_backward(run.device, run.status, run.up(dx), run.up(tokens), 7)
        assert_same_bits(run.down(got), want)
        assert run.bits() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_backward_of_all_widths(device: Any, width: int) -> None:
    tokens, dx = token_cases(150)["random"], floats(1, 150, width, low=-149, high=-1)
    want = reference.embedding_backward(dx, tokens, VOCAB)
    before = np.arange(VOCAB * width, dtype=np.int64).reshape(VOCAB, width) << 40
    for run in runs(device):
        for block in BLOCKS:
            total = run.up(before)
            got = embedding_backward(
                run.device, run.status, run.up(dx), run.up(tokens), VOCAB, total=total, block=block
            )
            assert got is total
            assert_same_bits(run.down(got), before + want)
        assert run.bits() == 0


def test_large_terms_are_added_with_a_check(device: Any) -> None:
    """Terms from 2^55 on leave the fast path; their sum is still exact below 2^62 and refused above."""
    tokens = np.zeros(200, np.uint32)
    for size, bits in ((0.25, 0), (0.31, 0), (0.33, SUM_RANGE), (40.0, SUM_RANGE)):
        dx = np.full((200, 5), size, np.float32)
        for run in runs(device):
            for block in BLOCKS:
                run.status = run.device.zeros((1,), np.uint32)
                got = embedding_backward(run.device, run.status, run.up(dx), run.up(tokens), 2, block=block)
                assert run.bits() == bits
                if not bits:
                    assert_same_bits(run.down(got), reference.embedding_backward(dx, tokens, 2))


@pytest.mark.parametrize("value", [*BAD_VALUES, np.float32(-64)], ids=str)
def test_a_gradient_out_of_range_sets_status(device: Any, value: np.float32) -> None:
    tokens, dx = token_cases(130)["random"], with_value(normals(1, 130, 6), value)
    for run in runs(device):
        embedding_backward(run.device, run.status, run.up(dx), run.up(tokens), VOCAB)
        assert run.bits() == NOT_FINITE


def test_a_token_beyond_the_vocabulary_sets_status(device: Any) -> None:
    """And nothing is read or written out of bounds."""
    tokens = token_cases(130)["random"]
    for bad in (VOCAB, 2**32 - 1):
        tokens[77] = bad
        for run in runs(device):
            for width in (3, 4):
                run.status = run.device.zeros((1,), np.uint32)
                table = run.up(np.zeros((VOCAB, width), np.float32))
                embedding_forward(run.device, run.status, run.up(tokens), table)
                assert run.bits() == TOKEN_RANGE
                run.status = run.device.zeros((1,), np.uint32)
                dx = run.up(np.ones((130, width), np.float32))
                embedding_backward(run.device, run.status, dx, run.up(tokens), VOCAB)
                assert run.bits() == TOKEN_RANGE
