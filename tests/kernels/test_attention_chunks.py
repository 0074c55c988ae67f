"""Chunks cover every pair that sees each other exactly once, whole parts of operands, within their size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.kernels import attention_chunks
from auditkit.kernels.attention_chunks import STEP, Chunk, key_chunks, most_scores, query_chunks
from auditkit.numerics.attention import visible


def check(cut: list[Chunk], groups: int, heads: int, tokens: int, window: int, turned: bool) -> None:
    found = np.zeros((groups, tokens, tokens), np.int32)  # of query and key: how often computed
    for chunk in cut:
        queries, keys = (chunk.columns, chunk.rows) if turned else (chunk.rows, chunk.columns)
        found[chunk.groups, queries, keys] += 1
        for part in (chunk.rows, chunk.columns):
            assert part.start % STEP == 0 and (part.stop % STEP == 0 or part.stop == tokens)
    assert found.max() == 1 and found[:, visible(range(tokens), range(tokens), window) != 0].min() == 1
    whole = [chunk.columns if turned else chunk.rows for chunk in cut]
    assert all(part.start < part.stop for part in whole)
    sizes = [chunk.scores(heads) for chunk in cut]
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None, max_examples=60)
@given(
    groups=st.integers(1, 5),
    heads=st.integers(1, 4),
    tokens=st.integers(1, 700),
    window=st.integers(0, 800),
    rows=st.sampled_from([1, 600, 4000, 1 << 20]),
    most=st.sampled_from([1, 100_000, 1 << 30]),
)
def test_every_visible_pair_once(groups: int, heads: int, tokens: int, window: int, rows: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("QUERY_ROWS", rows), ("KEY_ROWS", rows), ("MOST", most)):
            patch.setattr(attention_chunks, name, value)
        check(query_chunks(groups, heads, tokens, window), groups, heads, tokens, window, False)
        check(key_chunks(groups, heads, tokens, window), groups, heads, tokens, window, True)


def test_a_large_model() -> None:
    """4 sequences of 4,096 tokens, 16 query and 4 key heads: a fraction of the 2^30 scores at a time, few of them in vain."""
    sizes = (16, 4, 4096, 0)
    assert most_scores(*sizes) == (64 * 256 * 4096, 64 * 512 * 4096)
    assert len(query_chunks(*sizes)) == 16 and len(key_chunks(*sizes)) == 8
    computed = [sum(chunk.scores(4) for chunk in cut(*sizes)) for cut in (query_chunks, key_chunks)]
    assert max(computed) < 0.57 * 2**30
    windowed = [sum(chunk.scores(4) for chunk in cut(*sizes[:3], 1024)) for cut in (query_chunks, key_chunks)]
    assert max(windowed) < 0.4 * 2**30


def test_a_small_model_is_one_chunk() -> None:
    assert query_chunks(16, 2, 256, 0) == key_chunks(16, 2, 256, 0) == [Chunk(slice(0, 16), slice(0, 256), slice(0, 256))]


def test_long_sequences_stay_within_a_chunk() -> None:
    assert all(chunk.scores(4) <= attention_chunks.MOST for chunk in query_chunks(32, 4, 1 << 15, 0))
