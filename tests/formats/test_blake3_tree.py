"""BLAKE3 of bytes in parts against the `blake3` package, at every length where the tree changes shape."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from auditkit.formats import blake3_tree
from auditkit.formats.blake3_tree import BLOCK_BYTES, NODE_BYTES, blocks_of, join_nodes

B = BLOCK_BYTES
LENGTHS = [B + 1, B + 63, B + 64, B + 65, B + 1023, B + 1024, B + 1025, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B, 1_000_003]
LENGTHS += [4 * B, 5 * B - 64, 5 * B + 3072, 7 * B + 3073, 8 * B, 9 * B + 2048]


def random_bytes(size: int) -> np.ndarray:
    """The same bytes every time."""
    return np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)


def block_nodes(part: np.ndarray, first: int, size: int) -> bytes:
    """The nodes of one part."""
    (nodes,) = blake3_tree.block_nodes([part], [first], [size])
    return nodes


def test_many_parts_at_once_and_none() -> None:
    whole = [random_bytes(size) for size in LENGTHS]
    parts = [(x[B:], 1, x.size) for x in whole] + [(x[:B], 0, x.size) for x in whole]
    assert blake3_tree.block_nodes(*zip(*parts, strict=True)) == [block_nodes(*part) for part in parts]
    assert blake3_tree.block_nodes([], [], []) == []


@pytest.mark.parametrize("size", LENGTHS)
def test_parts_join_to_the_digest_wherever_they_are_cut(size: int) -> None:
    x = random_bytes(size)
    want, whole = blake3(x.tobytes()).hexdigest(), block_nodes(x, 0, size)
    assert len(whole) == NODE_BYTES * blocks_of(size)
    assert join_nodes(whole) == want
    for cut in range(1, blocks_of(size)):
        assert block_nodes(x[: cut * B], 0, size) + block_nodes(x[cut * B :], cut, size) == whole


def test_many_chunks_at_once_and_few_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_bytes(3 * B + 5000)
    whole = block_nodes(x, 0, x.size)
    for chunks in (1, 7, 128, 1000):
        monkeypatch.setattr(blake3_tree, "_AT_ONCE", chunks)
        assert block_nodes(x, 0, x.size) == whole


def test_the_number_of_a_block_counts_beyond_32_bits_of_chunks() -> None:
    """The counter of a chunk has 64 bits: the same bytes 4 TiB further on have another node."""
    part = random_bytes(B)
    far = (1 << 32) // 128
    size = (far + 2) * B
    nodes = [block_nodes(part, first, size) for first in (0, 1, far, far + 1)]
    assert len(set(nodes)) == 4


def test_one_bit_in_any_block_changes_its_node_alone() -> None:
    x = random_bytes(4 * B)
    whole = block_nodes(x, 0, x.size)
    for block in range(4):
        changed = x.copy()
        changed[block * B + 777] ^= 1
        other = block_nodes(changed, 0, x.size)
        parts = [slice(NODE_BYTES * i, NODE_BYTES * (i + 1)) for i in range(4)]
        assert [other[part] != whole[part] for part in parts] == [i == block for i in range(4)]
        assert join_nodes(other) == blake3(changed.tobytes()).hexdigest()


def test_any_dtype_counts_as_its_bytes() -> None:
    x = random_bytes(2 * B).view(np.float32)
    assert block_nodes(x.reshape(2, -1)[:1], 0, x.nbytes) == block_nodes(x.view(np.uint8)[:B], 0, x.nbytes)


@pytest.mark.parametrize(
    ("part", "first", "size"),
    [(B, 0, B), (0, 0, 2 * B), (B + 1, 0, 3 * B), (B, 2, 2 * B), (2 * B, 1, 2 * B), (B, -1, 2 * B), (B - 1, 1, 2 * B)],
)
def test_what_is_no_part_of_whole_blocks_is_refused(part: int, first: int, size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        block_nodes(np.zeros(part, np.uint8), first, size)


def test_a_single_block_has_no_nodes_to_join() -> None:
    for count in (0, 1):
        with pytest.raises(ValueError, match="fewer than two"):
            join_nodes(bytes(NODE_BYTES * count))
