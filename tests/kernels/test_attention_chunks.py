"""Chunks cover every pair that sees each other once, are whole parts of operands, and stay within their size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.kernels import attention_chunks
from auditkit.kernels.attention_chunks import MOST, STEP, Chunk, Sizes, key_chunks, query_chunks
from auditkit.numerics.attention import visible


def check(chunks: list[Chunk], sizes: Sizes, turned: bool) -> None:
    found = np.zeros((sizes.groups, sizes.tokens, sizes.tokens), np.int32)  # of query and key: how often computed
    for chunk in chunks:
        queries, keys = (chunk.columns, chunk.rows) if turned else (chunk.rows, chunk.columns)
        assert (queries.start, keys.start) == (chunk.query * sizes.heads, chunk.key)
        last, rest = divmod(queries.stop, sizes.heads)
        found[chunk.groups, chunk.query : last, keys] += 1
        for first, stop in ((chunk.query, last), (chunk.key, keys.stop)):
            assert first < stop and first % STEP == 0 and (stop % STEP == 0 or stop == sizes.tokens)
        assert rest == 0 and chunk.scores == (queries.stop - queries.start) * (keys.stop - keys.start) * chunk.batch
    assert found.max() == 1
    assert found[:, visible(range(sizes.tokens), range(sizes.tokens), sizes.window) != 0].min() == 1


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.builds(Sizes, st.integers(1, 5), st.integers(1, 4), st.integers(1, 700), st.integers(0, 700)),
    rows=st.sampled_from([1, 600, 4000, 1 << 20]),
    most=st.sampled_from([1, 100_000, 1 << 30]),
)
def test_every_visible_pair_once(sizes: Sizes, rows: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("QUERY_ROWS", rows), ("KEY_ROWS", rows), ("MOST", most)):
            patch.setattr(attention_chunks, name, value)
        check(query_chunks(sizes), sizes, turned=False)
        check(key_chunks(sizes), sizes, turned=True)


def test_a_large_model() -> None:
    """4 sequences of 4,096 tokens, 16 query and 4 key heads: parts of the 2^30 scores, few of them in vain."""
    sizes = Sizes(16, 4, 4096, 0)
    queries, keys = query_chunks(sizes), key_chunks(sizes)
    assert (len(queries), len(keys)) == (16, 8)
    assert max(chunk.scores for chunk in queries) == 64 * 256 * 4096
    assert max(chunk.scores for chunk in keys) == 64 * 512 * 4096
    for window, share in ((0, 0.57), (1024, 0.4)):
        for cut in (query_chunks, key_chunks):
            assert sum(chunk.scores for chunk in cut(Sizes(16, 4, 4096, window))) < share * 2**30


def test_a_small_model_is_one_chunk() -> None:
    sizes = Sizes(16, 2, 256, 0)
    assert query_chunks(sizes) == [Chunk(slice(0, 16), slice(0, 512), slice(0, 256), 0, 0)]
    assert key_chunks(sizes) == [Chunk(slice(0, 16), slice(0, 256), slice(0, 512), 0, 0)]


def test_long_sequences_stay_within_a_chunk() -> None:
    assert all(chunk.scores <= MOST for chunk in query_chunks(Sizes(32, 4, 1 << 15, 0)))
